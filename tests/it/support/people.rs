//! Those outside: people who answer, services that signal, tools that call back, operators who pause,
//! cancel and retry. Each may ask twice, late, or in the middle of something else.

use dormouse::decide::{Answer, Control};
use dormouse::flow::front;
use dormouse::flow::relay::ask;
use dormouse::http::{self, Body, Config, Request};
use dormouse::json::Json;
use dormouse::ports::{Fault, RunOp, World};
use dormouse::run::event::{DeadLetterReason, Decision, RequestRef, Settlement};
use dormouse::run::{Phase, State};
use dormouse::tool::{Answer as ToolAnswer, OutboundRequest};
use dormouse::words::{ApprovalId, DeadLetterId, RunId, TenantId};
use serde_json::json;

use super::world::Sim;

/// The signals that plans wait for.
pub const SIGNALS: [&str; 3] = ["go", "paid", "refused"];

pub fn tenant() -> TenantId {
    TenantId::parse("acme").unwrap()
}

/// Whatever happens to one run from outside, at random times.
pub fn attend(world: &Sim, run_id: &RunId) {
    let weather = world.0.borrow().weather;
    if !weather.people {
        return;
    }
    let chance = |percent| world.0.borrow_mut().rng.percent(percent);
    for (number, name) in SIGNALS.into_iter().enumerate() {
        if chance(60) {
            let copies = if chance(20) { 2 } else { 1 };
            for _ in 0..copies {
                let key = format!("key-{number}");
                at_some_time(world, run_id, 60_000, signal(name, &key));
            }
        }
    }
    if chance(weather.cancels) {
        at_some_time(world, run_id, 20_000, control(Control::Cancel));
    }
    if chance(weather.pauses) {
        at_some_time(world, run_id, 30_000, control(Control::Pause));
        at_some_time(world, run_id, 60_000, control(Control::Resume));
    }
    if chance(30) {
        retry_at_some_time(world, run_id);
    }
    for _ in 0..4 {
        answer_at_some_time(world, run_id);
    }
    for _ in 0..2 {
        settle_at_some_time(world, run_id);
    }
    for _ in 0..2 {
        if chance(40) {
            let more = world.0.borrow_mut().rng.below(12);
            at_some_time(world, run_id, 90_000, raise(more));
        }
    }
}

fn retry_at_some_time(world: &Sim, run_id: &RunId) {
    let after_ms = world.0.borrow_mut().rng.below(120_000) as i64;
    let (world, run_id) = (world.clone(), run_id.clone());
    world.clone().spawn(async move {
        world.sleep(after_ms).await;
        drop(front::retry_run(&world, &tenant(), &run_id, None, None).await);
    });
}

fn control(control: Control) -> RunOp {
    RunOp::Control {
        control,
        comment: None,
        request: None,
    }
}

pub fn signal(name: &str, key: &str) -> RunOp {
    RunOp::Signal {
        name: name.to_owned(),
        payload: Json::new(json!({ "from": name })),
        request: Some(RequestRef {
            route: format!("POST signals/{name}"),
            key: key.to_owned(),
            fingerprint: "0".repeat(64),
        }),
    }
}

/// More of this or that; it is refused where it would be less.
fn raise(more: u64) -> RunOp {
    let limits = match more {
        0..3 => json!({ "max_steps": 10 + more * 10 }),
        3..6 => json!({ "max_rounds": more }),
        6..9 => json!({ "max_tokens": more * 500, "max_parallel": 3 }),
        9 => json!({ "max_steps": 150, "max_repeats": 9 }),
        _ => json!({ "max_steps": 60, "max_rounds": more, "max_repeats": 9, "max_tokens": 9_000 }),
    };
    RunOp::Raise {
        limits: Json::new(limits),
        comment: None,
        request: None,
    }
}

