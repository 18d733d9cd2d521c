//! The facts a run's log is made of. Past tense, never changed once stored.
//!
//! The serde form of [`Event`] is the stored form and the wire form: `{"tool.completed": {…}}`, one
//! member whose name is the envelope's `event_type` and whose value is its `payload`. It is
//! externally tagged on purpose: serde buffers the other taggings, which loses the digits of large
//! numbers. Names and fields that were ever stored are never reused.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::json::{self, Json, Value, Violation};
use crate::words::{DeadLetterId, Timestamp};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Event {
    /// Everything the run will ever need from outside: it never asks for a definition again.
    #[serde(rename = "run.created")]
    RunCreated(Box<RunCreated>),
    /// The first claim was granted.
    #[serde(rename = "run.started")]
    RunStarted {},
    /// Nothing runs, something is awaited.
    #[serde(rename = "run.waiting")]
    RunWaiting {},
    /// Nothing can move until a person settles these dead letters.
    #[serde(rename = "run.blocked")]
    RunBlocked { dead_letter_ids: Vec<DeadLetterId> },
    #[serde(rename = "run.completed")]
    RunCompleted { output: Json },
    #[serde(rename = "run.failed")]
    RunFailed { error: RunError },
    /// The run is called off. Nothing new is begun; calls under way are waited for, so that what they
    /// did is in the log before its end.
    #[serde(rename = "run.cancel_requested")]
    RunCancelRequested {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        comment: Option<String>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        request: Option<RequestRef>,
    },
    #[serde(rename = "run.cancelled")]
    RunCancelled {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        comment: Option<String>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        request: Option<RequestRef>,
    },

    /// A step's intent, recorded before anything acts on it. The payload is exactly this pair: the
    /// step's idempotency key is made from it.
    #[serde(rename = "tool.requested")]
    ToolRequested { tool: String, arguments: Json },
    /// A worker holds the step until `lease_until`. `token` fences off every earlier holder.
    #[serde(rename = "tool.claimed")]
    ToolClaimed {
        attempt: u32,
        token: u64,
        lease_until: Timestamp,
        purpose: Purpose,
    },
    /// The holder is alive and needs longer.
    #[serde(rename = "tool.lease_extended")]
    ToolLeaseExtended { token: u64, lease_until: Timestamp },
    /// The holder was lost. Not an attempt of the tool; counted apart.
    #[serde(rename = "tool.lease_expired")]
    ToolLeaseExpired {
        attempt: u32,
        token: u64,
        losses: u32,
    },
    #[serde(rename = "tool.completed")]
    ToolCompleted {
        attempt: u32,
        result: Json,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        status_code: Option<u16>,
        /// Deliveries of this step that were turned away while it ran.
        #[serde(default, skip_serializing_if = "is_zero")]
        duplicates_suppressed: u32,
    },
    /// An attempt failed and another will be made at `retry_at`.
    #[serde(rename = "tool.retry_scheduled")]
    ToolRetryScheduled {
        attempt: u32,
        error: StepError,
        wait_ms: i64,
        retry_at: Timestamp,
        wait_source: WaitSource,
        /// What the next attempt is for.
        purpose: Purpose,
    },
    /// The step's last attempt failed.
    #[serde(rename = "tool.failed")]
    ToolFailed { attempt: u32, error: StepError },
    /// The call may or may not have taken effect, and the tool must not be called again.
    #[serde(rename = "tool.outcome_unknown")]
    ToolOutcomeUnknown { attempt: u32, error: StepError },

    /// An external planner is done; the run ends with this output.
    #[serde(rename = "plan.completed")]
    PlanCompleted { output: Json },
    /// An external planner gave up.
    #[serde(rename = "plan.failed")]
    PlanFailed { message: String },

    /// A timer runs until `until`.
    #[serde(rename = "wait.started")]
    WaitStarted { kind: WaitKind, until: Timestamp },
    #[serde(rename = "wait.ended")]
    WaitEnded { kind: WaitKind },

    /// What a plan told the world; its subscribers hear of it from the log.
    #[serde(rename = "event.emitted")]
    EventEmitted { r#type: String, data: Json },
    #[serde(rename = "step.skipped")]
    StepSkipped { reason: SkipReason },
    #[serde(rename = "step.cancelled")]
    StepCancelled {},

    #[serde(rename = "dead_letter.opened")]
    DeadLetterOpened {
        dead_letter_id: DeadLetterId,
        reason: DeadLetterReason,
        message: String,
        errors: Vec<Violation>,
    },
    #[serde(rename = "dead_letter.settled")]
    DeadLetterSettled {
        dead_letter_id: DeadLetterId,
        settlement: Settlement,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        request: Option<RequestRef>,
    },
}

/// What a run is made of, pinned at its start.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunCreated {
    /// `name@version`, or null for an inline plan.
    pub agent: Option<String>,
    /// The agent's definition; an inline plan is an agent that has only a planner.
    pub definition: Json,
    pub input: Json,
    pub tags: BTreeMap<String, String>,
    /// The tools that the definition names and that existed at the start, by the name used there.
    pub tools: BTreeMap<String, PinnedTool>,
    /// The `traceparent` of the request that started the run: a link, not a parent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_by: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PinnedTool {
    pub version: u64,
    pub definition: Json,
}

