//! What a run wants of the world, read off its state: the messages to send and the time to wake.
//!
//! The log's commit is the outbox's commit: a step that wants a worker *is* its entry, so nothing
//! can be stored without being owed, and nothing is owed that is not stored. Sending at once is for
//! speed; the alarm sends again whatever no worker has claimed in time.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::envelope::{Envelope, SCHEMA_VERSION};
use crate::json::Json;
use crate::run::event::Rounds;
use crate::run::log::event_id;
use crate::run::step::{Ask, Request};
use crate::run::{Phase, State, Step};
use crate::words::limits::MESSAGE_BYTES_SAFE;
use crate::words::{EventId, RunId, TenantId, Timestamp, TraceId, sha256_hex};

const PLAN_REQUESTED: &str = "plan.requested";

/// How long a message may go unanswered before it is sent again; doubled each time.
const RESEND_AFTER_MS: i64 = 3_000;
const RESEND_AFTER_MS_MAX: i64 = 60_000;

/// A message for the `work` queue: a step's envelope, or what stands for it, or an errand.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WorkMessage {
    Envelope(Envelope),
    /// An envelope too large for a queue: its payload is handed over with the claim.
    Reference(Reference),
    Errand(ErrandMessage),
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Reference {
    pub schema_version: String,
    pub event_id: EventId,
    pub event_type: String,
    pub tenant_id: TenantId,
    pub trace_id: TraceId,
    pub run_id: RunId,
    pub step_index: u32,
    pub idempotency_key: String,
    pub timestamp: Timestamp,
    pub payload_ref: PayloadRef,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PayloadRef {
    pub bytes: usize,
    pub sha256: String,
}

/// An errand as it travels: whose it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrandMessage {
    pub schema_version: String,
    pub tenant_id: TenantId,
    pub trace_id: TraceId,
    pub run_id: RunId,
    pub errand: Errand,
}

/// What a worker does between two runs, at the wish of one of them. It names runs and carries nothing:
/// both are asked for what is so when it is done.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Errand {
    StartChild {
        step_index: u32,
        child_run_id: RunId,
    },
    /// The child was called off with its step, whether it exists yet or not.
    CancelChild { child_run_id: RunId },
    /// The run has ended, by entry `seq` of its log, and its parent is to know.
    ReportEnd {
        parent_run_id: RunId,
        step_index: u32,
        seq: u64,
    },
}

/// The payload of `tool.requested`.
#[derive(Serialize)]
struct Payload<'a> {
    tool: &'a str,
    arguments: &'a Json,
}

/// The payload of `plan.requested`.
#[derive(Serialize)]
struct RoundPayload {
    round: u32,
    after_seq: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    summarises: Option<Rounds>,
}

/// What a run wants of the world by way of a message.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Wish {
    /// A worker for this step.
    Work(u32),
    Errand(Errand),
}

/// When the message of each wish was last sent, and which errands were done that no entry of the log
/// can tell of. In memory only: after a restart a wish counts as new, and at worst a copy too many is
/// turned away.
#[derive(Clone, Debug, Default)]
pub struct Sent {
    last: BTreeMap<Wish, Sending>,
    done: BTreeSet<Errand>,
}

#[derive(Clone, Copy, Debug)]
struct Sending {
    /// The wish this was about: a later one is sent anew.
    since: Timestamp,
    at: Timestamp,
    times: u32,
}

impl Sent {
    fn mark(&mut self, wish: Wish, since: Timestamp, now: Timestamp) {
        let times = match self.last.get(&wish) {
            Some(sending) if sending.since == since => sending.times.saturating_add(1),
            _ => 1,
        };
        let sending = Sending {
            since,
            at: now,
            times,
        };
        self.last.insert(wish, sending);
    }

    pub fn done(&mut self, errand: Errand) {
        self.done.insert(errand);
    }

    /// When a message for the wish is due: now for a fresh wish, later for one under way.
    fn due(&self, wish: &Wish, since: Timestamp) -> Timestamp {
        match self.last.get(wish) {
            Some(sending) if sending.since == since => {
                let doublings = sending.times.saturating_sub(1).min(10);
                let backoff_ms = RESEND_AFTER_MS.saturating_mul(1 << doublings);
                sending.at.plus_ms(backoff_ms.min(RESEND_AFTER_MS_MAX))
            }
            _ => since,
        }
    }
}

/// What the run wants now, and since when.
fn wishes(state: &State, sent: &Sent) -> Vec<(Wish, Timestamp)> {
    let mut wishes = Vec::new();
    // What a run wanted before it was paused or failed, it wants anew once it goes on.
    let anew = |since: Timestamp| state.resumed_at.map_or(since, |at| at.max(since));
    if !state.status.is_end() && state.paused_at.is_none() {
        for (index, step) in state.steps_indexed() {
            match (&step.phase, &step.child) {
                (Phase::Ready { since }, _) => wishes.push((Wish::Work(index), anew(*since))),
                (Phase::Retrying { at, .. }, _) => wishes.push((Wish::Work(index), anew(*at))),
                (Phase::AwaitingChild, Some(child)) if !child.started => {
                    let errand = Errand::StartChild {
                        step_index: index,
                        child_run_id: child.run_id.clone(),
                    };
                    wishes.push((Wish::Errand(errand), anew(child.requested_at)));
                }
                _ => {}
            }
        }
    }
    for (child_run_id, since) in &state.called_off {
        let child_run_id = child_run_id.clone();
        let errand = Errand::CancelChild { child_run_id };
        wishes.push((Wish::Errand(errand), *since));
    }
    if let (Some(since), Some(parent)) = (state.ended_at, state.parent()) {
        let errand = Errand::ReportEnd {
            parent_run_id: parent.run_id.clone(),
            step_index: parent.step_index,
            seq: state.seq,
        };
        wishes.push((Wish::Errand(errand), since));
    }
    wishes.retain(|(wish, _)| match wish {
        Wish::Errand(errand) => !sent.done.contains(errand),
        Wish::Work(_) => true,
    });
    wishes
}

