//! What a tenant's index is told of a run: read off its state.

use serde_json::value::to_raw_value;

use crate::outbox::{self, Sent};
use crate::ports::{ProjectedDeadLetter, Projection};
use crate::run::{DeadLetter, State, Status, view};
use crate::words::Timestamp;

/// A dead letter above this is listed without its envelope.
const LISTED_DEAD_LETTER_BYTES_MAX: usize = 16_384;

pub fn projection(state: &State, now: Timestamp) -> Projection {
    let dead_letters = state
        .dead_letters
        .iter()
        .filter_map(|l| projected(state, l))
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
    }
}

/// When to doubt a run that lies still: once its alarm should have fired, or, where nothing but the
/// world outside can move it, after a day.
fn quiet_until(state: &State, now: Timestamp) -> Option<Timestamp> {
    const DAY_MS: i64 = 86_400_000;
    match state.status {
        Status::Blocked | Status::Waiting => {
            let wake_at = outbox::wake_at(state, &Sent::default());
            Some(wake_at.unwrap_or(now.plus_ms(DAY_MS)))
        }
        _ => None,
    }
}

fn projected(state: &State, letter: &DeadLetter) -> Option<ProjectedDeadLetter> {
    let view = view::dead_letter(state, letter);
    let shown = to_raw_value(&view).ok()?;
    let shown = if shown.get().len() > LISTED_DEAD_LETTER_BYTES_MAX {
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
