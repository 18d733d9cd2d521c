//! A tool that had answered 202 reports how its call went.
//!
//! A callback is of one attempt of one intent, and counts once. It may overtake the 202 that
//! announced it, and even the loss of the worker that made the call: the tool did the work under the
//! step's key, so its success is the step's, whichever attempt it was of.

use serde::{Deserialize, Serialize};

use crate::json::Json;
use crate::run::event::{
    CallbackStatus, DeadLetterReason, Event, RequestRef, Settlement, StepError, WaitKind,
    WaitOutcome,
};
use crate::run::{Phase, Step};
use crate::tool::Effect;

use super::settle::{retry, unknown};
use super::{Refusal, Reply, Turn, advance, replayed, step};

/// Which call it is of, and what came of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Callback {
    pub step_index: u32,
    pub attempt: u32,
    /// Of the intent that the call was for.
    pub idempotency_key: String,
    pub report: CallbackReport,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CallbackReport {
    Succeeded { result: Json },
    Failed { message: String, retryable: bool },
}

pub(super) fn take(
    turn: &mut Turn,
    callback: Callback,
    request: Option<RequestRef>,
) -> Result<Reply, Refusal> {
    if let Some(reply) = replayed(&turn.state, request.as_ref())? {
        return Ok(reply);
    }
    let index = callback.step_index;
    let letter = still_wanted(turn, &callback).map_err(|message| Refusal::Gone { message })?;
    if let CallbackReport::Succeeded { result } = &callback.report {
        step::require_result(turn, index, result)?;
    }
    let awaited = matches!(
        turn.state.step(index).map(|step| &step.phase),
        Some(Phase::AwaitingCallback { .. })
    );
    let status = match callback.report {
        CallbackReport::Succeeded { .. } => CallbackStatus::Succeeded,
        CallbackReport::Failed { .. } => CallbackStatus::Failed,
    };
    let attempt = callback.attempt;
    turn.record(
        Some(index),
        Event::CallbackReceived {
            attempt,
            status,
            request,
        },
    )?;
    if awaited {
        let kind = WaitKind::Callback;
        let outcome = WaitOutcome::Received;
        turn.record(Some(index), Event::WaitEnded { kind, outcome })?;
    }
    match (callback.report, letter) {
        (CallbackReport::Succeeded { result }, Some(dead_letter_id)) => turn.record(
            Some(index),
            Event::DeadLetterSettled {
                dead_letter_id,
                settlement: Settlement::Resolved { result },
                request: None,
            },
        )?,
        (CallbackReport::Succeeded { result }, None) => turn.record(
            Some(index),
            Event::ToolCompleted {
                attempt,
                result,
                status_code: None,
                duplicates_suppressed: 0,
            },
        )?,
        (CallbackReport::Failed { message, retryable }, _) => {
            let error = StepError {
                reason: DeadLetterReason::RejectedByTool.as_str().to_owned(),
                message,
                status_code: None,
                errors: Vec::new(),
            };
            if retryable {
                retry(turn, index, error, None)?;
            } else {
                step::fail(turn, index, error, DeadLetterReason::RejectedByTool)?;
            }
        }
    }
    advance::advance(turn)?;
    Ok(Reply::Done)
}

/// Why a callback is of no use any more, or the dead letter that it settles, if it settles one.
fn still_wanted(
    turn: &Turn,
    callback: &Callback,
) -> Result<Option<crate::words::DeadLetterId>, String> {
    let state = &turn.state;
    if state.status.is_end() {
        return Err(format!("the run has ended: {}", state.status.as_str()));
    }
    let step = state.step(callback.step_index);
    let of_intent = |step: &&Step| {
        let request = step.request.as_ref();
        request.is_some_and(|request| request.idempotency_key == callback.idempotency_key)
    };
    let Some(step) = step.filter(of_intent) else {
        return Err("the call was replaced by one with other arguments".into());
    };
    if step.called_back.contains(&callback.attempt) {
        return Err(format!(
            "attempt {} was called back before",
            callback.attempt
        ));
    }
    let succeeded = matches!(callback.report, CallbackReport::Succeeded { .. });
    match &step.phase {
        Phase::Ready { .. }
        | Phase::Running { .. }
        | Phase::Retrying { .. }
        | Phase::AwaitingCallback { .. } => {
            if succeeded || callback.attempt == step.attempt {
                Ok(None)
            } else {
                Err(format!("attempt {} is under way", step.attempt))
            }
        }
        Phase::DeadLettered { dead_letter_id } if succeeded => {
            let letter = state.dead_letter(dead_letter_id);
            match letter.map(|letter| letter.reason) {
                // What was not known is known now.
                Some(
                    DeadLetterReason::OutcomeUnknown
                    | DeadLetterReason::RetriesExhausted
                    | DeadLetterReason::Undeliverable,
                ) => Ok(Some(dead_letter_id.clone())),
                _ => Err(format!("the step waits for a person: {dead_letter_id}")),
            }
        }
        Phase::DeadLettered { dead_letter_id } => {
            Err(format!("the step waits for a person: {dead_letter_id}"))
        }
        _ => Err(format!("the step is {}", step.status())),
    }
}

/// The tool took the call and will call back: until then the step waits, and nobody works.
pub(super) fn wait(turn: &mut Turn, index: u32) -> Result<(), Refusal> {
    let step = turn.state.step(index);
    let pinned = step.and_then(|step| turn.state.tool_of(step));
    let timeout_ms = pinned.map_or(0, |pinned| pinned.tool.callback_timeout_ms);
    turn.record(
        Some(index),
        Event::WaitStarted {
            kind: WaitKind::Callback,
            until: Some(turn.now.plus_ms(timeout_ms)),
            names: Vec::new(),
        },
    )
}

/// The callback did not come in time: the same as a call that was not answered.
pub(super) fn time_out(turn: &mut Turn, index: u32) -> Result<(), Refusal> {
    let kind = WaitKind::Callback;
    let outcome = WaitOutcome::TimedOut;
    turn.record(Some(index), Event::WaitEnded { kind, outcome })?;
    let error = StepError {
        reason: "callback_timed_out".into(),
        message: "the tool answered 202 and did not call back in time".into(),
        status_code: Some(202),
        errors: Vec::new(),
    };
    let step = turn.state.step(index);
    let pinned = step.and_then(|step| turn.state.tool_of(step));
    match pinned.map(|pinned| pinned.tool.effect) {
        Some(Effect::AtMostOnce) => unknown(turn, index, error),
        _ => retry(turn, index, error, None),
    }
}
