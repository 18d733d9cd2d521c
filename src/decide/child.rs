//! A run and its child runs: what a parent wants, what it is told, and what it makes of that.
//!
//! The wish is recorded before the child exists, under the id that the child will have. So a child
//! can be called off at any time, and started twice it is still one.

use serde::{Deserialize, Serialize};

use crate::json::{Json, Violation};
use crate::plan::Action;
use crate::run::event::{ChildStatus, DeadLetterReason, Event, Parent, RunError, Settlement};
use crate::run::{Phase, State};
use crate::words::RunId;

use super::{Refusal, Reply, Turn, advance, step};

/// What a worker needs to start a child run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ChildOrder {
    /// `name` or `name@version`.
    pub agent: String,
    pub input: Json,
    pub parent: Parent,
    pub origin: Option<String>,
}

/// What a parent is told of a child run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ChildReport {
    pub step_index: u32,
    pub child_run_id: RunId,
    pub news: ChildNews,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ChildNews {
    Started {
        /// `name@version`.
        agent: String,
    },
    /// It cannot be started.
    Refused {
        reason: DeadLetterReason,
        message: String,
        errors: Vec<Violation>,
    },
    Ended(Told),
}

/// How a run ended, for its parent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Told {
    pub status: ChildStatus,
    pub output: Json,
    pub error: Option<RunError>,
    /// What it and its own children used.
    #[serde(default)]
    pub tokens: u64,
}

/// Asks for a child run.
pub(super) fn request(
    turn: &mut Turn,
    index: u32,
    agent: String,
    input: Json,
) -> Result<(), Refusal> {
    if turn.state.depth_left() == 0 {
        let depth = turn.state.parent().map_or(0, |parent| parent.depth);
        let message = format!(
            "there are {depth} runs above this one, and limits.max_depth allows none below it"
        );
        return step::give_up(turn, index, DeadLetterReason::FanOutLimit, message, vec![]);
    }
    let tokens = share(&turn.state, index);
    if tokens == Some(0) {
        let message = "limits.max_tokens leaves none for a child run".to_owned();
        return step::give_up(turn, index, DeadLetterReason::FanOutLimit, message, vec![]);
    }
    let seed = format!("{}/{}/{index}", turn.state.run_id(), turn.state.seq);
    let run_id = RunId::derive(turn.now, &seed);
    turn.record(
        Some(index),
        Event::ChildRequested {
            run_id,
            agent,
            input,
            tokens,
        },
    )
}

/// Of the tokens that the run has left, the part that its next child may use: those that are to be
/// begun beside it, and the run itself, get as much.
fn share(state: &State, index: u32) -> Option<u64> {
    let max = state.limits.max_tokens?;
    let running = state
        .steps
        .iter()
        .filter(|s| s.phase == Phase::AwaitingChild);
    let children = running.filter_map(|step| step.child.as_ref());
    let granted: u64 = children.filter_map(|child| child.tokens).sum();
    let used = state.tokens.used().saturating_add(granted);
    let left = max.saturating_sub(used);
    let beside = state.steps_indexed().filter(|(other, step)| {
        let action = state.planned(*other).map(|planned| &planned.action);
        *other != index
            && step.phase == Phase::Pending
            && matches!(action, Some(Action::Run { .. }))
    });
    Some(left / (beside.count() as u64 + 2))
}

/// What the child of a step is to be started with, as long as it is wanted and not known to exist.
pub fn order(state: &State, index: u32, child_run_id: &RunId) -> Option<ChildOrder> {
    let step = state.step(index)?;
    let child = step.child.as_ref()?;
    let wanted = step.phase == Phase::AwaitingChild
        && &child.run_id == child_run_id
        && !child.started
        && state.paused_at.is_none()
        && !state.status.is_end();
    let depth = state.parent().map_or(0, |parent| parent.depth);
    let root = state.parent().map(|parent| parent.root_run_id.clone());
    wanted.then(|| ChildOrder {
        agent: child.agent.clone(),
        input: child.input.clone(),
        parent: Parent {
            run_id: state.run_id().clone(),
            step_index: index,
            root_run_id: root.unwrap_or_else(|| state.run_id().clone()),
            depth: depth.saturating_add(1),
            depth_left: state.depth_left().saturating_sub(1),
            deadline: state.deadline(),
            tokens: child.tokens,
        },
        origin: state.created.origin.clone(),
    })
}

