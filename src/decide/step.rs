//! A step's intent, and its failure.

use crate::agent::Mind;
use crate::json::{self, Json, Violation};
use crate::plan::OnFailure;
use crate::run::event::{DeadLetterReason, Event, StepError};
use crate::schema;

use super::dead_letter::open;
use super::{Refusal, Turn, approval};

/// Records what a step wants of a tool. Where the tool wants a person's leave for it, that is asked
/// for in the same commit, so that nothing can act before.
pub(super) fn request_tool(
    turn: &mut Turn,
    index: u32,
    tool: String,
    arguments: Json,
) -> Result<(), Refusal> {
    let misfits = misfits(turn, &tool, &arguments);
    turn.record(Some(index), Event::ToolRequested { tool, arguments })?;
    if misfits.is_empty() {
        return approval::ask_if_wanted(turn, index);
    }
    let message = format!("the arguments do not fit: {}", json::sentence(&misfits));
    give_up(
        turn,
        index,
        DeadLetterReason::InvalidArguments,
        message,
        misfits,
    )
}

/// Nobody is asked about a call that could not be made.
fn misfits(turn: &Turn, tool: &str, arguments: &Json) -> Vec<Violation> {
    let pinned = turn.state.tools.get(tool);
    let guarded = pinned.filter(|pinned| pinned.tool.requires_approval);
    let wanted = guarded.and_then(|pinned| pinned.tool.parameters.as_ref());
    let checked =
        wanted.map(|wanted| schema::validate_with(wanted, arguments, "/payload/arguments"));
    checked.and_then(Result::err).unwrap_or_default()
}

/// The step failed in a way that a person may mend: what follows is the plan's to say.
pub(super) fn fail(
    turn: &mut Turn,
    index: u32,
    error: StepError,
    reason: DeadLetterReason,
) -> Result<(), Refusal> {
    let planned = turn.state.planned(index);
    let on_failure = planned.map_or(OnFailure::DeadLetter, |planned| planned.on_failure);
    let (message, errors) = (error.message.clone(), error.errors.clone());
    record_failure(turn, index, error)?;
    match on_failure {
        OnFailure::DeadLetter => open(turn, index, reason, message, errors),
        OnFailure::Fail | OnFailure::Continue => Ok(()),
    }
}

/// There is no such tool among those that the run pinned.
pub(super) fn unknown_tool(turn: &mut Turn, index: u32, tool: &str) -> Result<(), Refusal> {
    let message = format!(
        "the tenant had no tool {tool} when the run started: store it with PUT /v1/tools/{tool}, then redeliver"
    );
    let errors = vec![Violation::new("/payload/tool", message.clone())];
    give_up(turn, index, DeadLetterReason::UnknownTool, message, errors)
}

/// A step that cannot even be begun fails like one that was tried: what follows is the plan's to say.
pub(super) fn give_up(
    turn: &mut Turn,
    index: u32,
    reason: DeadLetterReason,
    message: String,
    errors: Vec<Violation>,
) -> Result<(), Refusal> {
    let error = StepError {
        reason: reason.as_str().to_owned(),
        message,
        status_code: None,
        errors,
    };
    fail(turn, index, error, reason)
}

/// A result that does not come from the tool's own answer is held against the same schema.
pub(super) fn require_result(turn: &Turn, index: u32, result: &Json) -> Result<(), Refusal> {
    let step = turn.state.step(index);
    let of_tool = step
        .and_then(|step| turn.state.tool_of(step))
        .and_then(|pinned| pinned.tool.result.as_ref());
    // Of a round it is the run's output.
    let of_round = match turn.state.agent.mind() {
        Some(Mind::Model(planner)) => planner.output_schema.as_ref(),
        _ => None,
    };
    let of_round = of_round.filter(|_| step.is_some_and(|step| step.is_round()));
    let Some(wanted) = of_tool.or(of_round) else {
        return Ok(());
    };
    schema::validate_with(wanted, result, "/result")
        .map_err(|violations| Refusal::Invalid { violations })
}

/// The step failed as it may: nothing is to be mended, so no person is asked.
pub(super) fn fail_for_good(
    turn: &mut Turn,
    index: u32,
    reason: &str,
    message: String,
) -> Result<(), Refusal> {
    let error = StepError {
        reason: reason.to_owned(),
        message,
        status_code: None,
        errors: Vec::new(),
    };
    turn.record(Some(index), Event::StepFailed { error })
}

fn record_failure(turn: &mut Turn, index: u32, error: StepError) -> Result<(), Refusal> {
    let step = turn.state.step(index);
    let event = match step.filter(|step| step.kind == "tool") {
        Some(step) => Event::ToolFailed {
            attempt: step.attempt,
            error,
        },
        None => Event::StepFailed { error },
    };
    turn.record(Some(index), event)
}