/// Why a worker holds a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Purpose {
    /// To call the tool.
    Call,
    /// To ask the tool's `verify` request what became of an earlier call.
    Verify,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WaitSource {
    /// The tool's `Retry-After`.
    RetryAfter,
    /// The tool's retry policy.
    Backoff,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WaitKind {
    Sleep,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SkipReason {
    /// Its `when` was false.
    When,
}

/// Why a step did not succeed, for the person who must act.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StepError {
    pub reason: String,
    pub message: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status_code: Option<u16>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<Violation>,
}

/// Why a run failed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunError {
    pub reason: String,
    pub message: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step_index: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step_id: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeadLetterReason {
    InvalidEnvelope,
    InvalidArguments,
    UnknownTool,
    RejectedByTool,
    RetriesExhausted,
    OutcomeUnknown,
    InvalidResult,
    FanOutLimit,
    Undeliverable,
}

/// How a person settled a dead letter.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Settlement {
    /// Tried again: with `payload` where it was repaired, else as it was. `tools` holds the
    /// definition looked up anew, where the run had none of that name.
    Redelivered {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        payload: Option<Json>,
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        tools: BTreeMap<String, PinnedTool>,
    },
    /// A person supplied the result.
    Resolved { result: Json },
    /// The step fails.
    Discarded {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        comment: Option<String>,
    },
}

/// The client's `Idempotency-Key` under which a request was carried out, so that asking again gets
/// the first answer again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestRef {
    pub route: String,
    pub key: String,
    /// SHA-256 of the canonical body.
    pub fingerprint: String,
}

impl DeadLetterReason {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::InvalidEnvelope => "invalid_envelope",
            Self::InvalidArguments => "invalid_arguments",
            Self::UnknownTool => "unknown_tool",
            Self::RejectedByTool => "rejected_by_tool",
            Self::RetriesExhausted => "retries_exhausted",
            Self::OutcomeUnknown => "outcome_unknown",
            Self::InvalidResult => "invalid_result",
            Self::FanOutLimit => "fan_out_limit",
            Self::Undeliverable => "undeliverable",
        }
    }
}

impl Settlement {
    pub fn status(&self) -> &'static str {
        match self {
            Self::Redelivered { .. } => "redelivered",
            Self::Resolved { .. } => "resolved",
            Self::Discarded { .. } => "discarded",
        }
    }
}

impl Event {
    /// Whether the tenant's index must hear of it at once: the run came to rest or ended, or a dead
    /// letter changed.
    pub fn is_shown(&self) -> bool {
        matches!(
            self,
            Self::RunWaiting {}
                | Self::RunBlocked { .. }
                | Self::RunCompleted { .. }
                | Self::RunFailed { .. }
                | Self::RunCancelRequested { .. }
                | Self::RunCancelled { .. }
                | Self::DeadLetterOpened { .. }
                | Self::DeadLetterSettled { .. }
        )
    }

    /// The `event_type` and the `payload` of the event's envelope.
    pub fn parts(&self) -> Result<(String, Value), EventError> {
        // By way of text: `serde_json::to_value` would respell the exponents of numbers.
        let text = serde_json::to_string(self).map_err(|e| EventError(e.to_string()))?;
        match json::read(text.as_bytes()) {
            Ok(Value::Object(members)) => members
                .into_iter()
                .next()
                .ok_or_else(|| EventError("it has no type".into())),
            Ok(_) => Err(EventError("it is not an object".into())),
            Err(faults) => Err(EventError(json::sentence(&faults))),
        }
    }
}

/// An event that has no envelope: a defect, or a stored row that was tampered with.
#[derive(Clone, Debug, thiserror::Error)]
#[error("the event cannot be written as an envelope: {0}")]
pub struct EventError(pub String);

fn is_zero(n: &u32) -> bool {
    *n == 0
}
