//! Goes as far as the run can go by itself: begins the steps whose turn has come, and ends the run
//! when nothing is left.

use serde_json::json;

use crate::agent::Planner;
use crate::expression::Scope;
use crate::fields::shorten;
use crate::json::{self, Json, Value, Violation};
use crate::plan::{Action, Plan};
use crate::run::event::{DeadLetterReason, Event, RunError, SkipReason, WaitKind, WaitOutcome};
use crate::run::state::PlannerEnd;
use crate::run::{Phase, State, Step};
use crate::words::limits::{LOG_BYTES_MAX, VALUE_BYTES_MAX};
use crate::words::{DurationMs, Timestamp};

use super::{Refusal, Turn, approval, child, round, signal, step};

pub(super) fn advance(turn: &mut Turn) -> Result<(), Refusal> {
    // Each round begins at least one step or stops, so there are at most as many as steps.
    loop {
        if turn.state.has_ended() {
            return Ok(());
        }
        if turn.state.cancelling {
            return end_cancelled(turn);
        }
        if turn.state.paused_at.is_some() {
            return Ok(());
        }
        if let Some(error) = failure(&turn.state) {
            return fail_run(turn, error);
        }
        let Some(plan) = turn.state.plan() else {
            if turn.state.agent.mind().is_some() && round::go_on(turn)? {
                continue;
            }
            return end_planned(turn);
        };
        let begun = match next_step(&turn.state, plan) {
            Some(index) => index,
            None => return end_plan(turn),
        };
        begin(turn, begun)?;
    }
}

/// What ends the run in failure, if anything does.
fn failure(state: &State) -> Option<RunError> {
    if let Some((index, step, error)) = state.failing() {
        return Some(RunError {
            reason: error.reason.clone(),
            message: error.message.clone(),
            step_index: Some(index),
            step_id: Some(step.id.clone()),
        });
    }
    (state.log_bytes > LOG_BYTES_MAX).then(|| RunError {
        reason: "log_too_large".into(),
        message: format!(
            "the run's log has {} bytes; at most {LOG_BYTES_MAX}",
            state.log_bytes
        ),
        step_index: None,
        step_id: None,
    })
}

/// Nothing new is begun. What is in a worker's hands is waited for, so that its outcome is
/// recorded; then the run ends.
fn fail_run(turn: &mut Turn, error: RunError) -> Result<(), Refusal> {
    if turn.state.steps.iter().any(|step| step.lease().is_some()) {
        return Ok(());
    }
    cancel_open_steps(turn)?;
    turn.record(None, Event::RunFailed { error })
}

/// Closes the log of a run that was called off, once nothing is under way any more.
fn end_cancelled(turn: &mut Turn) -> Result<(), Refusal> {
    if turn.state.steps.iter().any(|step| step.lease().is_some()) {
        return Ok(());
    }
    cancel_open_steps(turn)?;
    let (comment, request) = (None, None);
    turn.record(None, Event::RunCancelled { comment, request })
}

/// Cancels the steps that no worker holds.
pub(super) fn cancel_idle_steps(turn: &mut Turn) -> Result<(), Refusal> {
    let idle = |step: &Step| !step.is_done() && step.lease().is_none();
    cancel_steps(turn, idle)
}

pub(super) fn cancel_open_steps(turn: &mut Turn) -> Result<(), Refusal> {
    cancel_steps(turn, |step| !step.is_done())
}

fn cancel_steps(turn: &mut Turn, which: impl Fn(&Step) -> bool) -> Result<(), Refusal> {
    let steps: Vec<u32> = turn
        .state
        .steps_indexed()
        .filter(|(_, step)| which(step))
        .map(|(index, _)| index)
        .collect();
    for index in steps {
        turn.record(Some(index), Event::StepCancelled {})?;
    }
    Ok(())
}

/// Whether one more call, or child run, may be begun beside those in flight.
pub(super) fn has_room(state: &State) -> bool {
    let in_flight = |step: &&Step| step.is_active() || step.phase == Phase::AwaitingChild;
    let active = state.steps.iter().filter(in_flight).count();
    active < state.limits.max_parallel as usize
}

/// Whether an action counts against what may be in flight.
pub(super) fn takes_room(action: &Action) -> bool {
    matches!(action, Action::Tool { .. } | Action::Run { .. })
}

fn next_step(state: &State, plan: &Plan) -> Option<u32> {
    let done = |index: usize| state.steps.get(index).is_some_and(Step::is_done);
    let begun = |index: usize| {
        state
            .steps
            .get(index)
            .is_none_or(|step| step.phase != Phase::Pending)
    };
    let may_call = has_room(state);
    plan.ready(done, begun)
        .into_iter()
        .find(|index| {
            let takes_room = |step: &crate::plan::Step| takes_room(&step.action);
            may_call || !plan.steps.get(*index).is_some_and(takes_room)
        })
        .map(|index| index as u32)
}

