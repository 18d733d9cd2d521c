use super::super::testing::*;
use super::super::{RawArguments, Usage};
use super::*;
use crate::agent::Provider;

fn ask(model: &Model, conversation: &Conversation) -> OutboundRequest {
    request(model, conversation, &secret).unwrap()
}

#[test]
fn a_whole_request() {
    let sent = ask(&model(Provider::Openai), &conversation());
    assert_eq!(sent.url, "https://models.example/v1/chat/completions");
    assert_eq!(header(&sent, "authorization"), Some("Bearer s3cr3t-key"));
    assert_eq!(sent.timeout_ms, 7_000);
    let expected = r#"{
        "model": "m-1",
        "messages": [
            {"role":"system","content":"Be brief."},
            {"role":"user","content":"Find both."},
            {"role":"assistant","content":null,"tool_calls":[
                {"id":"c1","type":"function","function":{"name":"look_up",
                    "arguments":"{\"id\":18446744073709551616,\"e\":1E5,\"f\":1.0}"}},
                {"id":"c2","type":"function","function":{"name":"look_up","arguments":"{}"}}]},
            {"role":"tool","tool_call_id":"c1","content":"{\"n\":9007199254740993}"},
            {"role":"tool","tool_call_id":"c2","content":"no such thing"},
            {"role":"assistant","content":"One is missing."},
            {"role":"user","content":"Go on."}],
        "tools": [{"type":"function","function":{"name":"look_up","description":"Finds a thing.",
            "parameters":{"type":"object","properties":{"id":{"maximum":1E30}}}}}],
        "stream": false}"#;
    assert_eq!(sent.body, Some(compact(expected)));
}

