//! Folds the rows of a log into the state they add up to.

use super::event::Event;
use super::log::{Corrupt, Identity, ReadRow, Recorded, Row, read_row};
use super::state::State;

/// Folds a whole log. `None` where there is none.
pub fn fold(rows: &[Row]) -> Result<Option<State>, Corrupt> {
    fold_while(rows, |_| true)
}

/// Folds the turn in which the run was born.
pub fn fold_first_turn(rows: &[Row]) -> Result<Option<State>, Corrupt> {
    fold_while(rows, |read| read.more)
}

fn fold_while(rows: &[Row], goes_on: impl Fn(&ReadRow) -> bool) -> Result<Option<State>, Corrupt> {
    let mut state: Option<State> = None;
    for row in rows {
        let read = read_row(row)?;
        let next = state.as_ref().map_or(1, |s| s.seq.saturating_add(1));
        if read.seq != next {
            return Err(Corrupt {
                seq: next,
                message: format!("the next row starts at {}", read.seq),
            });
        }
        for recorded in &read.entries {
            if state.is_none() {
                state = Some(first_state(&read.identity, recorded)?);
            }
            if let Some(state) = &mut state {
                state.apply(recorded)?;
            }
        }
        if !goes_on(&read) {
            break;
        }
    }
    Ok(state)
}

/// The empty state that a log's first entry is applied to.
pub fn first_state(identity: &Option<Identity>, recorded: &Recorded) -> Result<State, Corrupt> {
    let corrupt = |message: &str| Corrupt {
        seq: 1,
        message: message.to_owned(),
    };
    let identity = identity
        .clone()
        .ok_or_else(|| corrupt("the first row names no run"))?;
    match &recorded.event {
        Event::RunCreated(created) => State::new(identity, (**created).clone(), recorded.at),
        _ => Err(corrupt("the log does not begin with run.created")),
    }
}
