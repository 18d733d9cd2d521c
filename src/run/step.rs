//! One step of a run, as the log has left it.

use serde::{Deserialize, Serialize};

use crate::json::{self, Json, Violation};
use crate::plan;
use crate::tool::Tool;
use crate::words::{ApprovalId, DeadLetterId, RunId, Timestamp, sha256_hex};

use super::approval::GuardedCall;
use super::event::{ChildStatus, DeadLetterReason, Purpose, Rounds, Settlement, StepError};

/// A step and where it is in its life.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    pub id: String,
    /// `tool`, `sleep`, `emit`, …: the member of the plan that names the action.
    pub kind: &'static str,
    pub name: Option<String>,
    pub phase: Phase,
    /// The recorded intent. A step whose arguments could not be made has none.
    pub request: Option<Request>,
    /// Of a round: what is asked of the planner.
    pub ask: Option<Ask>,
    /// Of what a planner wanted: the action, which no plan holds.
    pub intent: Option<Box<plan::Step>>,
    /// Of what a planner wanted and could not be carried out as it is: why.
    pub flaw: Option<StepError>,
    /// What the next claim of this step is for.
    pub purpose: Purpose,
    /// The attempt under way or last made, from 1; 0 before the first.
    pub attempt: u32,
    /// Attempts made before the last redelivery: the retry policy starts anew after one.
    pub attempts_before: u32,
    /// Workers lost since the last attempt that came back.
    pub losses: u32,
    pub previous_wait_ms: Option<i64>,
    /// Rounds of this step in which no model could be asked: no attempts.
    pub rests: u32,
    /// Verify requests made since the outcome became unknown.
    pub verifications: u32,
    /// A call was made and nobody knows yet what came of it.
    pub in_doubt: bool,
    /// The attempts whose callback came: each has one.
    pub called_back: Vec<u32>,
    /// The call that a person approved.
    pub approved: Option<GuardedCall>,
    /// Its arguments could not be made: what its intent holds is what the plan says, unfilled.
    pub unfilled: bool,
    pub child: Option<Child>,
    pub history: Vec<Attempt>,
    pub result: Json,
    pub error: Option<StepError>,
}

/// The child run that a step asked for last.
#[derive(Clone, Debug, PartialEq)]
pub struct Child {
    pub run_id: RunId,
    /// `name` or `name@version`.
    pub agent: String,
    pub input: Json,
    /// Of its parent's tokens, those that it may use.
    pub tokens: Option<u64>,
    /// Those that it is known to have used.
    pub tokens_used: u64,
    pub requested_at: Timestamp,
    /// Whether it is known to exist.
    pub started: bool,
    pub ended: Option<ChildStatus>,
}

/// Where a step is in its life. Each phase that is not an end names what wakes it.
#[derive(Clone, Debug, PartialEq)]
pub enum Phase {
    /// Its turn has not come: it is woken by the steps it needs.
    Pending,
    /// It wants a worker: woken by a queue message, and by the alarm if that is lost.
    Ready {
        since: Timestamp,
    },
    /// A worker holds it: woken by the worker's report, and by the alarm when the lease ends.
    Running {
        lease: Lease,
    },
    /// Woken by the alarm at `at`.
    Retrying {
        since: Timestamp,
        at: Timestamp,
    },
    /// Woken by the alarm at `until`.
    Sleeping {
        since: Timestamp,
        until: Timestamp,
    },
    /// Woken by a signal of one of these names, and by the alarm at `until`.
    AwaitingSignal {
        since: Timestamp,
        until: Option<Timestamp>,
        names: Vec<String>,
    },
    /// Woken by a person's decision, and by the alarm when the approval expires.
    AwaitingApproval {
        approval_id: ApprovalId,
        until: Option<Timestamp>,
    },
    /// Woken by its tool, and by the alarm at `until`.
    AwaitingCallback {
        since: Timestamp,
        until: Timestamp,
    },
    /// Woken by the end of its child run. Until that exists, by a queue message that asks for it.
    AwaitingChild,
    /// Woken by a person who settles the dead letter.
    DeadLettered {
        dead_letter_id: DeadLetterId,
    },
    Completed,
    Failed,
    Skipped,
    Cancelled,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    pub token: u64,
    pub granted_at: Timestamp,
    pub until: Timestamp,
    pub purpose: Purpose,
}

/// The recorded intent of a step: what its envelope carries.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    pub tool: String,
    pub arguments: Json,
    /// 64 hex digits; the `Idempotency-Key` of every attempt.
    pub idempotency_key: String,
    pub at: Timestamp,
    /// The log entry that recorded it.
    pub seq: u64,
}

impl Request {
    /// SHA-256 of the canonical JSON of the arguments, 64 hex digits.
    pub fn arguments_digest(&self) -> String {
        sha256_hex(json::canonical(&self.arguments).as_bytes())
    }
}