#[test]
fn structured_output_and_parameters() {
    let model = with_parameters(Provider::Openai, r#"{"temperature":1E-1,"seed":7}"#);
    let expected = r#"{
        "model": "m-1",
        "messages": [{"role":"user","content":"Hi"}],
        "stream": false,
        "response_format": {"type":"json_schema","json_schema":{"name":"output",
            "schema":{"type":"object","maxProperties":1E1},"strict":false}},
        "temperature": 1E-1,
        "seed": 7}"#;
    assert_eq!(ask(&model, &structured()).body, Some(compact(expected)));

    let model = with_parameters(Provider::Openai, r#"{"response_format":{"type":"text"}}"#);
    let sent = body(&ask(&model, &structured()));
    assert_eq!(sent["response_format"], value(r#"{"type":"text"}"#));
}

#[test]
fn without_a_key_and_with_headers() {
    let model = Model {
        api_key: None,
        headers: vec![("x-team".to_owned(), "{{ secrets.KEY }}".to_owned())],
        ..model(Provider::Openai)
    };
    let sent = ask(&model, &saying(vec![user("Hi")]));
    assert_eq!(header(&sent, "authorization"), None);
    assert_eq!(header(&sent, "x-team"), Some("s3cr3t-key"));
    assert_eq!(sent.mask("no s3cr3t-key"), "no [secret KEY]");
}

#[test]
fn what_cannot_be_asked() {
    let broken = Model {
        base_url: "models.example".to_owned(),
        ..model(Provider::Openai)
    };
    let error = request(&broken, &saying(vec![]), &secret).unwrap_err();
    assert!(matches!(error, RequestError::BadUrl { .. }), "{error}");
    let error = request(&model(Provider::Openai), &saying(vec![]), &|_| None).unwrap_err();
    assert!(
        matches!(error, RequestError::MissingSecret { .. }),
        "{error}"
    );
}

#[test]
fn an_assistant_that_said_and_called_nothing_is_left_out() {
    let sent = ask(
        &model(Provider::Openai),
        &saying(vec![answered(None, vec![])]),
    );
    assert_eq!(body(&sent)["messages"], value("[]"));
}

fn answer(message: &str) -> Result<ModelAnswer, String> {
    parse(&value(&format!(
        r#"{{"choices":[{{"finish_reason":"stop","message":{message}}}]}}"#
    )))
}

#[test]
fn a_whole_answer() {
    let found = parse(&value(
        r#"{"id":"x","object":"chat.completion","model":"m-1-2026","choices":[{"index":0,
        "message":{"role":"assistant","content":"Wait.","refusal":null,"tool_calls":[
            {"id":"a","type":"function","function":{"name":"look_up","arguments":"{\"id\":9007199254740993}"}},
            {"id":"b","type":"custom","custom":{"name":"run","input":"ls -l"}}]},
        "finish_reason":"tool_calls"}],
        "usage":{"prompt_tokens":11,"completion_tokens":5,"total_tokens":16,
            "prompt_tokens_details":{"cached_tokens":4}}}"#,
    ));
    let expected = ModelAnswer {
        text: Some("Wait.".to_owned()),
        calls: vec![
            raw(Some("a"), "look_up", as_text(r#"{"id":9007199254740993}"#)),
            raw(Some("b"), "run", as_text("ls -l")),
        ],
        finish: Finish::Done,
        usage: Some(Usage {
            input_tokens: 11,
            output_tokens: 5,
        }),
        model: Some("m-1-2026".to_owned()),
    };
    assert_eq!(found, Ok(expected));
}

#[test]
fn what_was_said() {
    for (message, expected) in [
        (r#"{}"#, None),
        (r#"{"content":null}"#, None),
        (r#"{"content":""}"#, None),
        (r#"{"content":" \n"}"#, None),
        (r#"{"content":" a\n"}"#, Some(" a\n")),
        (r#"{"content":[]}"#, None),
        (
            r#"{"content":[{"type":"text","text":"a"},{"type":"thinking","thinking":[]},{"type":"text","text":"b"}]}"#,
            Some("ab"),
        ),
        (r#"{"content":"a","reasoning_content":"b"}"#, Some("a")),
        (
            r#"{"content":"a","refusal":"","tool_calls":null,"function_call":null}"#,
            Some("a"),
        ),
    ] {
        let found = answer(message).unwrap();
        assert_eq!(found.text.as_deref(), expected, "{message}");
        assert_eq!((found.calls, found.finish), (vec![], Finish::Done));
        assert_eq!((found.usage, found.model), (None, None));
    }
}

#[test]
fn arguments_are_neither_guessed_nor_mended() {
    let unchanged = [
        "",
        "   ",
        "null",
        "{\"a\":",
        "```json\n{}\n```",
        "\"{}\"",
        "{}{}",
        "True",
    ];
    let mut rows: Vec<(String, RawArguments)> = unchanged
        .iter()
        .map(|given| (json::write(&Value::from(*given)), as_text(given)))
        .collect();
    rows.push(("null".to_owned(), RawArguments::Absent));
    for given in [EXACT, "[1]", "5", "true"] {
        rows.push((given.to_owned(), RawArguments::Value(exact(given))));
    }
    for (arguments, expected) in rows {
        let message = format!(
            r#"{{"tool_calls":[{{"id":"a","function":{{"name":"t","arguments":{arguments}}}}}]}}"#
        );
        let found = answer(&message).unwrap();
        assert_eq!(found.calls, [raw(Some("a"), "t", expected)], "{arguments}");
    }
}

#[test]
fn calls_as_they_come() {
    let absent = RawArguments::Absent;
    for (message, expected) in [
        // Labels may be missing, empty, used twice, or no text at all.
        (
            r#"{"tool_calls":[{"function":{"name":"t"}},{"id":"","function":{"name":"t"}},
                {"id":"a","function":{"name":"t"}},{"id":"a","function":{"name":"u"}},
                {"id":null,"function":{"name":"t"}},{"id":7,"function":{"name":"t"}}]}"#,
            vec![
                raw(None, "t", absent.clone()),
                raw(Some(""), "t", absent.clone()),
                raw(Some("a"), "t", absent.clone()),
                raw(Some("a"), "u", absent.clone()),
                raw(None, "t", absent.clone()),
                raw(None, "t", absent.clone()),
            ],
        ),
        (
            r#"{"tool_calls":[{"function":{"name":"functions.Get "}},{"function":{"name":null}},{"function":{}}]}"#,
            vec![
                raw(None, "functions.Get ", absent.clone()),
                raw(None, "", absent.clone()),
                raw(None, "", absent.clone()),
            ],
        ),
        (
            r#"{"content":null,"function_call":{"name":"t","arguments":"{}"}}"#,
            vec![raw(None, "t", as_text("{}"))],
        ),
        (
            r#"{"tool_calls":[],"function_call":{"name":"t"}}"#,
            vec![raw(None, "t", absent.clone())],
        ),
        // Some send the old form beside the new one; it is the same call.
        (
            r#"{"tool_calls":[{"id":"a","function":{"name":"t"}}],"function_call":{"name":"t"}}"#,
            vec![raw(Some("a"), "t", absent.clone())],
        ),
        (
            r#"{"tool_calls":[{"id":"a","type":"custom","custom":{"name":"t"}}]}"#,
            vec![raw(Some("a"), "t", absent.clone())],
        ),
        // Two that a gateway glued together stay what they are, which is not JSON.
        (
            r#"{"tool_calls":[{"id":"a","function":{"name":"t","arguments":"{\"p\":\"a\"}{\"p\":\"é\"}"}}]}"#,
            vec![raw(Some("a"), "t", as_text(r#"{"p":"a"}{"p":"é"}"#))],
        ),
    ] {
        assert_eq!(answer(message).unwrap().calls, expected, "{message}");
    }
}

#[test]
fn why_it_ended() {
    let calls = r#""tool_calls":[{"id":"a","function":{"name":"t"}}]"#;
    for (choice, expected) in [
        (r#"{"message":{}}"#.to_owned(), Finish::Done),
        (r#"{"message":{},"finish_reason":null}"#.to_owned(), Finish::Done),
        (r#"{"message":{},"finish_reason":"tool_calls"}"#.to_owned(), Finish::Done),
        (r#"{"message":{},"finish_reason":"function_call"}"#.to_owned(), Finish::Done),
        (format!(r#"{{"message":{{{calls}}},"finish_reason":"stop"}}"#), Finish::Done),
        (format!(r#"{{"message":{{{calls}}},"finish_reason":"length"}}"#), Finish::Length),
        (r#"{"message":{},"finish_reason":"content_filter"}"#.to_owned(), Finish::Refused),
        (r#"{"message":{"refusal":"No."},"finish_reason":"stop"}"#.to_owned(), Finish::Refused),
        (
            r#"{"message":{"content":[{"type":"refusal","refusal":"No."}]},"finish_reason":"stop"}"#.to_owned(),
            Finish::Refused,
        ),
    ] {
        let found = parse(&value(&format!(r#"{{"choices":[{choice}]}}"#))).unwrap();
        assert_eq!(found.finish, expected, "{choice}");
    }
    let found = answer(r#"{"content":null,"refusal":"I will not."}"#).unwrap();
    assert_eq!(found.text.as_deref(), Some("I will not."));
}

#[test]
fn other_forms() {
    for (body, expected) in [
        ("null", "it has no \"choices\""),
        ("[]", "it has no \"choices\""),
        (r#"{"choices":[]}"#, "its \"choices\" hold nothing"),
        (r#"{"choices":null}"#, "its \"choices\" hold nothing"),
        (
            r#"{"choices":[{"text":"a"}]}"#,
            "its first choice has no \"message\"",
        ),
        (
            r#"{"choices":[{"message":null}]}"#,
            "its first choice has no \"message\"",
        ),
        (
            r#"{"object":"chat.completion.chunk","choices":[{"message":{}}]}"#,
            "it is a part of a stream, and none was asked for",
        ),
        (
            r#"{"choices":[{"message":{"content":{}}}]}"#,
            "its content is neither text nor parts",
        ),
        (
            r#"{"choices":[{"message":{"content":[{"type":"image_url"}]}}]}"#,
            "a part of its content is \"image_url\", not text",
        ),
        (
            r#"{"choices":[{"message":{"tool_calls":{}}}]}"#,
            "its \"tool_calls\" is not an array",
        ),
        (
            r#"{"choices":[{"message":{"tool_calls":[{"id":"a","function":null}]}}]}"#,
            "one of its \"tool_calls\" holds no function",
        ),
        (
            r#"{"choices":[{"message":{},"finish_reason":"error"}]}"#,
            "its \"finish_reason\" is \"error\"",
        ),
    ] {
        assert_eq!(parse(&value(body)), Err(expected.to_owned()), "{body}");
    }
}

#[test]
fn tokens() {
    let count = |input_tokens, output_tokens| {
        Some(Usage {
            input_tokens,
            output_tokens,
        })
    };
    for (usage, expected) in [
        ("null", None),
        ("{}", None),
        (r#"{"prompt_tokens":null,"completion_tokens":"5"}"#, None),
        (r#"{"prompt_tokens":-1}"#, None),
        (r#"{"prompt_tokens":3}"#, count(3, 0)),
        (
            r#"{"prompt_tokens":18446744073709551615,"completion_tokens":0}"#,
            count(u64::MAX, 0),
        ),
    ] {
        let body = format!(r#"{{"choices":[{{"message":{{}}}}],"usage":{usage}}}"#);
        assert_eq!(parse(&value(&body)).unwrap().usage, expected, "{usage}");
    }
}
