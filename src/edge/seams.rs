//! The test seams: routes under `/dev` that break things on purpose. Only in a build with the
//! feature `test-seams`, and only where `TEST_SEAMS=1`.
//!
//! What is set here is of the whole isolate, which locally is the whole deployment.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use js_sys::Promise;
use serde_json::{Value, json};
use wasm_bindgen::{JsValue, prelude::wasm_bindgen};

use crate::flow::relay::relay;
use crate::http::{Body, Request, Response};
use crate::json;
use crate::ports::{Failpoint, Fault, RunCall, RunOp, RunResult, World};
use crate::words::{DurationMs, RunId, TenantId};

use super::entry::sweep_all;
use super::js;
use super::world::Edge;

#[derive(Clone, Copy, PartialEq)]
enum Action {
    Error,
    Panic,
    /// Runs out of stack: not a panic, a trap of the whole instance.
    Overflow,
    Delay,
}

impl Action {
    const NAMES: [(&str, Self); 4] = [
        ("error", Self::Error),
        ("panic", Self::Panic),
        ("overflow", Self::Overflow),
        ("delay", Self::Delay),
    ];
}

struct Armed {
    action: Action,
    times: u64,
    delay_ms: u32,
}

#[derive(Clone, Copy, Default, PartialEq)]
enum KvMode {
    #[default]
    Normal,
    Absent,
    Error,
    Slow,
}

thread_local! {
    static FAILPOINTS: RefCell<BTreeMap<Failpoint, Armed>> = const { RefCell::new(BTreeMap::new()) };
    static KV: Cell<KvMode> = const { Cell::new(KvMode::Normal) };
    static KV_READS: Cell<u64> = const { Cell::new(0) };
    static KV_WRITES: Cell<u64> = const { Cell::new(0) };
}

const KV_SLOW_MS: u32 = 5_000;

const NAMES: [(&str, Failpoint); 10] = [
    ("front.after_commit", Failpoint::FrontAfterCommit),
    ("front.after_send", Failpoint::FrontAfterSend),
    ("consumer.received", Failpoint::ConsumerReceived),
    ("consumer.claimed", Failpoint::ConsumerClaimed),
    ("consumer.after_tool", Failpoint::ConsumerAfterTool),
    ("work.after_tool", Failpoint::ConsumerAfterTool),
    ("consumer.settled", Failpoint::ConsumerSettled),
    ("alarm.entered", Failpoint::AlarmEntered),
    ("outbox.before_send", Failpoint::OutboxBeforeSend),
    ("outbox.after_send", Failpoint::OutboxAfterSend),
];

/// For the entry module, which drops an object when it is asked to.
#[wasm_bindgen]
pub fn has_test_seams() -> bool {
    true
}

/// Passes a failpoint, or does what it was armed to do.
pub async fn pass(point: Failpoint) -> Result<(), Fault> {
    let hit = FAILPOINTS.with_borrow_mut(|armed| {
        let entry = armed.get_mut(&point).filter(|entry| entry.times > 0)?;
        entry.times -= 1;
        Some((entry.action, entry.delay_ms))
    });
    match hit {
        None => Ok(()),
        Some((Action::Error, _)) => Err(Fault::new("pass", format!("{point:?}"), "failpoint")),
        #[allow(clippy::panic, reason = "a test asked for it")]
        Some((Action::Panic, _)) => panic!("failpoint {point:?}"),
        Some((Action::Overflow, _)) => Err(Fault::new("count", "frames", overflow(0).to_string())),
        Some((Action::Delay, ms)) => {
            js::pause(ms).await.ok();
            Ok(())
        }
    }
}

#[allow(unconditional_recursion, reason = "a test asked for it")]
fn overflow(depth: u64) -> u64 {
    let frame = std::hint::black_box([depth; 64]);
    overflow(depth + 1) + frame.iter().sum::<u64>()
}

/// What a read of KV answers instead of asking; `None`: ask.
pub async fn kv_read() -> Option<Result<Option<String>, Fault>> {
    KV_READS.set(KV_READS.get() + 1);
    match KV.get() {
        KvMode::Normal => None,
        KvMode::Absent => Some(Ok(None)),
        KvMode::Error => Some(Err(Fault::new("read from", "OUTCOMES", "kv mode error"))),
        KvMode::Slow => {
            js::pause(KV_SLOW_MS).await.ok();
            None
        }
    }
}

pub async fn kv_write() -> Result<(), Fault> {
    KV_WRITES.set(KV_WRITES.get() + 1);
    match KV.get() {
        KvMode::Normal | KvMode::Absent => Ok(()),
        KvMode::Error => Err(Fault::new("write to", "OUTCOMES", "kv mode error")),
        KvMode::Slow => {
            js::pause(KV_SLOW_MS).await.ok();
            Ok(())
        }
    }
}