/// A round that a planner is to be asked for: what its envelope carries.
#[derive(Clone, Debug, PartialEq)]
pub struct Ask {
    /// From 1.
    pub round: u32,
    /// The last entry of the log that the planner is told of.
    pub after_seq: u64,
    /// These rounds are to be summed up, and nothing decided.
    pub summarises: Option<Rounds>,
    /// 64 hex digits.
    pub idempotency_key: String,
    pub at: Timestamp,
    /// The log entry that recorded it.
    pub seq: u64,
}

/// One line of a dead letter's history.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Attempt {
    pub at: Timestamp,
    pub outcome: String,
    pub status_code: Option<u16>,
    pub error: Option<String>,
}

/// A step that a person must settle.
#[derive(Clone, Debug, PartialEq)]
pub struct DeadLetter {
    pub dead_letter_id: DeadLetterId,
    pub step_index: u32,
    pub reason: DeadLetterReason,
    pub message: String,
    pub errors: Vec<Violation>,
    /// The step's attempts up to the moment it was opened.
    pub attempts: Vec<Attempt>,
    /// The step's intent at that moment.
    pub request: Option<Request>,
    pub created_at: Timestamp,
    pub settled: Option<Settled>,
    /// The entry that changed it last.
    pub changed_seq: u64,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Settled {
    pub at: Timestamp,
    pub settlement: Settlement,
}

/// A tool as the run pinned it.
#[derive(Clone, Debug, PartialEq)]
pub struct Pinned {
    pub version: u64,
    pub tool: Tool,
    /// The definition as it was stored: what a worker is given.
    pub definition: Json,
}

impl Step {
    pub fn new(id: String, kind: &'static str, name: Option<String>) -> Self {
        Self {
            id,
            kind,
            name,
            phase: Phase::Pending,
            request: None,
            ask: None,
            intent: None,
            flaw: None,
            purpose: Purpose::Call,
            attempt: 0,
            attempts_before: 0,
            losses: 0,
            previous_wait_ms: None,
            rests: 0,
            verifications: 0,
            in_doubt: false,
            called_back: Vec::new(),
            approved: None,
            unfilled: false,
            child: None,
            history: Vec::new(),
            result: Json::null(),
            error: None,
        }
    }

    /// Whether it asks a planner, and calls no tool.
    pub fn is_round(&self) -> bool {
        self.ask.is_some()
    }

    /// The key of the envelope that a worker is sent.
    pub fn idempotency_key(&self) -> Option<&str> {
        let of_ask = self.ask.as_ref().map(|ask| ask.idempotency_key.as_str());
        let of_request = self.request.as_ref();
        of_ask.or(of_request.map(|request| request.idempotency_key.as_str()))
    }

    /// Whether the steps that need this one may go on.
    pub fn is_done(&self) -> bool {
        matches!(
            self.phase,
            Phase::Completed | Phase::Failed | Phase::Skipped | Phase::Cancelled
        )
    }

    /// Whether a worker has it, or is about to.
    pub fn is_active(&self) -> bool {
        matches!(
            self.phase,
            Phase::Ready { .. } | Phase::Running { .. } | Phase::Retrying { .. }
        )
    }

    /// When the alarm must look at it: a lease, a timer.
    pub fn due(&self) -> Option<Timestamp> {
        match &self.phase {
            Phase::Running { lease } => Some(lease.until),
            Phase::Sleeping { until, .. } | Phase::AwaitingCallback { until, .. } => Some(*until),
            Phase::AwaitingSignal { until, .. } | Phase::AwaitingApproval { until, .. } => *until,
            _ => None,
        }
    }

    pub fn lease(&self) -> Option<&Lease> {
        match &self.phase {
            Phase::Running { lease } => Some(lease),
            _ => None,
        }
    }

    /// The number that the next call of the tool bears. A lost worker's attempt is made again under
    /// its own number.
    pub fn next_attempt(&self) -> u32 {
        if self.losses > 0 && self.attempt > 0 {
            self.attempt
        } else {
            self.attempt.saturating_add(1)
        }
    }

    /// Attempts that count against the retry policy.
    pub fn attempts_used(&self) -> u32 {
        self.attempt.saturating_sub(self.attempts_before)
    }

    pub fn status(&self) -> &'static str {
        match self.phase {
            Phase::Pending | Phase::Ready { .. } => "scheduled",
            Phase::Running { .. } => "running",
            Phase::Retrying { .. } => "retrying",
            Phase::Sleeping { .. }
            | Phase::AwaitingSignal { .. }
            | Phase::AwaitingApproval { .. }
            | Phase::AwaitingCallback { .. }
            | Phase::AwaitingChild => "waiting",
            Phase::DeadLettered { .. } => "dead_lettered",
            Phase::Completed => "completed",
            Phase::Failed => "failed",
            Phase::Skipped => "skipped",
            Phase::Cancelled => "cancelled",
        }
    }
}

impl DeadLetter {
    pub fn status(&self) -> &'static str {
        self.settled
            .as_ref()
            .map_or("open", |settled| settled.settlement.status())
    }
}