/// A fault here is a client whose request failed.
fn at_some_time(world: &Sim, run_id: &RunId, within_ms: u64, op: RunOp) {
    let after_ms = world.0.borrow_mut().rng.below(within_ms) as i64;
    let (world, run_id) = (world.clone(), run_id.clone());
    world.clone().spawn(async move {
        world.sleep(after_ms).await;
        drop(ask(&world, &tenant(), &run_id, op).await);
    });
}

/// A person looks what is asked, thinks, and answers: perhaps what somebody else has answered.
fn answer_at_some_time(world: &Sim, run_id: &RunId) {
    let draw = |n| world.0.borrow_mut().rng.below(n) as i64;
    let (look_ms, think_ms, mind) = (draw(60_000), draw(8_000), draw(100));
    let (world, run_id) = (world.clone(), run_id.clone());
    world.clone().spawn(async move {
        world.sleep(look_ms).await;
        let asked = pending(&world, &run_id);
        world.sleep(think_ms).await;
        for approval_id in asked {
            let decision = if mind < 75 {
                Decision::Approved
            } else {
                Decision::Rejected
            };
            drop(answer(&world, &run_id, approval_id, decision).await);
        }
    });
}

pub fn pending(world: &Sim, run_id: &RunId) -> Vec<ApprovalId> {
    let inner = world.0.borrow();
    let Some(state) = inner.state_on_disk(run_id) else {
        return Vec::new();
    };
    let pending = state.approvals.iter().filter(|a| a.verdict.is_none());
    pending.map(|a| a.approval_id.clone()).collect()
}

async fn answer(
    world: &Sim,
    run_id: &RunId,
    approval_id: ApprovalId,
    decision: Decision,
) -> Result<(), Fault> {
    let answer = Answer {
        decision,
        data: None,
        comment: None,
        decided_by: "somebody".to_owned(),
        via: None,
    };
    let op = RunOp::Answer {
        approval_id,
        answer,
        request: None,
    };
    ask(world, &tenant(), run_id, op).await.map(drop)
}

/// A person goes through the dead letters of a run.
fn settle_at_some_time(world: &Sim, run_id: &RunId) {
    let draw = |n| world.0.borrow_mut().rng.below(n) as i64;
    let (look_ms, mind) = (draw(120_000), draw(100));
    let (world, run_id) = (world.clone(), run_id.clone());
    world.clone().spawn(async move {
        world.sleep(look_ms).await;
        let open: Vec<(DeadLetterId, bool, bool)> = {
            let inner = world.0.borrow();
            let state = inner.state_on_disk(&run_id);
            let letters = state.iter().flat_map(State::open_dead_letters);
            let unknown = |reason| reason == DeadLetterReason::OutcomeUnknown;
            let malformed = |reason| {
                let model = state
                    .as_ref()
                    .is_some_and(|state| state.agent.mind().is_some());
                let unfit = [
                    DeadLetterReason::InvalidArguments,
                    DeadLetterReason::UnknownTool,
                ];
                model && unfit.contains(&reason)
            };
            letters
                .map(|letter| {
                    let reason = letter.reason;
                    let id = letter.dead_letter_id.clone();
                    (id, unknown(reason), malformed(reason))
                })
                .collect()
        };
        for (dead_letter_id, unknown, malformed) in open {
            let settlement = match mind {
                0..60 if malformed => {
                    let arguments = json!({ "n": 100 + mind });
                    let payload = Json::new(json!({ "tool": "typed", "arguments": arguments }));
                    let supplied = (run_id.clone(), Json::new(arguments));
                    world.0.borrow_mut().supplied.push(supplied);
                    Settlement::Redelivered {
                        payload: Some(payload),
                        tools: Default::default(),
                    }
                }
                // Whoever has such a call made again takes that upon themselves: nobody does here.
                0..50 if !unknown => Settlement::Redelivered {
                    payload: None,
                    tools: Default::default(),
                },
                0..80 => Settlement::Resolved {
                    result: Json::new(json!({ "by": "a person" })),
                },
                _ => Settlement::Discarded { comment: None },
            };
            let op = RunOp::SettleDeadLetter {
                dead_letter_id,
                settlement,
                request: None,
            };
            drop(ask(&world, &tenant(), &run_id, op).await);
        }
    });
}

