//! A run as a whole is cancelled, paused, resumed or retried.
//!
//! Each is idempotent: asked for what is so already, there is nothing to do.

use crate::run::event::{Event, RequestRef, StepError};
use crate::run::{Phase, Status};
use crate::tool::Effect;
use crate::words::limits::LOG_BYTES_MAX;

use super::{Control, Refusal, Reply, Turn, advance, approval, replayed, settle, step, tick};

pub(super) fn control(
    turn: &mut Turn,
    control: Control,
    comment: Option<String>,
    request: Option<RequestRef>,
) -> Result<Reply, Refusal> {
    if let Some(reply) = replayed(&turn.state, request.as_ref())? {
        return Ok(reply);
    }
    match control {
        Control::Cancel => cancel(turn, comment, request),
        Control::Pause => pause(turn, comment, request),
        Control::Resume => resume(turn, comment, request),
        Control::Retry => retry(turn, comment, request),
    }
}

fn refuse_ended(status: Status) -> Result<(), Refusal> {
    if status.is_end() {
        return Err(Refusal::Ended {
            status: status.as_str().to_owned(),
        });
    }
    Ok(())
}

/// No further effect is started, and one under way is recorded when it comes back. What has ended
/// otherwise cannot be cancelled any more.
fn cancel(
    turn: &mut Turn,
    comment: Option<String>,
    request: Option<RequestRef>,
) -> Result<Reply, Refusal> {
    if turn.state.status == Status::Cancelled {
        return Ok(Reply::Done);
    }
    refuse_ended(turn.state.status)?;
    advance::cancel_idle_steps(turn)?;
    let under_way = turn.state.steps.iter().any(|step| step.lease().is_some());
    let event = if under_way {
        Event::RunCancelRequested { comment, request }
    } else {
        Event::RunCancelled { comment, request }
    };
    turn.record(None, event)?;
    Ok(Reply::Done)
}

fn pause(
    turn: &mut Turn,
    comment: Option<String>,
    request: Option<RequestRef>,
) -> Result<Reply, Refusal> {
    refuse_ended(turn.state.status)?;
    if turn.state.paused_at.is_none() {
        turn.record(None, Event::RunPaused { comment, request })?;
    }
    Ok(Reply::Done)
}

/// What fell due meanwhile happens now, in its order.
fn resume(
    turn: &mut Turn,
    comment: Option<String>,
    request: Option<RequestRef>,
) -> Result<Reply, Refusal> {
    refuse_ended(turn.state.status)?;
    if turn.state.paused_at.is_some() {
        turn.record(None, Event::RunResumed { comment, request })?;
        tick::tick(turn)?;
    }
    Ok(Reply::Done)
}

fn retry(
    turn: &mut Turn,
    comment: Option<String>,
    request: Option<RequestRef>,
) -> Result<Reply, Refusal> {
    let state = &turn.state;
    let status = state.status.as_str().to_owned();
    let refuse = |message: String| Err(Refusal::NotRetryable { status, message });
    if state.status != Status::Failed {
        return refuse("only a failed run can be retried".into());
    }
    if state.log_bytes > LOG_BYTES_MAX {
        return refuse("its log has no room for more".into());
    }
    let inherited = state.parent().and_then(|parent| parent.deadline);
    if inherited.is_some_and(|deadline| deadline <= turn.now) {
        return refuse("the deadline of its parent run has passed".into());
    }
    turn.record(None, Event::RunRetried { comment, request })?;
    doubt_again(turn)?;
    miss_tools_again(turn)?;
    approval::ask_where_wanted(turn)?;
    advance::advance(turn)?;
    Ok(Reply::Done)
}

/// A step whose tool the run has not pinned cannot be called, retried or not: a person is asked again.
fn miss_tools_again(turn: &mut Turn) -> Result<(), Refusal> {
    let missing: Vec<(u32, String)> = turn
        .state
        .steps_indexed()
        .filter(|(_, step)| matches!(step.phase, Phase::Ready { .. }))
        .filter(|(_, step)| turn.state.tool_of(step).is_none())
        .filter_map(|(index, step)| Some((index, step.request.as_ref()?.tool.clone())))
        .collect();
    missing
        .into_iter()
        .try_for_each(|(index, tool)| step::unknown_tool(turn, index, &tool))
}

/// A call that must not be made twice, and of which nobody knows what came: that the run is retried
/// is no leave to make it again.
fn doubt_again(turn: &mut Turn) -> Result<(), Refusal> {
    let doubtful: Vec<u32> = turn
        .state
        .steps_indexed()
        .filter(|(_, step)| step.in_doubt && matches!(step.phase, Phase::Ready { .. }))
        .filter(|(index, _)| settle::effect(turn, *index) == Effect::AtMostOnce)
        .map(|(index, _)| index)
        .collect();
    for index in doubtful {
        let error = StepError {
            reason: "outcome_unknown".into(),
            message: "the run ended before it was known what came of the call".into(),
            status_code: None,
            errors: Vec::new(),
        };
        settle::unknown(turn, index, error)?;
    }
    Ok(())
}
