use super::super::testing::*;
use super::super::{RawArguments, Usage};
use super::*;
use crate::agent::Provider;

fn input(model: &Model, conversation: &Conversation) -> String {
    match request(model, conversation) {
        Outgoing::Binding {
            model,
            input,
            timeout_ms,
        } => {
            assert_eq!((model.as_str(), timeout_ms), ("m-1", 7_000));
            input
        }
        Outgoing::Http(_) => panic!(),
    }
}

#[test]
fn a_whole_request() {
    let expected = r#"{
        "messages": [
            {"role":"system","content":"Be brief."},
            {"role":"user","content":"Find both."},
            {"role":"assistant","content":"","tool_calls":[
                {"id":"c1","type":"function","function":{"name":"look_up",
                    "arguments":"{\"id\":18446744073709551616,\"e\":1E5,\"f\":1.0}"}},
                {"id":"c2","type":"function","function":{"name":"look_up","arguments":"{}"}}]},
            {"role":"tool","tool_call_id":"c1","content":"{\"n\":9007199254740993}","name":"look_up"},
            {"role":"tool","tool_call_id":"c2","content":"no such thing","name":"look_up"},
            {"role":"assistant","content":"One is missing."},
            {"role":"user","content":"Go on."}],
        "tools": [{"type":"function","function":{"name":"look_up","description":"Finds a thing.",
            "parameters":{"type":"object","properties":{"id":{"maximum":1E30}}}}}],
        "stream": false}"#;
    let found = input(&model(Provider::WorkersAi), &conversation());
    assert_eq!(found, compact(expected));
}

#[test]
fn structured_output_and_parameters() {
    let model = with_parameters(Provider::WorkersAi, r#"{"max_tokens":1E3}"#);
    let expected = r#"{
        "messages": [{"role":"user","content":"Hi"}],
        "stream": false,
        "response_format": {"type":"json_schema","json_schema":{"type":"object","maxProperties":1E1}},
        "max_tokens": 1E3}"#;
    assert_eq!(input(&model, &structured()), compact(expected));
}

#[test]
fn the_older_form() {
    let plain = ModelAnswer {
        text: None,
        calls: vec![],
        finish: Finish::Done,
        usage: None,
        model: None,
    };
    let said = |text: &str| ModelAnswer {
        text: Some(text.to_owned()),
        ..plain.clone()
    };
    let calling = |calls| ModelAnswer {
        calls,
        ..plain.clone()
    };
    for (body, expected) in [
        (r#"{"response":"Hi"}"#, said("Hi")),
        (r#"{"response":"Hi","tool_calls":[]}"#, said("Hi")),
        (r#"{"response":""}"#, plain.clone()),
        (r#"{"response":null,"tool_calls":null}"#, plain.clone()),
        // Structured output.
        (
            r#"{"response":{"n":1E5, "big":18446744073709551616}}"#,
            said(r#"{"n":1E5,"big":18446744073709551616}"#),
        ),
        (r#"{"response":[1.0]}"#, said("[1.0]")),
        (
            r#"{"response":"Hi","usage":{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5}}"#,
            ModelAnswer {
                usage: Some(Usage {
                    input_tokens: 3,
                    output_tokens: 2,
                }),
                ..said("Hi")
            },
        ),
        (
            r#"{"tool_calls":[{"name":"t","arguments":{"n":1E5}},{"name":"t","arguments":"{}"},{"name":"t"}]}"#,
            calling(vec![
                raw(None, "t", RawArguments::Value(exact(r#"{"n":1E5}"#))),
                raw(None, "t", as_text("{}")),
                raw(None, "t", RawArguments::Absent),
            ]),
        ),
        (
            r#"{"response":null,"tool_calls":[{"id":"a","type":"function","function":{"name":"t","arguments":"{}"}}]}"#,
            calling(vec![raw(Some("a"), "t", as_text("{}"))]),
        ),
    ] {
        assert_eq!(parse(&value(body)), Ok(expected), "{body}");
    }
}

#[test]
fn the_newer_form_is_that_of_openai() {
    let found = parse(&value(
        r#"{"choices":[{"finish_reason":"length","message":{"content":"Hi",
        "tool_calls":[{"id":"a","function":{"name":"t","arguments":"{}"}}]}}]}"#,
    ))
    .unwrap();
    assert_eq!(found.finish, Finish::Length);
    assert_eq!(found.calls, [raw(Some("a"), "t", as_text("{}"))]);
}

#[test]
fn other_forms() {
    for (body, expected) in [
        ("null", "it has neither a \"response\" nor \"choices\""),
        (
            r#"{"image":""}"#,
            "it has neither a \"response\" nor \"choices\"",
        ),
        (r#"{"choices":[]}"#, "its \"choices\" hold nothing"),
        (
            r#"{"object":"chat.completion.chunk","choices":[]}"#,
            "it is a part of a stream, and none was asked for",
        ),
        (
            r#"{"tool_calls":[1]}"#,
            "one of its \"tool_calls\" is not an object",
        ),
        (
            r#"{"tool_calls":[{"function":"t"}]}"#,
            "one of its \"tool_calls\" holds no function",
        ),
        (
            r#"{"tool_calls":"t"}"#,
            "its \"tool_calls\" is not an array",
        ),
    ] {
        assert_eq!(parse(&value(body)), Err(expected.to_owned()), "{body}");
    }
}
