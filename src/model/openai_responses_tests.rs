use super::super::testing::*;
use super::super::{RawArguments, Usage};
use super::*;
use crate::agent::Provider;

fn ask(model: &Model, conversation: &Conversation) -> OutboundRequest {
    request(model, conversation, &secret).unwrap()
}

fn input_of(messages: Vec<Message>) -> Value {
    body(&ask(&model(Provider::OpenaiResponses), &saying(messages)))["input"].take()
}

#[test]
fn a_whole_request() {
    let sent = ask(&model(Provider::OpenaiResponses), &conversation());
    assert_eq!(sent.url, "https://models.example/v1/responses");
    assert_eq!(header(&sent, "authorization"), Some("Bearer s3cr3t-key"));
    let expected = r#"{
        "model": "m-1",
        "instructions": "Be brief.",
        "input": [
            {"type":"message","role":"user","content":"Find both."},
            {"type":"function_call","call_id":"c1","name":"look_up",
                "arguments":"{\"id\":18446744073709551616,\"e\":1E5,\"f\":1.0}"},
            {"type":"function_call","call_id":"c2","name":"look_up","arguments":"{}"},
            {"type":"function_call_output","call_id":"c1","output":"{\"n\":9007199254740993}"},
            {"type":"function_call_output","call_id":"c2","output":"no such thing"},
            {"type":"message","role":"assistant","content":"One is missing."},
            {"type":"message","role":"user","content":"Go on."}],
        "tools": [{"type":"function","name":"look_up","description":"Finds a thing.",
            "parameters":{"type":"object","properties":{"id":{"maximum":1E30}}},"strict":false}],
        "store": false,
        "include": ["reasoning.encrypted_content"],
        "stream": false}"#;
    assert_eq!(sent.body, Some(compact(expected)));
}

#[test]
fn structured_output_keeps_its_format_beside_parameters() {
    let model = with_parameters(
        Provider::OpenaiResponses,
        r#"{"text":{"verbosity":"low"},"reasoning":{"effort":"high"},"include":[]}"#,
    );
    let expected = r#"{
        "model": "m-1",
        "input": [{"type":"message","role":"user","content":"Hi"}],
        "text": {"format":{"type":"json_schema","name":"output",
            "schema":{"type":"object","maxProperties":1E1},"strict":false},"verbosity":"low"},
        "store": false,
        "include": [],
        "stream": false,
        "reasoning": {"effort":"high"}}"#;
    assert_eq!(ask(&model, &structured()).body, Some(compact(expected)));
}

const ANSWER: &str = r#"{"output":[
    {"type":"reasoning","id":"rs_1","summary":[],"encrypted_content":"gAAA","n":1E5},
    {"type":"message","id":"msg_1","role":"assistant","status":"completed",
        "content":[{"type":"output_text","text":"Wait.","annotations":[]}]},
    {"type":"function_call","id":"fc_1","call_id":"x","name":"look up!","arguments":"{\"id\":","status":"completed"},
    {"type":"custom_tool_call","id":"ctc_1","call_id":"x","name":"run","input":"ls"}]}"#;

#[test]
fn its_own_answer_is_replayed_with_the_calls_as_they_are_called_now() {
    let calls = vec![sent("c1", EXACT), sent("c2", "{}")];
    let input = input_of(vec![answered_with(
        Provider::OpenaiResponses,
        ANSWER,
        calls,
    )]);
    let expected = r#"[
        {"type":"reasoning","id":"rs_1","summary":[],"encrypted_content":"gAAA","n":1E5},
        {"type":"message","id":"msg_1","role":"assistant","status":"completed",
            "content":[{"type":"output_text","text":"Wait.","annotations":[]}]},
        {"type":"function_call","id":"fc_1","call_id":"c1","name":"look_up",
            "arguments":"{\"id\":18446744073709551616,\"e\":1E5,\"f\":1.0}","status":"completed"},
        {"type":"function_call","call_id":"c2","name":"look_up","arguments":"{}"}]"#;
    assert_eq!(json::write(&input), compact(expected));
}

