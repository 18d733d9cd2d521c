//! A run is called off.

use crate::run::Status;
use crate::run::event::{Event, RequestRef};

use super::{Refusal, Reply, Turn, advance, replayed};

/// Cancels the run: no further effect is started. Cancelling twice is nothing to do; cancelling
/// what has ended otherwise is refused with how it ended.
pub(super) fn cancel(
    turn: &mut Turn,
    comment: Option<String>,
    request: Option<RequestRef>,
) -> Result<Reply, Refusal> {
    if replayed(&turn.state, request.as_ref())? {
        return Ok(Reply::Replayed);
    }
    match turn.state.status {
        Status::Cancelled => Ok(Reply::Done),
        status if status.is_end() => Err(Refusal::Ended {
            status: status.as_str().to_owned(),
        }),
        _ => {
            advance::cancel_open_steps(turn)?;
            turn.record(None, Event::RunCancelled { comment, request })?;
            Ok(Reply::Done)
        }
    }
}
