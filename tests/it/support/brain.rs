//! The models of the simulated world. Each answers from the seed, or by a script, in the form in which
//! it is asked; all that it gave is remembered, and each request is held against what providers take.

use std::collections::BTreeMap;

use dormouse::json::{self, Value};
use dormouse::run::State;
use dormouse::tool::{Answer, OutboundRequest, Reply, Transport, TransportKind};
use dormouse::words::{RunId, SpanId};
use serde_json::json;

use super::rng::Rng;

/// Where all of them are; the next part of the path names the mind.
pub const HOST: &str = "https://models.example/";

/// A round in a worker's hands.
#[derive(Clone, Debug)]
pub struct Held {
    pub run_id: RunId,
    pub step_index: u32,
    pub token: u64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Form {
    Chat,
    Responses,
    Anthropic,
}

#[derive(Default)]
pub struct Brain {
    held: BTreeMap<String, Held>,
    /// The token under which a round's answer was recorded last.
    pub settled: BTreeMap<(RunId, u32), u64>,
    /// Each answer by its id, with the round that it was given to.
    pub answers: BTreeMap<String, (RunId, u32)>,
    /// The calls of tools that a run's model made with arguments that are good.
    pub meant: BTreeMap<RunId, Vec<(String, Value)>>,
    /// Requests that came, for each round.
    pub asked: BTreeMap<(RunId, u32), u32>,
    drawn: u64,
}

/// What a model says, before it is put into a form.
#[derive(Default)]
struct Said {
    text: Option<String>,
    calls: Vec<Call>,
    length: bool,
    refused: bool,
    paused: bool,
}

struct Call {
    id: Option<String>,
    name: String,
    written: Written,
}

enum Written {
    Absent,
    Text(String),
    Object(Value),
}

pub fn is_asked(request: &OutboundRequest) -> bool {
    request.loggable_url.starts_with(HOST)
}

impl Brain {
    pub fn hold(&mut self, held: Held) {
        let span = format!("{}/{}/{}", held.run_id, held.step_index, held.token);
        self.held.insert(SpanId::derive(&span).to_string(), held);
    }

    /// Whose request it is.
    pub fn holder(&self, request: &OutboundRequest) -> Held {
        let named = |(name, _): &&(String, String)| name.eq_ignore_ascii_case("traceparent");
        let traceparent = request.headers.iter().find(named).expect("a traceparent");
        let span = traceparent.1.split('-').nth(2).expect("a span");
        self.held
            .get(span)
            .expect("a round that was claimed")
            .clone()
    }

    pub fn ask(
        &mut self,
        request: &OutboundRequest,
        held: &Held,
        state: &State,
        rng: &mut Rng,
        trouble: bool,
    ) -> Answer {
        let form = match &request.loggable_url {
            url if url.ends_with("/chat/completions") => Form::Chat,
            url if url.ends_with("/responses") => Form::Responses,
            url if url.ends_with("/v1/messages") => Form::Anthropic,
            url => panic!("no model is at {url}"),
        };
        let mind = request.loggable_url[HOST.len()..].split('/').next();
        let mind = mind.unwrap_or_default();
        let body = request.body.as_deref().expect("a body");
        let body = json::read(body.as_bytes()).expect("JSON");
        let round = (held.run_id.clone(), held.step_index);
        self.holds_the_conversation(&round, held, state, form, &body);
        let times = self.asked.entry(round.clone()).or_default();
        *times += 1;
        let times = *times;
        let offered = offered(form, &body);
        let typed = state.agent.mind().is_some_and(|mind| match mind {
            dormouse::agent::Mind::Model(planner) => planner.output_schema.is_some(),
            dormouse::agent::Mind::Http(_) => false,
        });
        let said = match mind {
            "random" if trouble => match nonsense(rng) {
                Some(answer) => return answer,
                None => self.random(rng, &held.run_id, &offered, state, typed),
            },
            "random" => last_words(typed, &offered),
            script => {
                if let Some(answer) = broken(script, times) {
                    return answer;
                }
                scripted(script, state.rounds.len(), &body)
            }
        };
        for call in &said.calls {
            if let Some(good) = good_object(&call.name, &call.written) {
                let meant = self.meant.entry(held.run_id.clone()).or_default();
                meant.push((call.name.clone(), good));
            }
        }
        self.drawn += 1;
        let id = format!("answer-{}", self.drawn);
        self.answers.insert(id.clone(), round);
        let counted = !trouble || rng.percent(90);
        let body = in_form(form, &id, &said, counted, rng);
        reply(200, &json::write(&body), None)
    }