/// What a step's turn leads to, worked out before anything is recorded.
enum Begin {
    Skip,
    Request {
        tool: String,
        arguments: Value,
        known: bool,
    },
    Emit {
        r#type: String,
        data: Value,
    },
    Sleep {
        until: Timestamp,
    },
    Wait {
        names: Vec<String>,
        until: Option<Timestamp>,
    },
    Ask {
        prompt: String,
        schema: Option<Json>,
        until: Option<Timestamp>,
    },
    Child {
        agent: String,
        input: Value,
    },
    Malformed {
        tool: Option<(String, Value)>,
        violations: Vec<Violation>,
    },
}

pub(super) fn begin(turn: &mut Turn, index: u32) -> Result<(), Refusal> {
    let Some(begin) = plan_begin(&turn.state, index, turn.now) else {
        return Ok(());
    };
    let step = Some(index);
    match begin {
        Begin::Skip => turn.record(
            step,
            Event::StepSkipped {
                reason: SkipReason::When,
            },
        ),
        Begin::Emit { r#type, data } => turn.record(
            step,
            Event::EventEmitted {
                r#type,
                data: Json::new(data),
            },
        ),
        Begin::Sleep { until } => {
            let kind = WaitKind::Sleep;
            let started = Event::WaitStarted {
                kind,
                until: Some(until),
                names: Vec::new(),
            };
            turn.record(step, started)?;
            if until > turn.now {
                return Ok(());
            }
            let outcome = WaitOutcome::Elapsed;
            turn.record(step, Event::WaitEnded { kind, outcome })
        }
        Begin::Wait { names, until } => signal::wait(turn, index, names, until),
        Begin::Ask {
            prompt,
            schema,
            until,
        } => approval::ask(turn, index, prompt, schema, until),
        Begin::Child { agent, input } => child::request(turn, index, agent, Json::new(input)),
        Begin::Request {
            tool,
            arguments,
            known,
        } => {
            step::request_tool(turn, index, tool.clone(), Json::new(arguments))?;
            if known {
                return Ok(());
            }
            step::unknown_tool(turn, index, &tool)
        }
        Begin::Malformed { tool, violations } => {
            if let Some((tool, arguments)) = tool {
                let event = Event::ToolRequested {
                    tool,
                    arguments: Json::new(arguments),
                };
                turn.record(step, event)?;
            }
            let message = json::sentence(&violations);
            let reason = DeadLetterReason::InvalidArguments;
            step::give_up(turn, index, reason, message, violations)
        }
    }
}

fn under(at: &str, violations: Vec<Violation>) -> Vec<Violation> {
    let moved = |v: Violation| Violation::new(format!("{at}{}", v.pointer), v.message);
    violations.into_iter().map(moved).collect()
}

