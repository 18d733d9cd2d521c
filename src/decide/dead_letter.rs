//! A step that a person must settle, and the settlement.

use std::collections::BTreeMap;

use crate::json::{Json, Value, Violation};
use crate::run::event::{DeadLetterReason, Event, PinnedTool, RequestRef, Settlement};
use crate::words::DeadLetterId;

use super::{Refusal, Reply, Turn, advance, approval, replayed, round, step};

pub(super) fn open(
    turn: &mut Turn,
    index: u32,
    reason: DeadLetterReason,
    message: String,
    errors: Vec<Violation>,
) -> Result<(), Refusal> {
    // Nobody is asked about a run that was called off.
    if turn.state.cancelling {
        return Ok(());
    }
    let seed = format!("{}/{}/{index}", turn.state.run_id(), turn.state.seq);
    let dead_letter_id = DeadLetterId::derive(turn.now, &seed);
    turn.record(
        Some(index),
        Event::DeadLetterOpened {
            dead_letter_id,
            reason,
            message,
            errors,
        },
    )
}

pub(super) fn settle(
    turn: &mut Turn,
    dead_letter_id: DeadLetterId,
    mut settlement: Settlement,
    request: Option<RequestRef>,
) -> Result<Reply, Refusal> {
    if let Some(reply) = replayed(&turn.state, request.as_ref())? {
        return Ok(reply);
    }
    let Some(letter) = turn.state.dead_letter(&dead_letter_id) else {
        return Err(Refusal::NotFound);
    };
    if let Some(settled) = &letter.settled {
        let status = settled.settlement.status().to_owned();
        return Err(Refusal::AlreadySettled {
            status,
            at: settled.at,
        });
    }
    if turn.state.status.is_end() {
        return Err(Refusal::Ended {
            status: turn.state.status.as_str().to_owned(),
        });
    }
    let index = letter.step_index;
    let mut repaired = None;
    if let Settlement::Redelivered { payload, tools } = &mut settlement {
        let of_round = turn.state.step(index).is_some_and(|step| step.is_round());
        if let Some(message) = round::spent(&turn.state).filter(|_| of_round) {
            return Err(Refusal::Invalid {
                violations: vec![Violation::new("", message)],
            });
        }
        // A run stays on the version with which it started.
        tools.retain(|name, _| !turn.state.tools.contains_key(name));
        let of_tool = turn
            .state
            .step(index)
            .is_some_and(|step| step.kind == "tool");
        let intent = match (&*payload, &letter.request) {
            (Some(_), _) if !of_tool => {
                let message = "the step calls no tool: redeliver it as it was, without a payload";
                return Err(Refusal::Invalid {
                    violations: vec![Violation::new("/payload", message)],
                });
            }
            (Some(payload), _) => Some(intent(payload)?),
            (None, Some(request)) => Some((request.tool.clone(), request.arguments.clone())),
            (None, None) => None,
        };
        if let Some((tool, _)) = &intent {
            require_tool(&turn.state.tools, tools, tool)?;
        }
        repaired = payload.as_ref().and(intent);
    }
    if let Settlement::Resolved { result } = &settlement {
        step::require_result(turn, index, result)?;
    }
    turn.record(
        Some(index),
        Event::DeadLetterSettled {
            dead_letter_id,
            settlement,
            request,
        },
    )?;
    if let Some((tool, arguments)) = repaired {
        step::request_tool(turn, index, tool, arguments)?;
    } else {
        approval::ask_where_wanted(turn)?;
    }
    advance::advance(turn)?;
    Ok(Reply::Done)
}

/// The tool and the arguments of a repaired payload.
fn intent(payload: &Json) -> Result<(String, Json), Refusal> {
    let invalid = |pointer: &str, message: &str| Refusal::Invalid {
        violations: vec![Violation::new(pointer, message)],
    };
    let tool = payload.get("tool").and_then(Value::as_str);
    let tool = tool.ok_or_else(|| invalid("/payload/tool", "expected the name of a tool"))?;
    let arguments = payload
        .get("arguments")
        .filter(|arguments| arguments.is_object());
    let arguments = arguments.ok_or_else(|| {
        invalid(
            "/payload/arguments",
            "the arguments of a tool are an object",
        )
    })?;
    Ok((tool.to_owned(), Json::new(arguments.clone())))
}

fn require_tool<T>(
    pinned: &BTreeMap<String, T>,
    added: &BTreeMap<String, PinnedTool>,
    tool: &str,
) -> Result<(), Refusal> {
    if pinned.contains_key(tool) || added.contains_key(tool) {
        return Ok(());
    }
    let message =
        format!("the tenant has no tool {tool}: store it with PUT /v1/tools/{tool} first");
    Err(Refusal::Invalid {
        violations: vec![Violation::new("/payload/tool", message)],
    })
}