    /// The request tells all that was said, each call with its one result; and it is not asked in vain.
    fn holds_the_conversation(
        &self,
        round: &(RunId, u32),
        held: &Held,
        state: &State,
        form: Form,
        body: &Value,
    ) {
        let ids = paired(form, body);
        let step = &state.steps[held.step_index as usize];
        if step.is_done() {
            // A worker that had lost the round before may come late, and no other. Of a round that was
            // asked for once more and then called off, that is one with a later token.
            let settled = self.settled.get(round).copied();
            let called_off = step.status() == "cancelled";
            assert!(
                settled.is_none_or(|token| held.token < token || called_off && held.token > token),
                "{round:?} was asked again under token {} after its answer was recorded",
                held.token
            );
            return;
        }
        if state
            .rounds
            .last()
            .is_some_and(|last| last.step_index > held.step_index)
        {
            return;
        }
        let calls = state.rounds.iter().flat_map(|round| &round.calls);
        let known: Vec<&str> = calls.map(|call| call.id.as_str()).collect();
        assert_eq!(ids, known, "{round:?}: other calls than were made");
        for step in state.steps.iter().filter(|step| step.kind != "plan") {
            assert!(step.is_done(), "{round:?}: {} has no result yet", step.id);
        }
    }

    fn random(
        &mut self,
        rng: &mut Rng,
        run_id: &RunId,
        offered: &[String],
        state: &State,
        typed: bool,
    ) -> Said {
        match rng.below(40) {
            0 => return Said::default(),
            1 => {
                let text = Some("I was about to".to_owned());
                return Said {
                    text,
                    length: true,
                    ..Said::default()
                };
            }
            2 if rng.percent(40) => {
                let text = Some("I will not.".to_owned());
                return Said {
                    text,
                    refused: true,
                    ..Said::default()
                };
            }
            3 => {
                let text = Some("Let me think.".to_owned());
                return Said {
                    text,
                    paused: true,
                    ..Said::default()
                };
            }
            _ => {}
        }
        if rng.percent(15 + 10 * state.rounds.len() as u64) || offered.is_empty() {
            return last_words_at_random(rng, typed, offered);
        }
        let mut said = Said::default();
        for _ in 0..1 + rng.below(4) {
            let call = self.random_call(rng, run_id, offered);
            said.calls.push(call);
        }
        if rng.percent(30) {
            said.text = Some("I do this first.".to_owned());
        }
        said.length = rng.percent(3);
        said
    }

