use super::super::testing::*;
use super::super::{RawArguments, Usage};
use super::*;
use crate::agent::Provider;
use crate::json;

fn ask(model: &Model, conversation: &Conversation) -> OutboundRequest {
    request(model, conversation, &secret).unwrap()
}

fn messages_of(messages: Vec<Message>) -> Value {
    body(&ask(&model(Provider::Anthropic), &saying(messages)))["messages"].take()
}

#[test]
fn a_whole_request() {
    let sent = ask(&model(Provider::Anthropic), &conversation());
    assert_eq!(header(&sent, "x-api-key"), Some("s3cr3t-key"));
    assert_eq!(header(&sent, "anthropic-version"), Some("2026-10-21"));
    assert_eq!(header(&sent, "authorization"), None);
    let expected = r#"{
        "model": "m-1",
        "max_tokens": 4096,
        "system": "Be brief.",
        "messages": [
            {"role":"user","content":[{"type":"text","text":"Find both."}]},
            {"role":"assistant","content":[
                {"type":"tool_use","id":"c1","name":"look_up","input":{"id":18446744073709551616,"e":1E5,"f":1.0}},
                {"type":"tool_use","id":"c2","name":"look_up","input":{}}]},
            {"role":"user","content":[
                {"type":"tool_result","tool_use_id":"c1","content":"{\"n\":9007199254740993}"},
                {"type":"tool_result","tool_use_id":"c2","content":"no such thing","is_error":true}]},
            {"role":"assistant","content":[{"type":"text","text":"One is missing."}]},
            {"role":"user","content":[{"type":"text","text":"Go on."}]}],
        "tools": [{"name":"look_up","description":"Finds a thing.",
            "input_schema":{"type":"object","properties":{"id":{"maximum":1E30}}}}],
        "stream": false}"#;
    assert_eq!(sent.body, Some(compact(expected)));
}

#[test]
fn structured_output_keeps_its_format_beside_parameters() {
    let model = with_parameters(
        Provider::Anthropic,
        r#"{"max_tokens":1E4,"output_config":{"effort":"low"}}"#,
    );
    let expected = r#"{
        "model": "m-1",
        "max_tokens": 1E4,
        "messages": [{"role":"user","content":[{"type":"text","text":"Hi"}]}],
        "output_config": {"format":{"type":"json_schema","schema":{"type":"object","maxProperties":1E1}},
            "effort":"low"},
        "stream": false}"#;
    assert_eq!(ask(&model, &structured()).body, Some(compact(expected)));
}

#[test]
fn where_it_is_sent() {
    for (base_url, expected) in [
        ("https://a.example", "https://a.example/v1/messages"),
        ("https://a.example/v1", "https://a.example/v1/messages"),
        ("https://a.example/x", "https://a.example/x/v1/messages"),
        ("https://a.example/xv1", "https://a.example/xv1/v1/messages"),
    ] {
        let model = Model {
            base_url: base_url.to_owned(),
            version: Some("2023-06-01".to_owned()),
            api_key: None,
            ..model(Provider::Anthropic)
        };
        let sent = ask(&model, &saying(vec![]));
        assert_eq!(sent.url, expected);
        assert_eq!(header(&sent, "anthropic-version"), Some("2023-06-01"));
        assert_eq!(header(&sent, "x-api-key"), None);
    }
}

#[test]
fn roles_alternate() {
    let found = messages_of(vec![
        user("a"),
        user("b"),
        answered(None, vec![]),
        user("c"),
        answered(Some("d"), vec![sent("c1", "{}")]),
        Message::Results(vec![result("c1", "r", false)]),
        user("e"),
        answered(Some("f"), vec![]),
        answered(Some("g"), vec![]),
    ]);
    let expected = r#"[
        {"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"},{"type":"text","text":"c"}]},
        {"role":"assistant","content":[{"type":"text","text":"d"},
            {"type":"tool_use","id":"c1","name":"look_up","input":{}}]},
        {"role":"user","content":[{"type":"tool_result","tool_use_id":"c1","content":"r"},
            {"type":"text","text":"e"}]},
        {"role":"assistant","content":[{"type":"text","text":"f"},{"type":"text","text":"g"}]}]"#;
    assert_eq!(found, value(expected));
}

const ANSWER: &str = r#"{"content":[
    {"type":"thinking","thinking":"hm","signature":"Ab==","n":1E5},
    {"type":"redacted_thinking","data":"xx"},
    {"type":"text","text":" "},
    {"type":"text","text":"Wait.","citations":null},
    {"type":"tool_use","id":"x","name":"look up!","input":{"id":1}}]}"#;

