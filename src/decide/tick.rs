//! Time has passed: leases end, sleepers wake, a deadline falls.

use crate::run::Phase;
use crate::run::event::{DeadLetterReason, Event, Purpose, RunError, StepError, WaitKind};
use crate::tool::Effect;
use crate::words::limits::DELIVERY_LOSSES_MAX;

use super::dead_letter::open;
use super::settle::unknown;
use super::{Refusal, Reply, Turn, advance};

pub(super) fn tick(turn: &mut Turn) -> Result<Reply, Refusal> {
    if turn.state.has_ended() {
        return Ok(Reply::Done);
    }
    if !turn.state.cancelling
        && turn
            .state
            .deadline()
            .is_some_and(|deadline| deadline <= turn.now)
    {
        let error = RunError {
            reason: "deadline_exceeded".into(),
            message: "the run did not end before the deadline of its agent".into(),
            step_index: None,
            step_id: None,
        };
        advance::cancel_open_steps(turn)?;
        turn.record(None, Event::RunFailed { error })?;
        return Ok(Reply::Done);
    }
    let due: Vec<(u32, Phase)> = turn
        .state
        .steps_indexed()
        .filter(|(_, step)| match step.phase {
            Phase::Running { lease } => lease.until <= turn.now,
            Phase::Sleeping { until } => until <= turn.now,
            _ => false,
        })
        .map(|(index, step)| (index, step.phase.clone()))
        .collect();
    for (index, phase) in due {
        match phase {
            Phase::Sleeping { .. } => {
                turn.record(
                    Some(index),
                    Event::WaitEnded {
                        kind: WaitKind::Sleep,
                    },
                )?;
            }
            Phase::Running { lease } => lose(turn, index, lease.token, lease.purpose)?,
            _ => {}
        }
    }
    advance::advance(turn)?;
    Ok(Reply::Done)
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
    turn.record(
        Some(index),
        Event::ToolLeaseExpired {
            attempt,
            token,
            losses,
        },
    )?;
    if effect == Effect::AtMostOnce && purpose == Purpose::Call {
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