/// A tool that has answered 202 calls back: late, early, twice, with success or not, or never.
pub fn call_back_later(world: &Sim, request: &OutboundRequest, called: &Result<ToolAnswer, Fault>) {
    let header = |name: &str| {
        let found = request
            .headers
            .iter()
            .find(|(n, _)| n.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.clone())
    };
    let accepted = match called {
        Ok(ToolAnswer::Reply(reply)) => reply.status == 202,
        // It may have taken the call, and its answer was lost.
        _ => {
            let key = header("idempotency-key").unwrap_or_default();
            request.loggable_url.ends_with("/later") && world.0.borrow().sink.acted(&key) > 0
        }
    };
    let Some(url) = header("dormouse-callback").filter(|_| accepted) else {
        return;
    };
    let draw = |n| world.0.borrow_mut().rng.below(n);
    let (fate, delay_ms) = (draw(100), draw(45_000) as i64);
    let body = match fate {
        0..5 => return,
        5..20 => r#"{"status":"failed","error":{"message":"busy"},"retryable":true}"#,
        20..25 => r#"{"status":"failed","error":{"message":"no"}}"#,
        _ => r#"{"status":"succeeded","result":{"id":9007199254740993}}"#,
    };
    let copies = if fate > 85 { 2 } else { 1 };
    for copy in 0..copies {
        let (world, url) = (world.clone(), url.clone());
        world.clone().spawn(async move {
            world.sleep(delay_ms + copy * 700).await;
            // A tool that was told to come again comes again.
            for _ in 0..20 {
                if post(&world, &url, body).await < 500 {
                    return;
                }
                world.sleep(2_000).await;
            }
        });
    }
}

async fn post(world: &Sim, url: &str, body: &str) -> u16 {
    let path = url
        .strip_prefix("https://dormouse.example")
        .expect("our origin");
    let request = Request {
        method: "POST".to_owned(),
        origin: None,
        path: path.to_owned(),
        query: None,
        headers: Vec::new(),
        body: Body::Bytes(body.as_bytes().to_vec()),
    };
    http::respond(world, &Config::default(), request)
        .await
        .status
}

/// At the end of the story everyone does what is left to be done, until nothing is.
pub async fn settle_everything(world: &Sim) {
    for round in 0..40 {
        let runs: Vec<RunId> = world.0.borrow().objects.keys().cloned().collect();
        let mut nothing_left = true;
        for run_id in runs {
            let Some(state) = world.0.borrow().state_on_disk(&run_id) else {
                continue;
            };
            for op in wanted(&state, round) {
                nothing_left = false;
                drop(ask(world, &tenant(), &run_id, op).await);
            }
            for approval_id in pending(world, &run_id) {
                nothing_left = false;
                drop(answer(world, &run_id, approval_id, Decision::Approved).await);
            }
        }
        if nothing_left {
            return;
        }
        world.sleep(600_000).await;
    }
}

/// What an open run waits for that a person or a service can give.
fn wanted(state: &State, round: usize) -> Vec<RunOp> {
    if state.status.is_end() {
        return Vec::new();
    }
    let mut wanted = Vec::new();
    if state.paused_at.is_some() {
        wanted.push(control(Control::Resume));
    }
    if let Some(reached) = &state.reached {
        let more = if reached.limit == "max_tokens" {
            1_000_000
        } else {
            1_000
        };
        wanted.push(RunOp::Raise {
            limits: Json::new(json!({ &reached.limit: more + round })),
            comment: Some("go on".to_owned()),
            request: None,
        });
    }
    for step in &state.steps {
        if let Phase::AwaitingSignal { names, .. } = &step.phase {
            let key = format!("last-{round}-{}", step.id);
            wanted.push(signal(&names[0], &key));
        }
    }
    wanted
}
