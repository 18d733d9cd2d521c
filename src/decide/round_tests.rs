//! A planner that is asked, round by round, without any worker, queue or network.

use serde_json::json;

use super::*;
use crate::decide::{Claim, ClaimReply, Input, Reply, Report, Settle, decide, start};
use crate::model::{Message, Usage};
use crate::run::event::{PinnedTool, RunCreated, Settlement};
use crate::run::state::Status;
use crate::run::{Identity, diagnosis};

/// A run with a model whose answers the test gives.
struct Run {
    state: State,
    now: Timestamp,
}

fn tool(parameters: Value) -> PinnedTool {
    let definition = json!({ "parameters": parameters, "http": { "url": "https://t.example/" } });
    PinnedTool {
        version: 1,
        definition: Json::new(definition),
    }
}

fn planner(more: Value) -> Value {
    let mut planner = json!({ "kind": "model", "models": [{ "provider": "openai", "name": "m" }] });
    planner
        .as_object_mut()
        .unwrap()
        .extend(more.as_object().unwrap().clone());
    planner
}

impl Run {
    fn of(planner: Value, limits: Value) -> Self {
        let now = Timestamp::from_ms(1_000_000);
        let identity = Identity {
            run_id: RunId::derive(now, "run"),
            tenant_id: TenantId::parse("acme").unwrap(),
            trace_id: TraceId::derive("trace"),
        };
        let pay = tool(
            json!({ "type": "object", "required": ["amount"], "properties": { "amount": { "type": "integer" } } }),
        );
        let created = RunCreated {
            agent: Some("buyer@1".into()),
            definition: Json::new(
                json!({ "tools": ["pay"], "planner": planner, "limits": limits }),
            ),
            input: Json::new(json!("Buy")),
            tags: Default::default(),
            tools: [("pay".to_owned(), pay)].into(),
            started_by: None,
            parent: None,
            origin: None,
        };
        let turn = start(identity, created, now, 7).unwrap();
        Self {
            state: turn.state,
            now,
        }
    }

    fn give(&mut self, input: Input) -> Result<Reply, Refusal> {
        self.now = self.now.plus_ms(10);
        let mut turn = Turn::new(self.state.clone(), self.now, 7);
        let reply = decide(&mut turn, input)?;
        self.state = turn.state;
        Ok(reply)
    }

    /// Claims the step that is ready, if one is.
    fn claim(&mut self) -> Option<(u32, u64, ClaimReply)> {
        let ready = |(_, step): &(u32, &Step)| matches!(step.phase, Phase::Ready { .. });
        let (step_index, step) = self.state.steps_indexed().find(ready)?;
        let idempotency_key = step.idempotency_key().unwrap().to_owned();
        let claim = Claim {
            step_index,
            idempotency_key,
        };
        let Reply::Claim(reply) = self.give(Input::Claim(claim)).unwrap() else {
            panic!()
        };
        Some((step_index, self.state.token, reply))
    }

    fn settle(&mut self, step_index: u32, token: u64, report: Report) {
        let settle = Settle {
            step_index,
            token,
            report,
            duplicates_suppressed: 0,
            wants_next: false,
        };
        self.give(Input::Settle(settle)).unwrap();
    }

    /// Answers the round that is asked for, and then every tool it calls. Gives what the model was
    /// asked with.
    fn round(&mut self, text: Option<&str>, calls: &[(&str, &str, &str)]) -> Conversation {
        let (index, token, reply) = self.claim().unwrap();
        let ClaimReply::Asked(asked) = reply else {
            panic!("{reply:?}")
        };
        let Asked::Model(conversation) = asked.asked else {
            panic!()
        };
        let calls = calls.iter().map(|(id, name, arguments)| RawCall {
            id: Some((*id).to_owned()),
            name: (*name).to_owned(),
            arguments: RawArguments::Text((*arguments).to_owned()),
        });
        let said = ModelAnswer {
            text: text.map(str::to_owned),
            calls: calls.collect(),
            finish: Finish::Done,
            usage: Some(Usage {
                input_tokens: 10,
                output_tokens: 5,
            }),
            model: None,
        };
        self.settle(
            index,
            token,
            Report::Planned(Box::new(planned(Some(said), json!({})))),
        );
        self.tools();
        *conversation
    }

