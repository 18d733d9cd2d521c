//! What a tenant's index is told of a run: read off its state.

use serde_json::value::to_raw_value;

use crate::outbox::{self, Sent};
use crate::ports::{ProjectedApproval, ProjectedDeadLetter, Projection};
use crate::run::{Approval, DeadLetter, State, Status, view};
use crate::words::Timestamp;

/// A dead letter above this is listed without its envelope, an approval without its arguments.
const LISTED_BYTES_MAX: usize = 16_384;
/// Of a prompt in a list that is listed without its arguments.
const LISTED_PROMPT_BYTES_MAX: usize = 2_000;
/// Of what is told at once: a queue's message must hold it.
const TOLD_BYTES_MAX: usize = 64_000;

/// The run as it is, with the dead letters and approvals that changed after entry `told_seq`: in as
/// many pieces as their size asks for.
pub fn projections(state: &State, told_seq: u64, now: Timestamp) -> Vec<Projection> {
    let letters = state
        .dead_letters
        .iter()
        .filter(|l| l.changed_seq > told_seq);
    let letters = letters
        .filter_map(|letter| projected(state, letter))
        .map(Told::Letter);
    let approvals = state.approvals.iter().filter(|a| a.changed_seq > told_seq);
    let approvals = approvals
        .filter_map(|approval| projected_approval(state, approval))
        .map(Told::Approval);
    let mut pieces = vec![summary(state, now)];
    let mut bytes = 0;
    for told in letters.chain(approvals) {
        let size = told.bytes();
        if bytes + size > TOLD_BYTES_MAX && bytes > 0 {
            pieces.push(summary(state, now));
            bytes = 0;
        }
        bytes += size;
        if let Some(piece) = pieces.last_mut() {
            match told {
                Told::Letter(letter) => piece.dead_letters.push(letter),
                Told::Approval(approval) => piece.approvals.push(approval),
            }
        }
    }
    pieces
}

enum Told {
    Letter(ProjectedDeadLetter),
    Approval(ProjectedApproval),
}

impl Told {
    fn bytes(&self) -> usize {
        match self {
            Self::Letter(letter) => letter.shown.get().len(),
            Self::Approval(approval) => approval.shown.get().len(),
        }
    }
}

fn summary(state: &State, now: Timestamp) -> Projection {
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
        dead_letters: Vec::new(),
        approvals: Vec::new(),
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

fn projected_approval(state: &State, approval: &Approval) -> Option<ProjectedApproval> {
    let view = view::approval(state, approval);
    let shown = to_raw_value(&view).ok()?;
    let shown = if shown.get().len() > LISTED_BYTES_MAX {
        to_raw_value(&view.listed(LISTED_PROMPT_BYTES_MAX)).ok()?
    } else {
        shown
    };
    Some(ProjectedApproval {
        approval_id: approval.approval_id.clone(),
        status: approval.status().to_owned(),
        shown,
    })
}
