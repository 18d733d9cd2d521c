//! The birth of a run.

use crate::run::event::{Event, RunCreated};
use crate::run::{Identity, Recorded, State, Status};
use crate::words::Timestamp;

use super::{Refusal, Turn, advance};

/// Makes a run and schedules its first steps.
pub fn start(
    identity: Identity,
    created: RunCreated,
    now: Timestamp,
    random: u64,
) -> Result<Turn, Refusal> {
    let state = State::new(identity, created.clone(), now)?;
    let mut turn = Turn {
        state,
        entries: Vec::<Recorded>::new(),
        now,
        random,
    };
    turn.record(None, Event::RunCreated(Box::new(created)))?;
    advance::advance(&mut turn)?;
    turn.mark_rest(Status::Queued)?;
    Ok(turn)
}