pub async fn respond(world: &Edge, request: Request) -> Response {
    let body = match &request.body {
        Body::Bytes(bytes) if bytes.is_empty() => Value::Null,
        Body::Bytes(bytes) => json::read(bytes).unwrap_or_default(),
        Body::TooLarge => Value::Null,
    };
    let path: Vec<&str> = request.path.split('/').skip(2).collect();
    let answered = match (request.method.as_str(), path.as_slice()) {
        ("POST", ["failpoints"]) => arm(&body),
        ("DELETE", ["failpoints"]) => {
            FAILPOINTS.with_borrow_mut(BTreeMap::clear);
            Ok(json!({}))
        }
        ("GET", ["failpoints"]) => Ok(armed()),
        ("POST", ["kv"]) => set_kv(&body),
        ("GET", ["kv"]) => Ok(json!({ "reads": KV_READS.get(), "writes": KV_WRITES.get() })),
        ("POST", ["sweep"]) => sweep_all(world)
            .await
            .map_err(|fault| (503, fault.to_string()))
            .map(|findings| serde_json::to_value(findings).unwrap_or_default()),
        (method, ["runs", run_id, what]) => of_run(world, method, run_id, what, &body).await,
        _ => Err((404, "no such seam".to_owned())),
    };
    let (status, body) = match answered {
        Ok(body) => (200, body),
        Err((status, message)) => (
            status,
            json!({ "type": "/problems/dev", "title": message, "status": status }),
        ),
    };
    let content_type = if status == 200 {
        "application/json; charset=utf-8"
    } else {
        "application/problem+json"
    };
    Response {
        status,
        headers: vec![("content-type".to_owned(), content_type.to_owned())],
        body: body.to_string(),
        stream: None,
    }
}

type Answered = Result<Value, (u16, String)>;

fn arm(body: &Value) -> Answered {
    let name = body.get("name").and_then(Value::as_str).unwrap_or_default();
    let point = NAMES
        .iter()
        .find(|(known, _)| *known == name)
        .map(|(_, point)| *point);
    let point = point.ok_or_else(|| (422, format!("no failpoint {name:?}")))?;
    let wanted = body
        .get("action")
        .and_then(Value::as_str)
        .unwrap_or_default();
    let action = Action::NAMES.iter().find(|(known, _)| *known == wanted);
    let action = action
        .map(|(_, action)| *action)
        .ok_or_else(|| (422, format!("no action {wanted:?}")))?;
    let times = body.get("times").and_then(Value::as_u64).unwrap_or(1);
    let delay_ms = body.get("delay_ms").and_then(Value::as_u64).unwrap_or(0);
    let delay_ms = u32::try_from(delay_ms).unwrap_or(u32::MAX);
    FAILPOINTS.with_borrow_mut(|armed| {
        armed.insert(
            point,
            Armed {
                action,
                times,
                delay_ms,
            },
        )
    });
    Ok(json!({}))
}

/// What is armed still, by name.
fn armed() -> Value {
    FAILPOINTS.with_borrow(|armed| {
        let of = |point: &Failpoint| NAMES.iter().find(|(_, known)| known == point);
        let action = |wanted: Action| Action::NAMES.iter().find(|(_, known)| *known == wanted);
        armed
            .iter()
            .filter_map(|(point, entry)| {
                let (name, _) = of(point)?;
                let (action, _) = action(entry.action)?;
                Some((
                    (*name).to_owned(),
                    json!({ "action": action, "times": entry.times }),
                ))
            })
            .collect::<serde_json::Map<_, _>>()
            .into()
    })
}

fn set_kv(body: &Value) -> Answered {
    let mode = match body.get("mode").and_then(Value::as_str) {
        Some("normal") => KvMode::Normal,
        Some("absent") => KvMode::Absent,
        Some("error") => KvMode::Error,
        Some("slow") => KvMode::Slow,
        other => return Err((422, format!("no mode {other:?}"))),
    };
    KV.set(mode);
    Ok(json!({}))
}

async fn of_run(world: &Edge, method: &str, run_id: &str, what: &str, body: &Value) -> Answered {
    let run_id = RunId::parse(run_id).map_err(|e| (404, e.to_string()))?;
    let op = match (method, what) {
        ("POST", "clock") => {
            let text = body
                .get("advance")
                .and_then(Value::as_str)
                .unwrap_or_default();
            let advance = DurationMs::parse(text).map_err(|e| (422, e.to_string()))?;
            RunOp::AdvanceClock { ms: advance.ms() }
        }
        ("POST", "evict") => return evict(world, &run_id).await,
        ("POST", "redeliver") => {
            let number = |name: &str, default: u64| {
                body.get(name).and_then(Value::as_u64).unwrap_or(default)
            };
            RunOp::Redeliver {
                step_index: u32::try_from(number("step_index", 0)).unwrap_or(u32::MAX),
                copies: u32::try_from(number("copies", 1)).unwrap_or(1),
            }
        }
        ("GET", "internals") => RunOp::Internals,
        _ => return Err((404, "no such seam".to_owned())),
    };
    let tenant_id = TenantId::parse("dev").map_err(|e| (500, e.to_string()))?;
    let answer = world.run(&run_id, &RunCall { tenant_id, op }).await;
    let answer = answer.map_err(|fault| (503, fault.to_string()))?;
    relay(world, &answer.messages).await;
    match answer.result {
        Ok(RunResult::Shown(shown)) => Ok(json::read(shown.get().as_bytes()).unwrap_or_default()),
        Ok(_) => Ok(json!({})),
        Err(refusal) => Err((404, format!("{refusal:?}"))),
    }
}

#[wasm_bindgen]
extern "C" {
    type Objects;
    #[wasm_bindgen(method, catch, js_name = getByName)]
    fn get_by_name(this: &Objects, name: &str) -> Result<Stub, JsValue>;

    type Stub;
    #[wasm_bindgen(method, catch, js_name = evict)]
    fn evict_raw(this: &Stub) -> Result<Promise, JsValue>;
}

async fn evict(world: &Edge, run_id: &RunId) -> Answered {
    let dropped = async {
        let stub = js::binding::<Objects>(&world.env, "RUN")?.get_by_name(run_id.as_str())?;
        js::settled(stub.evict_raw()?).await
    };
    let dropped: Result<JsValue, js::Fault> = dropped.await;
    dropped
        .map(|_| json!({}))
        .map_err(|fault| (503, fault.message))
}