    fn tools(&mut self) {
        loop {
            let ready = |(_, s): &(u32, &Step)| matches!(s.phase, Phase::Ready { .. });
            let next = self.state.steps_indexed().find(ready);
            if next.is_none_or(|(_, step)| step.ask.is_some()) {
                return;
            }
            let (index, token, reply) = self.claim().unwrap();
            assert!(matches!(reply, ClaimReply::Granted(_)), "{reply:?}");
            let report = Report::Completed {
                result: Json::new(json!({ "ok": true })),
                status_code: Some(200),
            };
            self.settle(index, token, report);
        }
    }

    fn statuses(&self) -> Vec<&'static str> {
        self.state.steps.iter().map(Step::status).collect()
    }

    fn blockers(&self) -> Vec<&'static str> {
        let diagnosis = diagnosis::diagnose(&self.state);
        diagnosis.blockers.iter().map(|b| b.kind).collect()
    }
}

fn planned(said: Option<ModelAnswer>, answer: Value) -> Planned {
    let usage = said
        .as_ref()
        .and_then(|said| said.usage)
        .unwrap_or_default();
    Planned {
        tries: vec![Try {
            provider: if said.is_some() { "openai" } else { "http" }.into(),
            model: "m".into(),
            outcome: "answered".into(),
            status_code: None,
            code: None,
            message: None,
            latency_ms: 1,
            input_tokens: usage.input_tokens,
            output_tokens: usage.output_tokens,
            estimated: false,
        }],
        answer: Json::new(answer),
        said,
    }
}

fn results(conversation: &Conversation) -> Vec<(String, bool)> {
    let Some(Message::Results(results)) = conversation.messages.last() else {
        panic!("{conversation:?}")
    };
    let pair = |r: &crate::model::CallResult| (r.id.clone(), r.is_error);
    results.iter().map(pair).collect()
}

