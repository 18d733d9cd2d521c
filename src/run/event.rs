//! The facts a run's log is made of. Past tense, never changed once stored.
//!
//! The serde form of [`Event`] is the stored form and the wire form: `{"tool.completed": {…}}`, one
//! member whose name is the envelope's `event_type` and whose value is its `payload`. It is
//! externally tagged on purpose: serde buffers the other taggings, which loses the digits of large
//! numbers. Names and fields that were ever stored are never reused.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize};

use crate::json::{self, Json, Value, Violation};
use crate::words::{ApprovalId, DeadLetterId, RunId, Timestamp};

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

    /// Nothing new is begun until the run is resumed. What is under way, and what comes from outside,
    /// is recorded meanwhile.
    #[serde(rename = "run.paused")]
    RunPaused {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        comment: Option<String>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        request: Option<RequestRef>,
    },
    #[serde(rename = "run.resumed")]
    RunResumed {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        comment: Option<String>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        request: Option<RequestRef>,
    },
    /// A failed run goes on from the steps that failed it. The only event that follows an end.
    #[serde(rename = "run.retried")]
    RunRetried {
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
        /// Of a call that a person approved: the digest of the arguments as they are sent.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        arguments_digest: Option<String>,
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

    /// The planner is to be asked for the next intents: one round, one step. `after_seq` is the last
    /// entry that it is told of.
    #[serde(rename = "plan.requested")]
    PlanRequested {
        round: u32,
        after_seq: u64,
        /// The conversation has grown long: these rounds are to be summed up, and nothing decided.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        summarises: Option<Rounds>,
    },
    /// A worker holds the round until `lease_until`.
    #[serde(rename = "plan.claimed")]
    PlanClaimed {
        attempt: u32,
        token: u64,
        lease_until: Timestamp,
    },
    #[serde(rename = "plan.lease_extended")]
    PlanLeaseExtended { token: u64, lease_until: Timestamp },
    #[serde(rename = "plan.lease_expired")]
    PlanLeaseExpired {
        attempt: u32,
        token: u64,
        losses: u32,
    },
    /// No model gave an answer, and all will be asked again at `retry_at`.
    #[serde(rename = "plan.retry_scheduled")]
    PlanRetryScheduled {
        attempt: u32,
        error: StepError,
        wait_ms: i64,
        retry_at: Timestamp,
        wait_source: WaitSource,
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        tries: Vec<Try>,
    },
    /// The planner has spoken: of a round with its intents, or of an external planner that is done.
    #[serde(rename = "plan.completed")]
    PlanCompleted(Box<PlanCompleted>),
    /// A round that came to nothing, or an external planner that gave up.
    #[serde(rename = "plan.failed")]
    PlanFailed(Box<PlanFailed>),

    /// The run stands still at one of its limits until that is raised.
    #[serde(rename = "limit.reached")]
    LimitReached {
        limit: String,
        value: u64,
        used: u64,
        message: String,
    },
    #[serde(rename = "limit.raised")]
    LimitRaised {
        /// As the request gave them.
        limits: Json,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        comment: Option<String>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        request: Option<RequestRef>,
    },

    /// Something is awaited, until `until` where that is bounded.
    #[serde(rename = "wait.started")]
    WaitStarted {
        kind: WaitKind,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        until: Option<Timestamp>,
        /// The signals of which the first is awaited.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        names: Vec<String>,
    },
    #[serde(rename = "wait.ended")]
    WaitEnded {
        kind: WaitKind,
        outcome: WaitOutcome,
    },

    /// Kept in the mailbox until a step waits for it.
    #[serde(rename = "signal.received")]
    SignalReceived {
        name: String,
        payload: Json,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        request: Option<RequestRef>,
    },
    /// A step took the signal that entry `received_seq` recorded.
    #[serde(rename = "signal.consumed")]
    SignalConsumed { name: String, received_seq: u64 },

    /// A tool that had answered 202 reports how its attempt went.
    #[serde(rename = "callback.received")]
    CallbackReceived {
        attempt: u32,
        status: CallbackStatus,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        request: Option<RequestRef>,
    },

    /// A person is asked. With `tool`, for leave to call it with exactly the arguments that the step
    /// has recorded, whose digest this is.
    #[serde(rename = "approval.requested")]
    ApprovalRequested {
        approval_id: ApprovalId,
        prompt: String,
        /// For the data that the decision carries.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        schema: Option<Json>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        until: Option<Timestamp>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        tool: Option<String>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        arguments_digest: Option<String>,
    },
    #[serde(rename = "approval.decided")]
    ApprovalDecided {
        approval_id: ApprovalId,
        decision: Decision,
        data: Json,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        comment: Option<String>,
        decided_by: String,
        /// What gave the right to decide: the id of a key, or `link`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        via: Option<String>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        arguments_digest: Option<String>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        request: Option<RequestRef>,
    },
    /// Nobody decided in time.
    #[serde(rename = "approval.expired")]
    ApprovalExpired { approval_id: ApprovalId },

    /// A child run is wanted: recorded before it exists, so that it can be called off at any time.
    #[serde(rename = "child.requested")]
    ChildRequested {
        run_id: RunId,
        /// `name` or `name@version`.
        agent: String,
        input: Json,
        /// Of the tokens that this run has left, those that the child may use.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        tokens: Option<u64>,
    },
    #[serde(rename = "child.started")]
    ChildStarted {
        run_id: RunId,
        /// `name@version`.
        agent: String,
    },
    #[serde(rename = "child.ended")]
    ChildEnded {
        run_id: RunId,
        status: ChildStatus,
        output: Json,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        error: Option<RunError>,
        /// What it and its own children used.
        #[serde(default, skip_serializing_if = "is_zero_tokens")]
        tokens: u64,
    },

    /// What a plan told the world; its subscribers hear of it from the log.
    #[serde(rename = "event.emitted")]
    EventEmitted { r#type: String, data: Json },
    #[serde(rename = "step.skipped")]
    StepSkipped { reason: SkipReason },
    /// A step that is no call of a tool did not succeed.
    #[serde(rename = "step.failed")]
    StepFailed { error: StepError },
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
    /// Whose child it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<Parent>,
    /// Where this service was reached when the run was started, such as `https://dormouse.example`:
    /// what callbacks are addressed to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<String>,
}

/// What a planner said. Of a round: who was asked, the answer as it came, and what is made of it. Of
/// an external planner that is done: its output alone.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PlanCompleted {
    #[serde(default, skip_serializing_if = "is_zero")]
    pub attempt: u32,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tries: Vec<Try>,
    /// The answer as the provider or the service gave it.
    #[serde(
        default,
        deserialize_with = "present",
        skip_serializing_if = "Option::is_none"
    )]
    pub answer: Option<Json>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// In the planner's order. Those with an intent become steps, in this order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub calls: Vec<PlannedCall>,
    /// What is wrong with the answer as a whole: the planner is told, and asked again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flaw: Option<String>,
    /// The run is to end with this.
    #[serde(
        default,
        deserialize_with = "present",
        skip_serializing_if = "Option::is_none"
    )]
    pub output: Option<Json>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PlanFailed {
    pub message: String,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub attempt: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<StepError>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tries: Vec<Try>,
    #[serde(
        default,
        deserialize_with = "present",
        skip_serializing_if = "Option::is_none"
    )]
    pub answer: Option<Json>,
}

