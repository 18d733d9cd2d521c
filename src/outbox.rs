//! What a run wants of the world, read off its state: the messages to send and the time to wake.
//!
//! The log's commit is the outbox's commit: a step that wants a worker *is* its entry, so nothing
//! can be stored without being owed, and nothing is owed that is not stored. Sending at once is for
//! speed; the alarm sends again whatever no worker has claimed in time.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::envelope::{Envelope, SCHEMA_VERSION};
use crate::json::Json;
use crate::run::log::event_id;
use crate::run::step::Request;
use crate::run::{Phase, State, Step};
use crate::words::limits::MESSAGE_BYTES_SAFE;
use crate::words::{EventId, RunId, TenantId, Timestamp, TraceId, sha256_hex};

/// How long a message may go unclaimed before it is sent again; doubled each time.
const RESEND_AFTER_MS: i64 = 3_000;
const RESEND_AFTER_MS_MAX: i64 = 60_000;

/// A message for the `work` queue: the step's envelope, or what stands for it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WorkMessage {
    Envelope(Envelope),
    /// An envelope too large for a queue: its payload is handed over with the claim.
    Reference(Reference),
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

/// The payload of `tool.requested`.
#[derive(Serialize)]
struct Payload<'a> {
    tool: &'a str,
    arguments: &'a Json,
}

/// When each step's message was last sent. In memory only: after a restart a message counts as sent
/// when its step became ready, and at worst a copy too many is turned away.
#[derive(Clone, Debug, Default)]
pub struct Sent {
    last: BTreeMap<u32, Sending>,
}

#[derive(Clone, Copy, Debug)]
struct Sending {
    /// The step's wish this was about: a later wish is sent anew.
    since: Timestamp,
    at: Timestamp,
    times: u32,
}

impl Sent {
    pub fn mark(&mut self, index: u32, step: &Step, now: Timestamp) {
        let Some(since) = wanted_since(step) else {
            return;
        };
        let times = match self.last.get(&index) {
            Some(sending) if sending.since == since => sending.times.saturating_add(1),
            _ => 1,
        };
        self.last.insert(
            index,
            Sending {
                since,
                at: now,
                times,
            },
        );
    }

    /// When a message for the step is due: now for a fresh wish, later for one under way.
    fn due(&self, index: u32, step: &Step) -> Option<Timestamp> {
        let since = wanted_since(step)?;
        Some(match self.last.get(&index) {
            Some(sending) if sending.since == since => {
                let backoff = RESEND_AFTER_MS.saturating_mul(1 << (sending.times - 1).min(10));
                sending.at.plus_ms(backoff.min(RESEND_AFTER_MS_MAX))
            }
            _ => since,
        })
    }
}

/// Since when a step wants a worker.
fn wanted_since(step: &Step) -> Option<Timestamp> {
    match step.phase {
        Phase::Ready { since } => Some(since),
        Phase::Retrying { at } => Some(at),
        _ => None,
    }
}

/// The steps whose message is due at `now`.
pub fn due(state: &State, sent: &Sent, now: Timestamp) -> Vec<u32> {
    if state.status.is_end() {
        return Vec::new();
    }
    state
        .steps_indexed()
        .filter(|(index, step)| sent.due(*index, step).is_some_and(|due| due <= now))
        .map(|(index, _)| index)
        .collect()
}

/// The earliest time at which the run must be looked at without being asked. `None`: it has ended,
/// or only a person can move it.
pub fn wake_at(state: &State, sent: &Sent) -> Option<Timestamp> {
    if state.has_ended() {
        return None;
    }
    let steps = state
        .steps_indexed()
        .filter_map(|(index, step)| match step.phase {
            Phase::Running { lease } => Some(lease.until),
            Phase::Sleeping { until } => Some(until),
            _ => sent.due(index, step),
        });
    steps.chain(state.deadline()).min()
}

/// The message of a step that wants a worker.
pub fn work_message(state: &State, index: u32) -> Option<WorkMessage> {
    wanted_since(state.step(index)?)?;
    message_of(state, index)
}

fn message_of(state: &State, index: u32) -> Option<WorkMessage> {
    let request = state.step(index)?.request.as_ref()?;
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