const GOOD: (&str, &str, &str) = ("a", "pay", r#"{"amount":1}"#);

#[test]
fn a_text_ends_the_run() {
    let mut run = Run::of(planner(json!({})), json!({}));
    run.round(Some("done"), &[]);
    assert_eq!(run.state.status, Status::Completed);
    assert_eq!(*run.state.output, json!("done"));
    assert_eq!((run.state.tokens.input, run.state.tokens.output), (10, 5));
}

#[test]
fn every_call_has_one_result_in_its_place() {
    let mut run = Run::of(planner(json!({})), json!({}));
    let calls = [
        GOOD,
        ("a", "pay", r#"{"amount":1"#),
        ("", "pay", r#"{"amount":"1"}"#),
        ("b", "nothing", ""),
        ("c", "pay", r#""{\"amount\":1}""#),
        ("d", "pay", "```json\n{\"amount\":1}\n```"),
        ("e", "pay", ""),
    ];
    run.round(None, &calls);
    assert_eq!(run.statuses(), ["completed", "completed", "scheduled"]);
    let asked = run.round(Some("done"), &[]);
    let expected = [
        ("a", false),
        ("call_r1_2", true),
        ("call_r1_3", true),
        ("b", true),
        ("c", true),
        ("d", true),
        ("e", true),
    ];
    assert_eq!(results(&asked), expected.map(|(id, e)| (id.to_owned(), e)));
    assert_eq!(run.state.status, Status::Completed);
}

#[test]
fn what_stays_malformed_is_a_person_s_and_the_rest_goes_on() {
    let mut run = Run::of(planner(json!({ "repair": { "attempts": 1 } })), json!({}));
    run.round(None, &[("x", "pay", "{")]);
    run.round(None, &[GOOD, ("x", "pay", "{")]);
    assert_eq!(run.state.status, Status::Blocked);
    assert_eq!(run.blockers(), ["dead_letter"]);
    assert_eq!(
        run.statuses(),
        ["completed", "completed", "completed", "dead_lettered"]
    );
    let letter = run.state.dead_letters[0].clone();
    assert_eq!(letter.reason, DeadLetterReason::InvalidArguments);
    assert!(
        letter
            .message
            .starts_with("the model's output stayed invalid")
    );
    let request = letter.request.unwrap();
    assert_eq!(
        (request.tool.as_str(), &*request.arguments),
        ("pay", &json!("{"))
    );
    let payload = Json::new(json!({ "tool": "pay", "arguments": { "amount": 2 } }));
    run.give(Input::SettleDeadLetter {
        dead_letter_id: letter.dead_letter_id,
        settlement: Settlement::Redelivered {
            payload: Some(payload),
            tools: Default::default(),
        },
        request: None,
    })
    .unwrap();
    run.tools();
    let asked = run.round(Some("done"), &[]);
    assert_eq!(results(&asked).len(), 2);
    assert!(results(&asked).iter().all(|(_, is_error)| !is_error));
    assert_eq!(run.state.status, Status::Completed);
}

#[test]
fn an_answer_that_stays_no_output_is_a_person_s() {
    let more = json!({ "output_schema": { "type": "object", "required": ["n"] } });
    let mut run = Run::of(planner(more), json!({}));
    run.round(Some("well"), &[]);
    let asked = run.round(None, &[]);
    assert!(
        matches!(asked.messages.last(), Some(Message::User(flaw)) if flaw.contains("not the output"))
    );
    run.round(Some("{}"), &[]);
    assert_eq!(run.state.status, Status::Blocked);
    assert_eq!(
        run.state.dead_letters[0].reason,
        DeadLetterReason::InvalidResult
    );
    let dead_letter_id = run.state.dead_letters[0].dead_letter_id.clone();
    let result = |n| Settlement::Resolved {
        result: Json::new(n),
    };
    let mut settle = |settlement| {
        run.give(Input::SettleDeadLetter {
            dead_letter_id: dead_letter_id.clone(),
            settlement,
            request: None,
        })
    };
    assert!(matches!(
        settle(result(json!(1))),
        Err(Refusal::Invalid { .. })
    ));
    settle(result(json!({ "n": 1 }))).unwrap();
    assert_eq!(run.state.status, Status::Completed);
    assert_eq!(*run.state.output, json!({ "n": 1 }));
}

#[test]
fn finish_ends_the_run_when_it_is_alone() {
    let more = json!({ "output_schema": { "type": "integer" } });
    let mut run = Run::of(planner(more), json!({}));
    run.round(None, &[GOOD, ("f", "finish", r#"{"output":1}"#)]);
    let asked = run.round(
        None,
        &[("g", "finish", r#"{"output":18446744073709551616}"#)],
    );
    assert_eq!(
        results(&asked),
        [("a".to_owned(), false), ("f".to_owned(), true)]
    );
    assert_eq!(run.state.status, Status::Completed);
    assert_eq!(run.state.output.to_string(), "18446744073709551616");
}

fn raise(run: &mut Run, limits: Value) -> Result<Reply, Refusal> {
    run.give(Input::Raise {
        limits: Json::new(limits),
        comment: None,
        request: None,
    })
}

#[test]
fn a_limit_holds_the_run_until_it_is_raised() {
    for (limits, limit, raised) in [
        (
            json!({ "max_rounds": 2 }),
            "max_rounds",
            json!({ "max_rounds": 3 }),
        ),
        (
            json!({ "max_steps": 4 }),
            "max_steps",
            json!({ "max_steps": 5 }),
        ),
        (
            json!({ "max_tokens": 40 }),
            "max_tokens",
            json!({ "max_tokens": 45 }),
        ),
    ] {
        let mut run = Run::of(planner(json!({})), limits);
        for amount in 0..2 {
            run.round(None, &[("a", "pay", &format!(r#"{{"amount":{amount}}}"#))]);
        }
        assert_eq!(run.state.status, Status::Waiting, "{limit}");
        assert_eq!(run.state.reached.as_ref().unwrap().limit, limit);
        assert_eq!(run.blockers(), ["limit"]);
        assert!(matches!(
            raise(&mut run, json!({ limit: 1 })),
            Err(Refusal::Invalid { .. })
        ));
        raise(&mut run, raised).unwrap();
        assert_eq!(run.blockers(), ["lease"], "{limit}");
        run.round(Some("done"), &[]);
        assert_eq!(run.state.status, Status::Completed);
    }
}

#[test]
fn the_same_again_and_again_is_noticed() {
    let mut run = Run::of(planner(json!({})), json!({}));
    for round in 0..6 {
        assert!(run.state.reached.is_none(), "{round}");
        // Two calls in turn are a loop as well.
        let amount = round % 2;
        run.round(None, &[("a", "pay", &format!(r#"{{"amount":{amount}}}"#))]);
    }
    assert!(run.state.reached.is_none());
    run.round(None, &[("a", "pay", r#"{"amount":0}"#)]);
    assert_eq!(run.state.reached.as_ref().unwrap().limit, "max_repeats");
    // That nobody looked for a day does not make the loop a slow one.
    run.now = run.now.plus_ms(86_400_000);
    raise(&mut run, json!({ "max_repeats": 6 })).unwrap();
    assert_eq!(run.blockers(), ["lease"]);
    run.round(None, &[("a", "pay", r#"{"amount":1}"#)]);
    assert_eq!(run.blockers(), ["limit"]);
}

#[test]
fn what_comes_slowly_is_no_loop() {
    let mut run = Run::of(planner(json!({ "engine_tools": ["sleep"] })), json!({}));
    for _ in 0..20 {
        run.round(None, &[GOOD, ("s", "sleep", r#"{"duration":"PT2M"}"#)]);
        run.now = run.now.plus_ms(200_000);
        run.give(Input::Tick).unwrap();
    }
    assert_eq!(run.blockers(), ["lease"]);
}

#[test]
fn a_long_conversation_is_summed_up() {
    let small =
        json!({ "models": [{ "provider": "openai", "name": "m", "context_tokens": 1_000 }] });
    let mut run = Run::of(planner(small), json!({}));
    let text = "x".repeat(800);
    let mut rounds = 0;
    let mut longest = 0;
    while rounds < 30 {
        let sums_up = run.state.steps.last().unwrap().id.starts_with("summary");
        let asked = if sums_up {
            run.round(Some("paid, and paid again"), &[])
        } else {
            rounds += 1;
            run.round(
                Some(&text),
                &[("a", "pay", &format!(r#"{{"amount":{rounds}}}"#))],
            )
        };
        longest = longest.max(serde_json::to_string(&asked).unwrap().len());
        if sums_up {
            assert!(asked.tools.is_empty());
        } else if run.state.summary.is_some() {
            let Message::User(first) = &asked.messages[0] else {
                panic!()
            };
            assert!(first.starts_with("Buy"), "{first}");
        }
    }
    assert!(longest < 8_000, "{longest}");
    let summary = run.state.summary.clone().unwrap();
    assert!(summary.to_round > 20 && summary.text == "paid, and paid again");
    run.round(Some("done"), &[]);
}

#[test]
fn a_service_decides_in_the_words_of_a_plan() {
    let mut run = Run::of(
        json!({ "kind": "http", "url": "https://p.example/" }),
        json!({}),
    );
    let answer = |run: &mut Run, answer: Value| {
        let (index, token, reply) = run.claim().unwrap();
        let ClaimReply::Asked(asked) = reply else {
            panic!()
        };
        let Asked::Http(body) = asked.asked else {
            panic!()
        };
        run.settle(
            index,
            token,
            Report::Planned(Box::new(planned(None, answer))),
        );
        run.tools();
        body
    };
    answer(
        &mut run,
        json!({ "intents": [
            { "id": "p", "tool": "pay", "arguments": { "amount": 1 } },
            { "tool": "pay", "arguments": { "amount": "{{ input }}" } },
            { "tool": "none" },
            { "emit": { "type": "x", "data": "{{ kept }}" } }
        ] }),
    );
    let body = answer(&mut run, json!({ "output": [1] }));
    let statuses: Vec<&str> = body["history"][0]["intents"]
        .as_array()
        .unwrap()
        .iter()
        .map(|intent| intent["status"].as_str().unwrap())
        .collect();
    assert_eq!(statuses, ["succeeded", "failed", "failed", "succeeded"]);
    assert_eq!(run.state.status, Status::Completed);
    assert_eq!(*run.state.output, json!([1]));
}
