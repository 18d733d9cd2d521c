//! A person is asked, and answers.

use serde::{Deserialize, Serialize};

use crate::json::{Json, Violation};
use crate::plan::OnTimeout;
use crate::run::Approval;
use crate::run::approval::Verdict;
use crate::run::event::{Decision, Event, RequestRef};
use crate::run::state::REJECTED;
use crate::schema;
use crate::words::{ApprovalId, Timestamp};

use super::{Refusal, Reply, Turn, advance, replayed, step};

/// A person's answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Answer {
    pub decision: Decision,
    pub data: Option<Json>,
    pub comment: Option<String>,
    pub decided_by: String,
    /// What gave the right to answer: the id of a key, or `link`.
    pub via: Option<String>,
}

/// Asks what an approval step asks.
pub(super) fn ask(
    turn: &mut Turn,
    index: u32,
    prompt: String,
    schema: Option<Json>,
    until: Option<Timestamp>,
) -> Result<(), Refusal> {
    let approval_id = next_id(turn, index);
    turn.record(
        Some(index),
        Event::ApprovalRequested {
            approval_id: approval_id.clone(),
            prompt,
            schema,
            until,
            tool: None,
            arguments_digest: None,
        },
    )?;
    if until.is_some_and(|until| until <= turn.now) {
        expire(turn, index, approval_id)?;
    }
    Ok(())
}

/// Asks for leave to make the step's call, where its tool wants it and nobody gave it for exactly
/// these arguments.
pub(super) fn ask_if_wanted(turn: &mut Turn, index: u32) -> Result<(), Refusal> {
    let step = turn.state.step(index);
    let Some(step) = step.filter(|step| turn.state.wants_approval(step)) else {
        return Ok(());
    };
    let Some(request) = &step.request else {
        return Ok(());
    };
    let tool = request.tool.clone();
    let arguments_digest = Some(request.arguments_digest());
    let approval_id = next_id(turn, index);
    turn.record(
        Some(index),
        Event::ApprovalRequested {
            approval_id,
            prompt: format!("May {tool} be called with these arguments?"),
            schema: None,
            until: None,
            tool: Some(tool),
            arguments_digest,
        },
    )
}

/// The same for every step that is ready to be called.
pub(super) fn ask_where_wanted(turn: &mut Turn) -> Result<(), Refusal> {
    let ready: Vec<u32> = turn
        .state
        .steps_indexed()
        .filter(|(_, step)| matches!(step.phase, crate::run::Phase::Ready { .. }))
        .map(|(index, _)| index)
        .collect();
    ready
        .into_iter()
        .try_for_each(|index| ask_if_wanted(turn, index))
}

fn next_id(turn: &Turn, index: u32) -> ApprovalId {
    let seed = format!("{}/{}/{index}", turn.state.run_id(), turn.state.seq);
    ApprovalId::derive(turn.now, &seed)
}

/// Takes the first answer. What it releases is released in the same commit.
pub(super) fn answer(
    turn: &mut Turn,
    id: &ApprovalId,
    answer: Answer,
    request: Option<RequestRef>,
) -> Result<Reply, Refusal> {
    if let Some(reply) = replayed(&turn.state, request.as_ref())? {
        return Ok(reply);
    }
    let Some(approval) = turn.state.approval(id) else {
        return Err(Refusal::NotFound);
    };
    if let Some(refusal) = decided_before(approval) {
        return Err(refusal);
    }
    check_data(approval, &answer)?;
    let index = approval.step_index;
    let arguments_digest = approval
        .call
        .as_ref()
        .map(|call| call.arguments_digest.clone());
    let Answer {
        decision,
        data,
        comment,
        decided_by,
        via,
    } = answer;
    let by = decided_by.clone();
    let why = comment.clone();
    turn.record(
        Some(index),
        Event::ApprovalDecided {
            approval_id: id.clone(),
            decision,
            data: data.unwrap_or_else(Json::null),
            comment,
            decided_by,
            via,
            arguments_digest,
            request,
        },
    )?;
    let waits = turn.state.step(index).is_some_and(|step| !step.is_done());
    if decision == Decision::Rejected && waits {
        let why = why.map_or(String::new(), |why| format!(": {why}"));
        let message = format!("{by} rejected it{why}");
        step::fail_for_good(turn, index, REJECTED, message)?;
    }
    advance::advance(turn)?;
    Ok(Reply::Done)
}

fn decided_before(approval: &Approval) -> Option<Refusal> {
    let (at, verdict) = approval.verdict.as_ref()?;
    let decided_by = match verdict {
        Verdict::Decided { decided_by, .. } => Some(decided_by.clone()),
        Verdict::Expired | Verdict::Cancelled => None,
    };
    Some(Refusal::AlreadyDecided {
        status: approval.status().to_owned(),
        decided_by,
        at: *at,
    })
}

/// Data that is given must fit the approval's schema, and what is approved must have it.
fn check_data(approval: &Approval, answer: &Answer) -> Result<(), Refusal> {
    let Some(wanted) = &approval.schema else {
        return Ok(());
    };
    let invalid = |violations| Refusal::Invalid { violations };
    match &answer.data {
        Some(data) => schema::validate_with(wanted, data, "/data").map_err(invalid),
        None if answer.decision == Decision::Rejected => Ok(()),
        None => schema::validate_with(wanted, &Json::null(), "/data").map_err(|_| {
            let message = "this approval asks for data: see its schema";
            invalid(vec![Violation::new("/data", message)])
        }),
    }
}

/// Nobody decided in time: an outcome of its own.
pub(super) fn expire(turn: &mut Turn, index: u32, id: ApprovalId) -> Result<(), Refusal> {
    turn.record(Some(index), Event::ApprovalExpired { approval_id: id })?;
    let planned = turn.state.planned(index);
    if planned.is_none_or(|planned| planned.on_timeout == OnTimeout::Fail) {
        let message = "nobody decided before the approval expired".to_owned();
        step::fail_for_good(turn, index, "approval_expired", message)?;
    }
    Ok(())
}
