//! A worker reports how its step went.

use serde::{Deserialize, Serialize};

use crate::json::Json;
use crate::run::event::{DeadLetterReason, Event, Purpose, StepError, WaitSource};
use crate::run::{Phase, Step};
use crate::tool::{Effect, Sent, may_repeat};

use super::claim::{Assignment, grant};
use super::dead_letter::open;
use super::round::{self, Planned, Unplanned};
use super::step::fail;
use super::{Refusal, Turn, advance, callback};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Settle {
    pub step_index: u32,
    pub token: u64,
    pub report: Report,
    /// Deliveries of this step that were turned away while it ran.
    pub duplicates_suppressed: u32,
    /// Whether the worker takes the next step at once.
    pub wants_next: bool,
}

/// What a worker found out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Report {
    Completed {
        result: Json,
        status_code: Option<u16>,
    },
    /// The tool answered 202: it will call back.
    Accepted,
    Failed {
        error: StepError,
        reason: DeadLetterReason,
        retryable: bool,
        retry_after_ms: Option<i64>,
        /// Whether the tool may have acted.
        may_have_acted: bool,
    },
    /// The planner answered.
    Planned(Box<Planned>),
    /// The planner did not answer.
    Unplanned(Box<Unplanned>),
    /// The tool's `verify` request says that nothing was done.
    NotDone,
    /// The tool's `verify` request could not tell.
    StillUnknown { error: StepError },
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SettleReply {
    /// False: the report came from a worker that no longer held the step, and nothing was recorded.
    pub recorded: bool,
    pub next: Option<Box<Assignment>>,
}

pub(super) fn settle(turn: &mut Turn, settle: Settle) -> Result<SettleReply, Refusal> {
    let index = settle.step_index;
    let lease = turn.state.step(index).and_then(Step::lease).copied();
    let Some(lease) = lease.filter(|l| l.token == settle.token && !turn.state.has_ended()) else {
        return Ok(SettleReply {
            recorded: false,
            next: None,
        });
    };
    match settle.report {
        Report::Completed {
            result,
            status_code,
        } => {
            let attempt = turn.state.step(index).map_or(0, |step| step.attempt);
            let duplicates_suppressed = settle.duplicates_suppressed;
            let event = Event::ToolCompleted {
                attempt,
                result,
                status_code,
                duplicates_suppressed,
            };
            turn.record(Some(index), event)?;
        }
        Report::Planned(planned) => round::take(turn, index, *planned)?,
        Report::Unplanned(failed) => round::fail(turn, index, *failed)?,
        Report::Accepted if !turn.state.cancelling => callback::wait(turn, index)?,
        report if turn.state.cancelling => last_words(turn, index, report)?,
        Report::Failed {
            error,
            reason,
            retryable,
            retry_after_ms,
            may_have_acted,
        } => {
            if lease.purpose == Purpose::Verify {
                unsettled_verification(turn, index, error, retryable, retry_after_ms)?;
            } else if retryable && !may_repeat(effect(turn, index), sent(may_have_acted)) {
                unknown(turn, index, error)?;
            } else if retryable {
                retry(turn, index, error, retry_after_ms)?;
            } else {
                fail(turn, index, error, reason)?;
            }
        }
        Report::Accepted => {}
        Report::NotDone => retry(turn, index, not_done(), Some(0))?,
        Report::StillUnknown { error } => {
            unsettled_verification(turn, index, error, false, None)?;
        }
    }
    advance::advance(turn)?;
    let next = if settle.wants_next {
        next_for_the_same_worker(turn, index)?
    } else {
        None
    };
    Ok(SettleReply {
        recorded: true,
        next,
    })
}

fn sent(may_have_acted: bool) -> Sent {
    if may_have_acted {
        Sent::Maybe
    } else {
        Sent::No
    }
}

fn not_done() -> StepError {
    StepError {
        reason: "not_done".into(),
        message: "the tool's verify request says that nothing was done".into(),
        status_code: None,
        errors: Vec::new(),
    }
}

/// What came of a call whose run was called off meanwhile: recorded, and not tried again.
fn last_words(turn: &mut Turn, index: u32, report: Report) -> Result<(), Refusal> {
    let error = match report {
        Report::Failed { error, .. } | Report::StillUnknown { error } => error,
        Report::Accepted => StepError {
            reason: "cancelled".into(),
            message: "the tool answered 202, and nobody waits for its callback any more".into(),
            status_code: Some(202),
            errors: Vec::new(),
        },
        Report::NotDone | Report::Completed { .. } | Report::Planned(_) | Report::Unplanned(_) => {
            not_done()
        }
    };
    let attempt = turn.state.step(index).map_or(0, |step| step.attempt);
    turn.record(Some(index), Event::ToolFailed { attempt, error })
}

