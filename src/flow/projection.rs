//! What a tenant's index is told of a run: read off its state.

use std::cmp::Reverse;

use serde_json::value::{RawValue, to_raw_value};

use crate::outbox::{self, Sent};
use crate::ports::{ProjectedApproval, ProjectedDeadLetter, Projection};
use crate::run::{Approval, DeadLetter, State, Status, view};
use crate::words::Timestamp;

/// A dead letter above this is listed without its envelope, an approval without its arguments.
const LISTED_BYTES_MAX: usize = 16_384;
/// Of all that is told of one run at once: a queue's message must hold it. What changed last is told
/// first; of what is left out, the index has heard before.
const TOLD_BYTES_MAX: usize = 96_000;

pub fn projection(state: &State, now: Timestamp) -> Projection {
    let mut bytes = 0;
    let mut fits = |shown: &RawValue| {
        bytes += shown.get().len();
        bytes <= TOLD_BYTES_MAX
    };
    let mut approvals: Vec<&Approval> = state.approvals.iter().collect();
    approvals.sort_by_key(|approval| Reverse(changed_at(approval)));
    let approvals = approvals
        .into_iter()
        .filter_map(|approval| projected_approval(state, approval))
        .take_while(|approval| fits(&approval.shown))
        .collect();
    let mut dead_letters: Vec<&DeadLetter> = state.dead_letters.iter().collect();
    dead_letters.sort_by_key(|letter| {
        let settled = letter.settled.as_ref().map(|settled| settled.at);
        Reverse(settled.unwrap_or(letter.created_at))
    });
    let dead_letters = dead_letters
        .into_iter()
        .filter_map(|letter| projected(state, letter))
        .take_while(|letter| fits(&letter.shown))
        .collect();
    Projection {
        tenant_id: state.tenant_id().clone(),
        run_id: state.run_id().clone(),
        seq: state.seq,
        status: state.status.as_str().to_owned(),
        agent: state.created.agent.clone(),
        tags: state.created.tags.clone(),
        created_at: state.created_at,
        updated_at: state.updated_at,
        ended_at: state.ended_at,
        quiet_until: quiet_until(state, now),
        dead_letters,
        approvals,
    }
}

/// When to doubt a run that lies still: once its alarm should have fired, or, where nothing but the
/// world outside can move it, after a day.
fn quiet_until(state: &State, now: Timestamp) -> Option<Timestamp> {
    const DAY_MS: i64 = 86_400_000;
    match state.status {
        Status::Blocked | Status::Waiting | Status::Paused => {
            let wake_at = outbox::wake_at(state, &Sent::default());
            Some(wake_at.unwrap_or(now.plus_ms(DAY_MS)))
        }
        _ => None,
    }
}

fn projected(state: &State, letter: &DeadLetter) -> Option<ProjectedDeadLetter> {
    let view = view::dead_letter(state, letter);
    let shown = to_raw_value(&view).ok()?;
    let shown = if shown.get().len() > LISTED_BYTES_MAX {
        to_raw_value(&view.without_envelope()).ok()?
    } else {
        shown
    };
    Some(ProjectedDeadLetter {
        dead_letter_id: letter.dead_letter_id.clone(),
        status: letter.status().to_owned(),
        reason: letter.reason,
        shown,
    })
}

fn changed_at(approval: &Approval) -> Timestamp {
    let decided = approval.verdict.as_ref().map(|(at, _)| *at);
    decided.unwrap_or(approval.requested_at)
}

fn projected_approval(state: &State, approval: &Approval) -> Option<ProjectedApproval> {
    let view = view::approval(state, approval);
    let shown = to_raw_value(&view).ok()?;
    let shown = if shown.get().len() > LISTED_BYTES_MAX {
        to_raw_value(&view.without_arguments()).ok()?
    } else {
        shown
    };
    Some(ProjectedApproval {
        approval_id: approval.approval_id.clone(),
        status: approval.status().to_owned(),
        shown,
    })
}