/// `None`: nobody planned such a step.
fn plan_begin(state: &State, index: u32, now: Timestamp) -> Option<Begin> {
    let planned = state.planned(index)?;
    let run = run_scope(state);
    let result = |id: &str| step_result(state, id);
    let scope = Scope {
        input: &state.created.input,
        run: &run,
        steps: &result,
    };
    if let Some(when) = &planned.when {
        match when.eval_condition(&scope) {
            Ok(true) => {}
            Ok(false) => return Some(Begin::Skip),
            Err(error) => {
                let violations = vec![Violation::new("/when", error.to_string())];
                return Some(Begin::Malformed {
                    tool: None,
                    violations,
                });
            }
        }
    }
    let malformed = |violations| Begin::Malformed {
        tool: None,
        violations,
    };
    Some(match &planned.action {
        Action::Tool { tool, arguments } => {
            let pinned = state.tools.contains_key(tool);
            match arguments.render(&scope, VALUE_BYTES_MAX) {
                Ok(arguments) if !arguments.is_object() => {
                    let message = "the arguments of a tool are an object";
                    let violations = vec![Violation::new("/payload/arguments", message)];
                    let as_written = arguments_as_written(state, index);
                    Begin::Malformed {
                        tool: Some((tool.clone(), as_written)),
                        violations,
                    }
                }
                Ok(arguments) => Begin::Request {
                    tool: tool.clone(),
                    arguments,
                    known: pinned,
                },
                Err(violations) => Begin::Malformed {
                    tool: Some((tool.clone(), arguments_as_written(state, index))),
                    violations: under("/payload/arguments", violations),
                },
            }
        }
        Action::Emit { r#type, data } => match data.render(&scope, VALUE_BYTES_MAX) {
            Ok(data) => Begin::Emit {
                r#type: r#type.clone(),
                data,
            },
            Err(violations) => malformed(violations),
        },
        Action::Sleep { duration_ms } => Begin::Sleep {
            until: now.plus_ms(*duration_ms),
        },
        Action::SleepUntil { at } => match at.render(&scope, VALUE_BYTES_MAX) {
            Ok(value) => match value.as_str().map(Timestamp::parse) {
                Some(Ok(until)) if until <= now.plus_ms(DurationMs::MAX.ms()) => {
                    Begin::Sleep { until }
                }
                Some(Ok(until)) => malformed(vec![Violation::new(
                    "/sleep_until",
                    format!("{until} is more than ten years away"),
                )]),
                _ => malformed(vec![Violation::new(
                    "/sleep_until",
                    format!(
                        "expected an RFC 3339 time, got {}",
                        shorten(&json::write(&value))
                    ),
                )]),
            },
            Err(violations) => malformed(violations),
        },
        Action::WaitFor { names, .. } => Begin::Wait {
            names: names.clone(),
            until: planned.timeout_ms.map(|ms| now.plus_ms(ms)),
        },
        Action::Approval { prompt, schema } => match prompt.render(&scope, VALUE_BYTES_MAX) {
            Ok(prompt) => Begin::Ask {
                prompt: match prompt {
                    Value::String(text) => text,
                    other => json::write(&other),
                },
                schema: schema.clone().map(Json::new),
                until: planned.timeout_ms.map(|ms| now.plus_ms(ms)),
            },
            Err(violations) => malformed(under("/approval/prompt", violations)),
        },
        Action::Run { agent, input } => match input.render(&scope, VALUE_BYTES_MAX) {
            Ok(input) => Begin::Child {
                agent: agent.clone(),
                input,
            },
            Err(violations) => malformed(under("/run/input", violations)),
        },
    })
}

/// A step's arguments with their expressions: what a person sees who must repair them.
fn arguments_as_written(state: &State, index: u32) -> Value {
    let Planner::Plan(_, plan) = &state.agent.planner else {
        return Value::Null;
    };
    let step = plan
        .get("steps")
        .and_then(|steps| steps.get(index as usize));
    step.and_then(|step| step.get("arguments"))
        .cloned()
        .unwrap_or_else(|| json!({}))
}

/// Ends a run whose every step is done.
fn end_plan(turn: &mut Turn) -> Result<(), Refusal> {
    if !turn.state.steps.iter().all(Step::is_done) {
        return Ok(());
    }
    let state = &turn.state;
    let run = run_scope(state);
    let result = |id: &str| step_result(state, id);
    let scope = Scope {
        input: &state.created.input,
        run: &run,
        steps: &result,
    };
    let output = match state.plan().and_then(|plan| plan.output.as_ref()) {
        Some(template) => template.render(&scope, VALUE_BYTES_MAX).map(Json::new),
        None => Ok(state
            .steps
            .last()
            .map_or_else(Json::null, |step| step.result.clone())),
    };
    match output {
        Ok(output) => turn.record(None, Event::RunCompleted { output }),
        Err(violations) => {
            let error = RunError {
                reason: "invalid_output".into(),
                message: format!("the plan's output: {}", json::sentence(&violations)),
                step_index: None,
                step_id: None,
            };
            turn.record(None, Event::RunFailed { error })
        }
    }
}

/// Ends a run whose planner is done, once its steps are.
fn end_planned(turn: &mut Turn) -> Result<(), Refusal> {
    let Some(end) = turn.state.planner_end.clone() else {
        return Ok(());
    };
    match end {
        PlannerEnd::Failed { message } => {
            let error = RunError {
                reason: "planner_failed".into(),
                message,
                step_index: None,
                step_id: None,
            };
            fail_run(turn, error)
        }
        PlannerEnd::Completed { output } if turn.state.steps.iter().all(Step::is_done) => {
            turn.record(None, Event::RunCompleted { output })
        }
        PlannerEnd::Completed { .. } => Ok(()),
    }
}

/// `run` in expressions.
fn run_scope(state: &State) -> Value {
    json!({
        "run_id": state.run_id().as_str(),
        "tenant_id": state.tenant_id().as_str(),
        "trace_id": state.trace_id().as_str(),
        "created_at": state.created_at.to_string(),
        "agent": state.created.agent,
        "tags": state.created.tags,
    })
}

fn step_result<'a>(state: &'a State, id: &str) -> Option<&'a Value> {
    let index = state.plan()?.index_of(id)?;
    let step = state.steps.get(index)?;
    step.is_done().then_some(&*step.result)
}