/// Rounds, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rounds {
    pub from_round: u32,
    pub to_round: u32,
}

/// One call of a round.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PlannedCall {
    /// Unique in the run: the planner's own label where that is, else one made from its place.
    pub id: String,
    /// As the planner named it, within bounds.
    pub name: String,
    /// What the planner is shown again: always an object.
    pub arguments: Json,
    /// The step that it becomes, as in a plan, but without expressions. Of a tool without its
    /// arguments, which are those above.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub intent: Option<Json>,
    /// Why it is not carried out. With an intent: why a person must settle it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<StepError>,
}

/// One model that was asked in a round, and what came of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Try {
    /// Of the model as the agent names it; `http` for a service.
    pub provider: String,
    /// The model's name, or the service's URL as it is defined.
    pub model: String,
    /// `answered`, or why it was left.
    pub outcome: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status_code: Option<u16>,
    /// The provider's own code.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    pub latency_ms: i64,
    #[serde(default, skip_serializing_if = "is_zero_tokens")]
    pub input_tokens: u64,
    #[serde(default, skip_serializing_if = "is_zero_tokens")]
    pub output_tokens: u64,
    /// The provider did not count: the tokens are a guess from the bytes.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub estimated: bool,
}

/// The step that a run is the child of, and what it inherits.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Parent {
    pub run_id: RunId,
    pub step_index: u32,
    /// The run at the top of the tree: what bounds the number of its descendants.
    pub root_run_id: RunId,
    /// Runs above this one, from 1.
    pub depth: u32,
    /// Levels that may be below this one.
    pub depth_left: u32,
    /// When the parent must have ended, and this run with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline: Option<Timestamp>,
    /// What the parent has set aside for this run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u64>,
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
    Signal,
    Callback,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WaitOutcome {
    /// A sleep was over.
    Elapsed,
    /// What was awaited came.
    Received,
    TimedOut,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CallbackStatus {
    Succeeded,
    Failed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Decision {
    Approved,
    Rejected,
}

/// How a child run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ChildStatus {
    Completed,
    Failed,
    Cancelled,
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
    ChildFailed,
    /// A model, or its provider, would not answer.
    ModelFailed,
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
            Self::ChildFailed => "child_failed",
            Self::ModelFailed => "model_failed",
        }
    }
}