#[test]
fn its_own_answer_is_replayed_with_the_calls_as_they_are_called_now() {
    let calls = vec![sent("c1", EXACT)];
    let found = messages_of(vec![answered_with(Provider::Anthropic, ANSWER, calls)]);
    let expected = r#"[{"role":"assistant","content":[
        {"type":"thinking","thinking":"hm","signature":"Ab==","n":1E5},
        {"type":"redacted_thinking","data":"xx"},
        {"type":"text","text":"Wait.","citations":null},
        {"type":"tool_use","id":"c1","name":"look_up","input":{"id":18446744073709551616,"e":1E5,"f":1.0}}]}]"#;
    assert_eq!(json::write(&found), compact(expected));
}

#[test]
fn what_cannot_be_replayed_is_rebuilt() {
    let rebuilt = r#"[{"role":"assistant","content":[
        {"type":"text","text":"from the normal form"},
        {"type":"tool_use","id":"c1","name":"look_up","input":{}},
        {"type":"tool_use","id":"c2","name":"look_up","input":{}}]}]"#;
    for (provider, answer) in [
        (Provider::Anthropic, ANSWER),
        (Provider::Anthropic, r#"{"content":[]}"#),
        (Provider::Anthropic, r#"{"content":"a"}"#),
        (Provider::Anthropic, "null"),
        (Provider::OpenaiResponses, r#"{"output":[]}"#),
    ] {
        let calls = vec![sent("c1", "{}"), sent("c2", "{}")];
        let found = messages_of(vec![answered_with(provider, answer, calls)]);
        assert_eq!(found, value(rebuilt), "{answer}");
    }
}

#[test]
fn a_whole_answer() {
    let found = parse(&value(
        r#"{"type":"message","role":"assistant","model":"m-1-2026","content":[
            {"type":"thinking","thinking":"hm","signature":"s"},
            {"type":"text","text":"Wa"},{"type":"text","text":"it."},
            {"type":"server_tool_use","id":"srv","name":"web_search","input":{}},
            {"type":"tool_use","id":"a","name":"look_up","input":{"id":18446744073709551616,"e":1E5,"f":1.0}},
            {"type":"tool_use","id":"a","name":"health","input":{}},
            {"type":"tool_use","name":"health"},
            {"type":"tool_use","id":"d","name":"health","input":"{}"}],
        "stop_reason":"tool_use","stop_sequence":null,
        "usage":{"input_tokens":3,"cache_creation_input_tokens":20,"cache_read_input_tokens":100,"output_tokens":7}}"#,
    ));
    let expected = ModelAnswer {
        text: Some("Wait.".to_owned()),
        calls: vec![
            raw(Some("a"), "look_up", RawArguments::Value(exact(EXACT))),
            raw(Some("a"), "health", RawArguments::Value(exact("{}"))),
            raw(None, "health", RawArguments::Absent),
            raw(Some("d"), "health", as_text("{}")),
        ],
        finish: Finish::Done,
        usage: Some(Usage {
            input_tokens: 123,
            output_tokens: 7,
        }),
        model: Some("m-1-2026".to_owned()),
    };
    assert_eq!(found, Ok(expected));
}

#[test]
fn why_it_ended() {
    for (reason, expected) in [
        ("null", Finish::Done),
        ("\"end_turn\"", Finish::Done),
        ("\"stop_sequence\"", Finish::Done),
        ("\"tool_use\"", Finish::Done),
        ("\"max_tokens\"", Finish::Length),
        ("\"pause_turn\"", Finish::Paused),
        ("\"refusal\"", Finish::Refused),
        ("\"model_context_window_exceeded\"", Finish::ContextFull),
        ("\"later\"", Finish::Done),
    ] {
        let body = format!(r#"{{"content":[],"stop_reason":{reason},"usage":null}}"#);
        let found = parse(&value(&body)).map(|answer| answer.finish);
        assert_eq!(found, Ok(expected), "{reason}");
    }
    for body in [
        "null",
        "{}",
        r#"{"content":null}"#,
        r#"{"content":"a"}"#,
        r#"{"choices":[]}"#,
    ] {
        let expected = Err("it has no \"content\" of blocks".to_owned());
        assert_eq!(parse(&value(body)), expected, "{body}");
    }
}