    fn random_call(&mut self, rng: &mut Rng, run_id: &RunId, offered: &[String]) -> Call {
        self.drawn += 1;
        let number = self.drawn;
        let id = match rng.below(20) {
            0 => None,
            1 => Some(String::new()),
            2 | 3 => Some("call".to_owned()),
            4 => Some("functions.x:0 é".to_owned()),
            5 => Some("x".repeat(200)),
            // As the engine makes them.
            6 => Some("call_r1_2".to_owned()),
            7 => Some("call_r2_1".to_owned()),
            _ => Some(format!("call-{number}-{}", &run_id.as_str()[..6])),
        };
        let name = match rng.below(30) {
            0 => "nope".to_owned(),
            1 => String::new(),
            2 => "Steady".to_owned(),
            3 => "../steady é".to_owned(),
            _ => offered[rng.below(offered.len() as u64) as usize].clone(),
        };
        let written = if rng.percent(75) {
            Written::Object(good_arguments(rng, &name))
        } else {
            bad_arguments(rng)
        };
        Call { id, name, written }
    }
}

// ---- What is said ----------------------------------------------------------------------------

fn good_arguments(rng: &mut Rng, name: &str) -> Value {
    let seconds = rng.below(40);
    let text = |text: &str| text.to_owned();
    match name {
        "sleep" => json!({ "duration": format!("PT{seconds}S") }),
        "wait_for" if rng.percent(70) => {
            json!({ "signals": ["go", "paid"], "timeout": format!("PT{seconds}S") })
        }
        "wait_for" => json!({ "signals": ["refused"] }),
        "ask_person" if rng.percent(50) => {
            json!({ "prompt": "well?", "timeout": format!("PT{seconds}S") })
        }
        "ask_person" => json!({ "prompt": "and now?" }),
        "start_run" => {
            let agents = ["kid", "failing", "waiting", "missing", "thinker-deep"];
            json!({ "agent": agents[rng.below(5) as usize], "input": { "order": seconds, "text": text("x") } })
        }
        "emit" => json!({ "type": "order.placed", "data": { "n": seconds } }),
        "finish" => json!({ "output": { "ok": true } }),
        _ => json!({ "n": rng.below(3) }),
    }
}

fn bad_arguments(rng: &mut Rng) -> Written {
    let text = |text: &str| Written::Text(text.to_owned());
    match rng.below(18) {
        0 => text("{n: 1}"),
        1 => text("```json\n{\"n\": 1}\n```"),
        2 => text(r#""{\"n\": 1}""#),
        3 => text(r#"{"n": 1"#),
        4 => text(""),
        5 => text(" null "),
        6 => Written::Absent,
        7 => Written::Object(Value::Null),
        8 => text("[1]"),
        9 => Written::Object(json!({ "n": "one" })),
        10 => text(r#"{"n": 1, "n": 2}"#),
        11 => text(r#"{"n": 1} and that is all"#),
        12 => text("7"),
        13 => Written::Object(json!({})),
        14 => Written::Object(json!([{ "n": 1 }])),
        15 => text("{'n': 1}"),
        16 => Written::Object(
            json!({ "duration": "soon", "signals": [], "prompt": "", "agent": "nobody", "type": "", "output": 7 }),
        ),
        _ => Written::Object(json!({ "n": 1.5 })),
    }
}

/// What a call of a tool of the tenant really asks for, if it asks for something that it may. By the
/// form's own rules and nobody's kindness.
fn good_object(name: &str, written: &Written) -> Option<Value> {
    let read = match written {
        Written::Absent => json!({}),
        Written::Object(Value::Null) => json!({}),
        Written::Object(value) => value.clone(),
        Written::Text(text) if matches!(text.trim(), "" | "null") => json!({}),
        // Of all that is written as text above, nothing else is an object.
        Written::Text(_) => return None,
    };
    let fits = match name {
        "typed" => read.get("n").is_none_or(|n| n.is_u64()),
        _ => true,
    };
    (read.is_object() && fits).then_some(read)
}

fn last_words(typed: bool, offered: &[String]) -> Said {
    if !typed {
        return Said {
            text: Some("done".to_owned()),
            ..Said::default()
        };
    }
    if offered.is_empty() {
        return Said {
            text: Some(r#"{"ok":true}"#.to_owned()),
            ..Said::default()
        };
    }
    let call = Call {
        id: Some("the-end".to_owned()),
        name: "finish".to_owned(),
        written: Written::Object(json!({ "output": { "ok": true } })),
    };
    Said {
        calls: vec![call],
        ..Said::default()
    }
}

fn last_words_at_random(rng: &mut Rng, typed: bool, offered: &[String]) -> Said {
    let text = |text: &str| Said {
        text: Some(text.to_owned()),
        ..Said::default()
    };
    match rng.below(8) {
        0 => text(r#"{"ok":true}"#),
        1 => text("```json\n{\"ok\":true}\n```"),
        2 => text(r#"{"no":1}"#),
        3 => text("  "),
        _ => last_words(typed, offered),
    }
}

/// What comes instead of an answer.
fn nonsense(rng: &mut Rng) -> Option<Answer> {
    Some(match rng.below(50) {
        0 => cut(TransportKind::TimedOut),
        1 => cut(TransportKind::Closed),
        2 => cut(TransportKind::Refused),
        3 => reply(429, r#"{"error":{"message":"slow down"}}"#, Some("2")),
        4 => reply(429, r#"{"error":{"message":"slow down"}}"#, Some("30")),
        5 => reply(
            529,
            r#"{"type":"error","error":{"type":"overloaded_error","message":"busy"}}"#,
            None,
        ),
        6 if rng.percent(30) => reply(400, r#"{"error":{"message":"what?"}}"#, None),
        7 => reply(200, "<html>", None),
        8 => reply(200, "{}", None),
        9 => reply(200, r#"{"error":{"code":502,"message":"late"}}"#, None),
        10 => reply(200, "", None),
        _ => return None,
    })
}

/// The troubles of a script, by how often the round was asked.
fn broken(script: &str, times: u32) -> Option<Answer> {
    if script == "down" && times <= 3 {
        return Some(reply(529, "", None));
    }
    let busy = script == "busy" && times == 1;
    busy.then(|| reply(429, r#"{"error":{"message":"slow down"}}"#, Some("2")))
}

fn scripted(script: &str, rounds: usize, body: &Value) -> Said {
    let call = |number: usize, name: &str, written: Written| Call {
        id: Some(format!("call-{rounds}-{number}")),
        name: name.to_owned(),
        written,
    };
    let good = |value: Value| Written::Object(value);
    let calls = match (script, rounds) {
        ("two", 0) => vec![
            call(1, "steady", good(json!({ "n": 1 }))),
            call(2, "flaky", good(json!({ "n": 2 }))),
        ],
        ("mend", 0) => vec![
            call(1, "steady", Written::Text("{n: 1}".to_owned())),
            call(2, "once", good(json!({ "n": 2 }))),
        ],
        ("mend", 1) => {
            let told = json::write(body);
            assert!(told.contains("invalid_arguments"), "it is told: {told}");
            vec![call(1, "steady", good(json!({ "n": 1 })))]
        }
        ("broken", 0..=2) => vec![
            call(1, "nope", good(json!({ "n": 1 }))),
            call(2, "steady", good(json!({ "n": rounds }))),
        ],
        ("loop", 0..=4) | ("limit" | "busy", 0) => vec![call(1, "steady", good(json!({ "n": 1 })))],
        ("approve", 0) => vec![call(1, "guarded", good(json!({ "n": 1 })))],
        ("approve", 1) => vec![call(1, "ask_person", good(json!({ "prompt": "well?" })))],
        ("start", 0) => vec![
            call(
                1,
                "start_run",
                good(json!({ "agent": "kid", "input": { "order": 1 } })),
            ),
            call(2, "sleep", good(json!({ "duration": "PT2S" }))),
        ],
        _ => return last_words(false, &[]),
    };
    Said {
        calls,
        ..Said::default()
    }
}

// ---- The forms -------------------------------------------------------------------------------

fn in_form(form: Form, id: &str, said: &Said, counted: bool, rng: &mut Rng) -> Value {
    let (input, output) = (100 + rng.below(100), 10 + rng.below(20));
    let mut body = match form {
        Form::Chat => {
            let calls = said.calls.iter().map(|call| {
                let mut function = json!({ "name": call.name });
                put_text(&mut function, "arguments", &call.written);
                let mut entry = json!({ "type": "function", "function": function });
                put_id(&mut entry, "id", call);
                entry
            });
            let finish = match said {
                Said { length: true, .. } => "length",
                Said { refused: true, .. } => "content_filter",
                Said { calls, .. } if calls.is_empty() => "stop",
                _ => "tool_calls",
            };
            json!({
                "id": id, "object": "chat.completion", "model": "m",
                "choices": [{ "index": 0, "finish_reason": finish, "message": {
                    "role": "assistant", "content": said.text, "tool_calls": calls.collect::<Vec<_>>(),
                } }],
                "usage": { "prompt_tokens": input, "completion_tokens": output },
            })
        }
        Form::Responses => {
            let mut items =
                vec![json!({ "type": "reasoning", "id": format!("rs-{id}"), "summary": [] })];
            if let Some(text) = &said.text {
                let part = match said.refused {
                    true => json!({ "type": "refusal", "refusal": text }),
                    false => json!({ "type": "output_text", "text": text }),
                };
                items.push(json!({ "type": "message", "role": "assistant", "content": [part] }));
            }
            for (place, call) in said.calls.iter().enumerate() {
                let mut item = json!({ "type": "function_call", "id": format!("fc-{id}-{place}"), "name": call.name });
                put_text(&mut item, "arguments", &call.written);
                put_id(&mut item, "call_id", call);
                items.push(item);
            }
            let mut body = json!({
                "id": id, "object": "response", "model": "m", "status": "completed", "output": items,
                "usage": { "input_tokens": input, "output_tokens": output },
            });
            if said.length {
                body["status"] = "incomplete".into();
                body["incomplete_details"] = json!({ "reason": "max_output_tokens" });
            }
            body
        }
        Form::Anthropic => {
            let mut blocks = Vec::new();
            if let Some(text) = &said.text {
                blocks.push(json!({ "type": "text", "text": text }));
            }
            for call in &said.calls {
                let mut block = json!({ "type": "tool_use", "name": call.name });
                match &call.written {
                    Written::Absent => {}
                    Written::Text(text) => block["input"] = text.as_str().into(),
                    Written::Object(value) => block["input"] = value.clone(),
                }
                put_id(&mut block, "id", call);
                blocks.push(block);
            }
            let stop = match said {
                Said { length: true, .. } => "max_tokens",
                Said { refused: true, .. } => "refusal",
                Said { paused: true, .. } => "pause_turn",
                Said { calls, .. } if calls.is_empty() => "end_turn",
                _ => "tool_use",
            };
            json!({
                "id": id, "type": "message", "role": "assistant", "model": "m",
                "content": blocks, "stop_reason": stop,
                "usage": { "input_tokens": input, "output_tokens": output },
            })
        }
    };
    if !counted {
        body.as_object_mut().unwrap().remove("usage");
    }
    body
}

fn put_id(entry: &mut Value, member: &str, call: &Call) {
    if let Some(id) = &call.id {
        entry[member] = id.as_str().into();
    }
}

/// Arguments where the form has them as text.
fn put_text(entry: &mut Value, member: &str, written: &Written) {
    match written {
        Written::Absent => {}
        Written::Text(text) => entry[member] = text.as_str().into(),
        Written::Object(Value::Null) => entry[member] = Value::Null,
        Written::Object(value) => entry[member] = json::write(value).into(),
    }
}

fn offered(form: Form, body: &Value) -> Vec<String> {
    let tools = body.get("tools").and_then(Value::as_array);
    let names = tools.into_iter().flatten().map(|tool| match form {
        Form::Chat => &tool["function"]["name"],
        Form::Responses | Form::Anthropic => &tool["name"],
    });
    names
        .map(|name| name.as_str().expect("a name").to_owned())
        .collect()
}

/// The ids of all calls of the conversation. Each has exactly one result, at once and in its order; no
/// id comes twice; and what else providers insist on.
fn paired(form: Form, body: &Value) -> Vec<String> {
    let (ids, results) = match form {
        Form::Chat => paired_in_chat(body),
        Form::Responses => paired_in_responses(body),
        Form::Anthropic => paired_in_messages(body),
    };
    assert_eq!(ids, results, "{form:?}: calls and results: {body}");
    let mut distinct = ids.clone();
    distinct.sort();
    distinct.dedup();
    assert_eq!(
        distinct.len(),
        ids.len(),
        "{form:?}: an id came twice: {body}"
    );
    assert!(
        ids.iter().all(|id| !id.is_empty()),
        "{form:?}: an empty id: {body}"
    );
    ids
}

fn text_of<'v>(value: &'v Value, member: &str) -> &'v str {
    let text = value.get(member).and_then(Value::as_str);
    text.unwrap_or_else(|| panic!("{member} is no text in {value}"))
}

fn a_name(name: &str) {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
    assert!(
        !name.is_empty() && name.len() <= 64 && name.chars().all(fits),
        "{name:?}"
    );
}

fn an_object(text: &str) {
    let read = json::read(text.as_bytes()).expect("arguments are JSON");
    assert!(read.is_object(), "arguments are no object: {text}");
}

fn paired_in_chat(body: &Value) -> (Vec<String>, Vec<String>) {
    let (mut ids, mut results) = (Vec::new(), Vec::new());
    for message in body["messages"].as_array().expect("messages") {
        match text_of(message, "role") {
            "tool" => {
                results.push(text_of(message, "tool_call_id").to_owned());
                text_of(message, "content");
                assert!(
                    results.len() <= ids.len() && results == ids[..results.len()],
                    "{body}"
                );
            }
            role => {
                assert_eq!(ids, results, "{role} before all results: {body}");
                let calls = message
                    .get("tool_calls")
                    .map(|calls| calls.as_array().expect("calls"));
                assert!(calls.is_none_or(|calls| !calls.is_empty()), "{body}");
                let content = message
                    .get("content")
                    .is_some_and(|content| !content.is_null());
                assert!(content || calls.is_some(), "an empty message: {body}");
                for call in calls.into_iter().flatten() {
                    assert_eq!(role, "assistant");
                    ids.push(text_of(call, "id").to_owned());
                    a_name(text_of(&call["function"], "name"));
                    an_object(text_of(&call["function"], "arguments"));
                }
            }
        }
    }
    (ids, results)
}

fn paired_in_responses(body: &Value) -> (Vec<String>, Vec<String>) {
    let (mut ids, mut results) = (Vec::new(), Vec::new());
    for item in body["input"].as_array().expect("input") {
        match text_of(item, "type") {
            "function_call" => {
                ids.push(text_of(item, "call_id").to_owned());
                a_name(text_of(item, "name"));
                an_object(text_of(item, "arguments"));
            }
            "function_call_output" => {
                results.push(text_of(item, "call_id").to_owned());
                text_of(item, "output");
                assert!(
                    results.len() <= ids.len() && results == ids[..results.len()],
                    "{body}"
                );
            }
            "message" if item["role"] == "user" => {
                assert_eq!(ids, results, "a message before all results: {body}");
            }
            _ => {}
        }
    }
    (ids, results)
}

fn paired_in_messages(body: &Value) -> (Vec<String>, Vec<String>) {
    let (mut ids, mut results): (Vec<String>, Vec<String>) = Default::default();
    let mut roles = ["user", "assistant"].into_iter().cycle();
    for message in body["messages"].as_array().expect("messages") {
        assert_eq!(
            roles.next(),
            Some(text_of(message, "role")),
            "roles alternate: {body}"
        );
        let blocks = message["content"].as_array().expect("blocks");
        assert!(!blocks.is_empty(), "an empty message: {body}");
        for block in blocks {
            match text_of(block, "type") {
                "tool_use" => {
                    assert_eq!(message["role"], "assistant", "{body}");
                    ids.push(text_of(block, "id").to_owned());
                    a_name(text_of(block, "name"));
                    assert!(block["input"].is_object(), "{body}");
                }
                "tool_result" => {
                    assert_eq!(message["role"], "user", "{body}");
                    results.push(text_of(block, "tool_use_id").to_owned());
                    assert!(
                        results.len() <= ids.len() && results == ids[..results.len()],
                        "{body}"
                    );
                }
                "text" => {
                    assert!(
                        !text_of(block, "text").trim().is_empty(),
                        "an empty text: {body}"
                    );
                    if message["role"] == "user" {
                        assert_eq!(ids, results, "text before all results: {body}");
                    }
                }
                _ => {}
            }
        }
        if message["role"] == "user" {
            assert_eq!(ids, results, "results in the message after: {body}");
        }
    }
    (ids, results)
}

fn reply(status: u16, body: &str, retry_after: Option<&str>) -> Answer {
    Answer::Reply(Reply {
        hints: Vec::new(),
        status,
        retry_after: retry_after.map(str::to_owned),
        content_type: Some("application/json".into()),
        callback_honoured: false,
        body: body.as_bytes().to_vec(),
    })
}

fn cut(kind: TransportKind) -> Answer {
    Answer::Transport(Transport {
        kind,
        message: format!("{kind:?}"),
    })
}