/// How the run ended, for its parent. `None`: it has not.
pub fn told(state: &State) -> Option<Told> {
    use crate::run::Status;
    state.ended_at?;
    let status = match state.status {
        Status::Completed => ChildStatus::Completed,
        Status::Failed => ChildStatus::Failed,
        Status::Cancelled => ChildStatus::Cancelled,
        _ => return None,
    };
    Some(Told {
        status,
        output: state.output.clone(),
        error: state.error.clone(),
        tokens: state.tokens.used(),
    })
}

/// Takes news of a child once. What is no news, or of a child that is not the step's any more, is
/// nothing to do.
pub(super) fn take(turn: &mut Turn, report: ChildReport) -> Result<Reply, Refusal> {
    let index = report.step_index;
    let Some(step) = turn.state.step(index) else {
        return Ok(Reply::Done);
    };
    let Some(child) = &step.child else {
        return Ok(Reply::Done);
    };
    if child.run_id != report.child_run_id || turn.state.status.is_end() {
        return Ok(Reply::Done);
    }
    let awaited = step.phase == Phase::AwaitingChild;
    let run_id = report.child_run_id;
    match report.news {
        ChildNews::Started { agent } if awaited && !child.started => {
            turn.record(Some(index), Event::ChildStarted { run_id, agent })?;
        }
        ChildNews::Refused {
            reason,
            message,
            errors,
        } if awaited && !child.started => {
            step::give_up(turn, index, reason, message, errors)?;
        }
        ChildNews::Ended(told) if awaited => end(turn, index, run_id, told)?,
        ChildNews::Ended(told) if told.status == ChildStatus::Completed => {
            mend(turn, index, run_id, told)?;
        }
        _ => return Ok(Reply::Done),
    }
    advance::advance(turn)?;
    Ok(Reply::Done)
}

fn end(turn: &mut Turn, index: u32, run_id: RunId, told: Told) -> Result<(), Refusal> {
    let (status, name) = (told.status, run_id.clone());
    let why = told.error.as_ref().map(|error| error.message.clone());
    record_end(turn, index, run_id, told)?;
    if status == ChildStatus::Completed {
        return Ok(());
    }
    let why = why.map_or(String::new(), |why| format!(": {why}"));
    let message = format!(
        "the child run {name} {}{why}",
        match status {
            ChildStatus::Cancelled => "was cancelled",
            _ => "failed",
        }
    );
    step::give_up(turn, index, DeadLetterReason::ChildFailed, message, vec![])
}

/// A child that had failed was retried and has succeeded: what a person was asked about is settled.
fn mend(turn: &mut Turn, index: u32, run_id: RunId, told: Told) -> Result<(), Refusal> {
    let Some(Phase::DeadLettered { dead_letter_id }) =
        turn.state.step(index).map(|step| step.phase.clone())
    else {
        return Ok(());
    };
    let letter = turn.state.dead_letter(&dead_letter_id);
    if letter.map(|letter| letter.reason) != Some(DeadLetterReason::ChildFailed) {
        return Ok(());
    }
    let result = told.output.clone();
    record_end(turn, index, run_id, told)?;
    turn.record(
        Some(index),
        Event::DeadLetterSettled {
            dead_letter_id,
            settlement: Settlement::Resolved { result },
            request: None,
        },
    )
}

fn record_end(turn: &mut Turn, index: u32, run_id: RunId, told: Told) -> Result<(), Refusal> {
    let Told {
        status,
        output,
        error,
        tokens,
    } = told;
    turn.record(
        Some(index),
        Event::ChildEnded {
            run_id,
            status,
            output,
            error,
            tokens,
        },
    )
}
