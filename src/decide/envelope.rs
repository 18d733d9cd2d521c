//! An envelope from a client: the next intent of an external planner, or a known one once more.

use crate::agent::Planner;
use crate::envelope::Envelope;
use crate::json::{Json, Value, Violation};
use crate::run::event::{DeadLetterReason, Event, PlanCompleted, PlanFailed};

use super::dead_letter::open;
use super::{Refusal, Reply, Turn, advance, step};

pub(super) fn take(turn: &mut Turn, envelope: Envelope) -> Result<Reply, Refusal> {
    let external = matches!(turn.state.agent.planner, Planner::External);
    match envelope.event_type.as_str() {
        "tool.requested" => request(turn, envelope, external),
        "plan.completed" | "plan.failed" if external => end_of_plan(turn, &envelope),
        "plan.completed" | "plan.failed" => Err(invalid(
            "/event_type",
            "the run has a planner of its own, which decides its end",
        )),
        other => Err(invalid(
            "/event_type",
            format!(
                "{other} is recorded by the engine; a client sends tool.requested, plan.completed or plan.failed"
            ),
        )),
    }
}

fn request(turn: &mut Turn, envelope: Envelope, external: bool) -> Result<Reply, Refusal> {
    let Some(index) = envelope.step_index else {
        return Err(invalid(
            "/step_index",
            "tool.requested is of a step: expected an integer",
        ));
    };
    if let Some(step) = turn.state.step(index) {
        let same = step
            .request
            .as_ref()
            .is_some_and(|request| request.idempotency_key == envelope.idempotency_key);
        // A known intent once more is nothing to do, whatever became of it.
        return if same {
            Ok(Reply::Replayed {
                seq: step.request.as_ref().map_or(0, |request| request.seq),
            })
        } else {
            Err(invalid(
                "/payload",
                "the step is recorded with another payload",
            ))
        };
    }
    if turn.state.status.is_end() {
        return Err(Refusal::Ended {
            status: turn.state.status.as_str().to_owned(),
        });
    }
    let expected = turn.state.steps.len() as u32;
    if !external {
        return Err(invalid(
            "/step_index",
            format!("the run's plan has {expected} steps"),
        ));
    }
    if index != expected {
        return Err(invalid(
            "/step_index",
            format!("the next step of the run is {expected}"),
        ));
    }
    if expected >= turn.state.limits.max_steps {
        return Err(invalid(
            "/step_index",
            format!("the agent allows {expected} steps"),
        ));
    }
    if turn.state.planner_end.is_some() {
        return Err(invalid(
            "/event_type",
            "the planner has said that it is done",
        ));
    }
    let tool = envelope
        .payload
        .get("tool")
        .and_then(Value::as_str)
        .unwrap_or_default()
        .to_owned();
    if !envelope
        .payload
        .get("arguments")
        .is_some_and(Value::is_object)
    {
        return Err(invalid(
            "/payload/arguments",
            "the arguments of a tool are an object",
        ));
    }
    let arguments = envelope
        .payload
        .get("arguments")
        .cloned()
        .unwrap_or(Value::Null);
    let known = turn.state.tools.contains_key(&tool);
    step::request_tool(turn, index, tool.clone(), Json::new(arguments))?;
    if !known {
        let message = format!("the agent has no tool {tool}");
        let errors = vec![Violation::new("/payload/tool", message.clone())];
        open(turn, index, DeadLetterReason::UnknownTool, message, errors)?;
    }
    Ok(Reply::Done)
}

fn end_of_plan(turn: &mut Turn, envelope: &Envelope) -> Result<Reply, Refusal> {
    if turn.state.planner_end.is_some() {
        return Ok(Reply::Replayed {
            seq: turn.state.seq,
        });
    }
    if turn.state.status.is_end() {
        return Err(Refusal::Ended {
            status: turn.state.status.as_str().to_owned(),
        });
    }
    if envelope.payload.get("attempt").is_some() {
        return Err(invalid(
            "/payload/attempt",
            "a round is recorded by the engine; a planner says its output, or why it gave up",
        ));
    }
    let member = |name: &str| envelope.payload.get(name).cloned();
    let event = if envelope.event_type == "plan.completed" {
        Event::PlanCompleted(Box::new(PlanCompleted {
            output: Some(Json::new(member("output").unwrap_or(Value::Null))),
            ..PlanCompleted::default()
        }))
    } else {
        let message = member("message").and_then(|m| m.as_str().map(str::to_owned));
        Event::PlanFailed(Box::new(PlanFailed {
            message: message.unwrap_or_default(),
            ..PlanFailed::default()
        }))
    };
    turn.record(None, event)?;
    advance::advance(turn)?;
    Ok(Reply::Done)
}

fn invalid(pointer: &str, message: impl Into<String>) -> Refusal {
    Refusal::Invalid {
        violations: vec![Violation::new(pointer, message)],
    }
}