/// The messages that are due at `now`, which count as sent with that.
pub fn take_due(state: &State, sent: &mut Sent, now: Timestamp) -> Vec<WorkMessage> {
    let mut messages = Vec::new();
    for (wish, since) in wishes(state, sent) {
        if sent.due(&wish, since) > now {
            continue;
        }
        let message = match &wish {
            Wish::Work(index) => message_of(state, *index),
            Wish::Errand(errand) => Some(WorkMessage::Errand(ErrandMessage {
                schema_version: SCHEMA_VERSION.to_owned(),
                tenant_id: state.tenant_id().clone(),
                trace_id: state.trace_id().clone(),
                run_id: state.run_id().clone(),
                errand: errand.clone(),
            })),
        };
        messages.extend(message);
        sent.mark(wish, since, now);
    }
    messages
}

/// The earliest time at which the run must be looked at without being asked. `None`: it has ended,
/// or only the world outside can move it.
pub fn wake_at(state: &State, sent: &Sent) -> Option<Timestamp> {
    let wishes = wishes(state, sent);
    let messages = wishes.iter().map(|(wish, since)| sent.due(wish, *since));
    if state.has_ended() {
        return messages.min();
    }
    let paused = state.paused_at.is_some();
    let timers = state
        .steps
        .iter()
        .filter(|step| !paused || step.lease().is_some())
        .filter_map(Step::due);
    messages.chain(timers).chain(state.deadline()).min()
}

/// The steps that want a worker.
pub fn wanting(state: &State) -> Vec<u32> {
    let of_step = |(wish, _): (Wish, Timestamp)| match wish {
        Wish::Work(index) => Some(index),
        Wish::Errand(_) => None,
    };
    wishes(state, &Sent::default())
        .into_iter()
        .filter_map(of_step)
        .collect()
}

impl WorkMessage {
    /// Whether it asks for a decision of a planner, and not for something to be done.
    pub fn is_of_round(&self) -> bool {
        matches!(self, Self::Envelope(envelope) if envelope.event_type == PLAN_REQUESTED)
    }
}

fn message_of(state: &State, index: u32) -> Option<WorkMessage> {
    let step = state.step(index)?;
    if let Some(ask) = &step.ask {
        return round_message(state, index, ask);
    }
    let request = step.request.as_ref()?;
    let event_id = event_id(&state.identity, request.seq, request.at);
    let payload = serde_json::to_string(&Payload {
        tool: &request.tool,
        arguments: &request.arguments,
    })
    .ok()?;
    if payload.len() > MESSAGE_BYTES_SAFE {
        return Some(WorkMessage::Reference(reference(
            state, index, request, event_id, &payload,
        )));
    }
    Some(WorkMessage::Envelope(Envelope {
        schema_version: SCHEMA_VERSION.to_owned(),
        event_id,
        event_type: "tool.requested".to_owned(),
        tenant_id: state.tenant_id().clone(),
        trace_id: state.trace_id().clone(),
        run_id: state.run_id().clone(),
        step_index: Some(index),
        idempotency_key: request.idempotency_key.clone(),
        timestamp: request.at,
        payload: serde_json::from_str(&payload).ok()?,
    }))
}

fn round_message(state: &State, index: u32, ask: &Ask) -> Option<WorkMessage> {
    let payload = serde_json::to_string(&RoundPayload {
        round: ask.round,
        after_seq: ask.after_seq,
        summarises: ask.summarises,
    });
    Some(WorkMessage::Envelope(Envelope {
        schema_version: SCHEMA_VERSION.to_owned(),
        event_id: event_id(&state.identity, ask.seq, ask.at),
        event_type: PLAN_REQUESTED.to_owned(),
        tenant_id: state.tenant_id().clone(),
        trace_id: state.trace_id().clone(),
        run_id: state.run_id().clone(),
        step_index: Some(index),
        idempotency_key: ask.idempotency_key.clone(),
        timestamp: ask.at,
        payload: serde_json::from_str(&payload.ok()?).ok()?,
    }))
}

/// A step's message again and again, whatever became of the step.
#[cfg(feature = "test-seams")]
pub fn copies(state: &State, index: u32, copies: u32) -> Vec<String> {
    let Some(message) = message_of(state, index) else {
        return Vec::new();
    };
    let text = serde_json::to_string(&message).unwrap_or_default();
    (0..copies).map(|_| text.clone()).collect()
}

fn reference(
    state: &State,
    index: u32,
    request: &Request,
    event_id: EventId,
    payload: &str,
) -> Reference {
    Reference {
        schema_version: SCHEMA_VERSION.to_owned(),
        event_id,
        event_type: "tool.requested".to_owned(),
        tenant_id: state.tenant_id().clone(),
        trace_id: state.trace_id().clone(),
        run_id: state.run_id().clone(),
        step_index: index,
        idempotency_key: request.idempotency_key.clone(),
        timestamp: request.at,
        payload_ref: PayloadRef {
            bytes: payload.len(),
            sha256: sha256_hex(payload.as_bytes()),
        },
    }
}