/// The first step that became ready through this report: its claim costs no entry of a queue and no
/// further call. Its siblings go to other workers.
fn next_for_the_same_worker(
    turn: &mut Turn,
    after: u32,
) -> Result<Option<Box<Assignment>>, Refusal> {
    let now = turn.now;
    let fresh = turn.state.steps_indexed().find(|(index, step)| {
        let fresh = matches!(step.phase, Phase::Ready { since } if since == now);
        *index != after && fresh && !step.is_round()
    });
    match fresh.map(|(index, _)| index) {
        Some(index) if turn.state.failing().is_none() && turn.state.paused_at.is_none() => {
            Ok(grant(turn, index)?.map(Box::new))
        }
        _ => Ok(None),
    }
}

pub(super) fn effect(turn: &Turn, index: u32) -> Effect {
    let step = turn.state.step(index);
    step.and_then(|step| turn.state.tool_of(step))
        .map_or(Effect::AtMostOnce, |p| p.tool.effect)
}

/// Schedules the next attempt, or gives up when the policy says so.
pub(super) fn retry(
    turn: &mut Turn,
    index: u32,
    error: StepError,
    retry_after_ms: Option<i64>,
) -> Result<(), Refusal> {
    let Some(step) = turn.state.step(index) else {
        return Ok(());
    };
    let Some(pinned) = turn.state.tool_of(step) else {
        return Ok(());
    };
    let policy = pinned.tool.retry;
    if !policy.may_retry(step.attempts_used()) {
        let error = StepError {
            reason: "retries_exhausted".into(),
            ..error
        };
        return fail(turn, index, error, DeadLetterReason::RetriesExhausted);
    }
    let backoff_ms = policy.wait_ms(
        step.attempts_used().max(1),
        step.previous_wait_ms,
        turn.random,
    );
    schedule(
        turn,
        index,
        error,
        retry_after_ms,
        backoff_ms,
        Purpose::Call,
    )
}

/// Schedules the next attempt: when the tool asked for it, else when its policy says.
fn schedule(
    turn: &mut Turn,
    index: u32,
    error: StepError,
    retry_after_ms: Option<i64>,
    backoff_ms: i64,
    purpose: Purpose,
) -> Result<(), Refusal> {
    let (wait_ms, wait_source) = match retry_after_ms {
        Some(ms) => (ms, WaitSource::RetryAfter),
        None => (backoff_ms, WaitSource::Backoff),
    };
    let event = Event::ToolRetryScheduled {
        attempt: turn.state.step(index).map_or(0, |step| step.attempt),
        error,
        wait_ms,
        retry_at: turn.now.plus_ms(wait_ms),
        wait_source,
        purpose,
    };
    turn.record(Some(index), event)
}

/// Records that a call may have taken effect. What is not known is asked of the tool where it can
/// be, and of a person where it cannot.
pub(super) fn unknown(turn: &mut Turn, index: u32, error: StepError) -> Result<(), Refusal> {
    let error = StepError {
        reason: "outcome_unknown".into(),
        ..error
    };
    let Some(step) = turn.state.step(index) else {
        return Ok(());
    };
    let attempt = step.attempt;
    let verifiable = turn
        .state
        .tool_of(step)
        .is_some_and(|pinned| pinned.tool.verify.is_some());
    turn.record(
        Some(index),
        Event::ToolOutcomeUnknown {
            attempt,
            error: error.clone(),
        },
    )?;
    if verifiable {
        return Ok(());
    }
    open(
        turn,
        index,
        DeadLetterReason::OutcomeUnknown,
        error.message,
        error.errors,
    )
}

/// A verification that failed for the moment is tried again like any call; one that cannot tell is
/// a person's matter.
fn unsettled_verification(
    turn: &mut Turn,
    index: u32,
    error: StepError,
    retryable: bool,
    retry_after_ms: Option<i64>,
) -> Result<(), Refusal> {
    let tries = turn
        .state
        .step(index)
        .map_or(u32::MAX, |step| step.verifications);
    let policy = turn
        .state
        .step(index)
        .and_then(|step| turn.state.tool_of(step))
        .map(|pinned| pinned.tool.retry)
        .unwrap_or_default();
    if retryable && policy.may_retry(tries) {
        let backoff_ms = policy.wait_ms(tries.max(1), None, turn.random);
        let purpose = Purpose::Verify;
        return schedule(turn, index, error, retry_after_ms, backoff_ms, purpose);
    }
    open(
        turn,
        index,
        DeadLetterReason::OutcomeUnknown,
        error.message,
        error.errors,
    )
}
