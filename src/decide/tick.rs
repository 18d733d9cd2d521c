//! Time has passed: leases end, sleepers wake, waits time out, a deadline falls.

use crate::run::event::{
    DeadLetterReason, Event, Purpose, RunError, StepError, WaitKind, WaitOutcome,
};
use crate::run::{Phase, State};
use crate::tool::Effect;
use crate::words::Timestamp;
use crate::words::limits::DELIVERY_LOSSES_MAX;

use super::dead_letter::open;
use super::settle::unknown;
use super::{Refusal, Reply, Turn, advance, approval, callback, signal};

/// Everything that is due by now happens in the order in which it fell due, the run's deadline
/// among it.
pub(super) fn tick(turn: &mut Turn) -> Result<Reply, Refusal> {
    if turn.state.has_ended() {
        return Ok(Reply::Done);
    }
    let deadline = turn.state.deadline().filter(|at| *at <= turn.now);
    for (at, index) in due(&turn.state, turn.now) {
        if deadline.is_some_and(|deadline| deadline < at) {
            break;
        }
        fall_due(turn, index)?;
    }
    advance::advance(turn)?;
    if deadline.is_some() && !turn.state.status.is_end() {
        let error = RunError {
            reason: "deadline_exceeded".into(),
            message: "the run did not end before its deadline".into(),
            step_index: None,
            step_id: None,
        };
        advance::cancel_open_steps(turn)?;
        turn.record(None, Event::RunFailed { error })?;
    }
    Ok(Reply::Done)
}

/// What the alarm has to see to at `now`, the earliest first. A paused run's timers wait with it;
/// its workers do not.
fn due(state: &State, now: Timestamp) -> Vec<(Timestamp, u32)> {
    let mut due: Vec<(Timestamp, u32)> = state
        .steps_indexed()
        .filter(|(_, step)| state.paused_at.is_none() || step.lease().is_some())
        .filter_map(|(index, step)| Some((step.due()?, index)))
        .filter(|(at, _)| *at <= now)
        .collect();
    due.sort_unstable();
    due
}

fn fall_due(turn: &mut Turn, index: u32) -> Result<(), Refusal> {
    let Some(step) = turn.state.step(index) else {
        return Ok(());
    };
    match step.phase.clone() {
        Phase::Sleeping { .. } => turn.record(
            Some(index),
            Event::WaitEnded {
                kind: WaitKind::Sleep,
                outcome: WaitOutcome::Elapsed,
            },
        ),
        Phase::AwaitingSignal { .. } => signal::time_out(turn, index),
        Phase::AwaitingApproval { approval_id, .. } => approval::expire(turn, index, approval_id),
        Phase::AwaitingCallback { .. } => callback::time_out(turn, index),
        Phase::Running { lease } => lose(turn, index, lease.token, lease.purpose),
        _ => Ok(()),
    }
}

/// The worker that held the step is gone. That is no attempt of the tool; but whether the tool
/// acted is not known.
fn lose(turn: &mut Turn, index: u32, token: u64, purpose: Purpose) -> Result<(), Refusal> {
    let Some(step) = turn.state.step(index) else {
        return Ok(());
    };
    let attempt = step.attempt;
    let losses = step.losses.saturating_add(1);
    let effect = turn
        .state
        .tool_of(step)
        .map_or(Effect::AtMostOnce, |pinned| pinned.tool.effect);
    let of_round = step.is_round();
    let event = if of_round {
        Event::PlanLeaseExpired {
            attempt,
            token,
            losses,
        }
    } else {
        Event::ToolLeaseExpired {
            attempt,
            token,
            losses,
        }
    };
    turn.record(Some(index), event)?;
    if !of_round && effect == Effect::AtMostOnce && purpose == Purpose::Call {
        let error = StepError {
            reason: "outcome_unknown".into(),
            message: "the worker that made the call was lost before it could report".into(),
            status_code: None,
            errors: Vec::new(),
        };
        return unknown(turn, index, error);
    }
    if losses >= DELIVERY_LOSSES_MAX {
        let message = format!("{losses} workers in a row took the step and never reported");
        return open(
            turn,
            index,
            DeadLetterReason::Undeliverable,
            message,
            Vec::new(),
        );
    }
    Ok(())
}