impl CallbackStatus {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
        }
    }
}

impl Decision {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Approved => "approved",
            Self::Rejected => "rejected",
        }
    }
}

impl ChildStatus {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
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
    /// letter or an approval changed.
    pub fn is_shown(&self) -> bool {
        matches!(
            self,
            Self::RunWaiting {}
                | Self::RunBlocked { .. }
                | Self::RunCompleted { .. }
                | Self::RunFailed { .. }
                | Self::RunCancelRequested { .. }
                | Self::RunCancelled { .. }
                | Self::RunPaused { .. }
                | Self::RunResumed { .. }
                | Self::RunRetried { .. }
                | Self::LimitReached { .. }
                | Self::LimitRaised { .. }
                | Self::ApprovalRequested { .. }
                | Self::ApprovalDecided { .. }
                | Self::ApprovalExpired { .. }
                | Self::DeadLetterOpened { .. }
                | Self::DeadLetterSettled { .. }
        )
    }

    /// The `event_type` and the `payload` of the event's envelope.
    pub fn parts(&self) -> Result<(String, Value), EventError> {
        // By way of text: `serde_json::to_value` would respell the exponents of numbers.
        parts_of(&serde_json::to_string(self).map_err(|e| EventError(e.to_string()))?)
    }
}

/// The `event_type` and the `payload` of an event in its stored form.
pub(super) fn parts_of(text: &str) -> Result<(String, Value), EventError> {
    match json::read_stored(text.as_bytes()) {
        Ok(Value::Object(members)) => members
            .into_iter()
            .next()
            .ok_or_else(|| EventError("it has no type".into())),
        Ok(_) => Err(EventError("it is not an object".into())),
        Err(faults) => Err(EventError(json::sentence(&faults))),
    }
}

/// An event that has no envelope: a defect, or a stored row that was tampered with.
#[derive(Clone, Debug, thiserror::Error)]
#[error("the event cannot be written as an envelope: {0}")]
pub struct EventError(pub String);

fn is_zero(n: &u32) -> bool {
    *n == 0
}

fn is_zero_tokens(n: &u64) -> bool {
    *n == 0
}

/// A null that is written is a value, not an absence.
fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Json>, D::Error> {
    Json::deserialize(deserializer).map(Some)
}