#[test]
fn what_cannot_be_replayed_is_rebuilt() {
    let rebuilt = r#"[
        {"type":"message","role":"assistant","content":"from the normal form"},
        {"type":"function_call","call_id":"c1","name":"look_up","arguments":"{}"}]"#;
    for (provider, answer) in [
        (Provider::OpenaiResponses, ANSWER),
        (Provider::OpenaiResponses, r#"{"output":[]}"#),
        (Provider::OpenaiResponses, r#"{"output":{}}"#),
        (Provider::OpenaiResponses, "null"),
        (Provider::Openai, r#"{"output":[{"type":"function_call"}]}"#),
        (Provider::Anthropic, r#"{"content":[]}"#),
    ] {
        let input = input_of(vec![answered_with(
            provider,
            answer,
            vec![sent("c1", "{}")],
        )]);
        assert_eq!(input, value(rebuilt), "{answer}");
    }
}

#[test]
fn a_whole_answer() {
    let found = parse(&value(
        r#"{"object":"response","status":"completed","error":null,"incomplete_details":null,"model":"m-1-2026",
        "output":[
            {"type":"reasoning","id":"rs_1","summary":[{"type":"summary_text","text":"hm"}]},
            {"type":"message","role":"assistant","content":[{"type":"output_text","text":"Wait"}]},
            {"type":"web_search_call","id":"ws_1"},
            {"type":"message","role":"assistant","content":[{"type":"output_text","text":"."}]},
            {"type":"function_call","id":"fc_1","call_id":"a","name":"look_up","arguments":"{\"a\":"},
            {"type":"custom_tool_call","call_id":"b","name":"run","input":"ls"}],
        "usage":{"input_tokens":11,"input_tokens_details":{"cached_tokens":4},"output_tokens":5,"total_tokens":16}}"#,
    ));
    let expected = ModelAnswer {
        text: Some("Wait.".to_owned()),
        calls: vec![
            raw(Some("a"), "look_up", as_text("{\"a\":")),
            raw(Some("b"), "run", as_text("ls")),
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
fn calls_as_they_come() {
    for (item, expected) in [
        (r#"{"name":"t"}"#, raw(None, "t", RawArguments::Absent)),
        (
            // The item's own id is not the call's.
            r#"{"id":"fc_1","name":"t","arguments":null}"#,
            raw(None, "t", RawArguments::Absent),
        ),
        (
            r#"{"call_id":"","name":"t","arguments":""}"#,
            raw(Some(""), "t", as_text("")),
        ),
        (
            r#"{"call_id":"a","name":"t","arguments":{"n":1E5}}"#,
            raw(Some("a"), "t", RawArguments::Value(exact(r#"{"n":1E5}"#))),
        ),
        (
            r#"{"call_id":"a"}"#,
            raw(Some("a"), "", RawArguments::Absent),
        ),
    ] {
        let item = item.replacen('{', r#"{"type":"function_call","#, 1);
        let found = parse(&value(&format!(r#"{{"output":[{item}]}}"#))).unwrap();
        assert_eq!((found.calls, found.text), (vec![expected], None), "{item}");
    }
}

#[test]
fn why_it_ended() {
    for (body, expected) in [
        (r#"{"output":[]}"#, Ok(Finish::Done)),
        (r#"{"output":[],"status":"completed"}"#, Ok(Finish::Done)),
        (
            r#"{"output":[],"status":"incomplete","incomplete_details":{"reason":"max_output_tokens"}}"#,
            Ok(Finish::Length),
        ),
        (
            r#"{"output":[],"status":"incomplete","incomplete_details":{"reason":"content_filter"}}"#,
            Ok(Finish::Refused),
        ),
        (
            r#"{"output":[{"type":"message","content":[{"type":"refusal","refusal":"No."}]}],"status":"completed"}"#,
            Ok(Finish::Refused),
        ),
        (
            r#"{"output":[],"status":"incomplete"}"#,
            Err("it is incomplete for a reason (\"\") not known"),
        ),
        (
            r#"{"output":[],"status":"queued"}"#,
            Err("its \"status\" is \"queued\", not \"completed\""),
        ),
        (
            r#"{"output":[],"status":"failed"}"#,
            Err("its \"status\" is \"failed\", not \"completed\""),
        ),
        (r#"{"choices":[]}"#, Err("it has no \"output\"")),
        ("null", Err("it has no \"output\"")),
        (
            r#"{"output":[{"type":"message","content":"text"}]}"#,
            Err("its \"content\" is not an array"),
        ),
        (
            r#"{"output":[{"type":"message","content":[{"type":"output_audio"}]}]}"#,
            Err("a part of its message is \"output_audio\", not text"),
        ),
    ] {
        let found = parse(&value(body)).map(|answer| answer.finish);
        assert_eq!(found, expected.map_err(str::to_owned), "{body}");
    }
    let refused =
        r#"{"output":[{"type":"message","content":[{"type":"refusal","refusal":"No."}]}]}"#;
    assert_eq!(parse(&value(refused)).unwrap().text.as_deref(), Some("No."));
}
