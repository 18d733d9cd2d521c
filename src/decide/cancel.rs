//! A run is called off.

use crate::run::Status;
use crate::run::event::{Event, RequestRef};

use super::{Refusal, Reply, Turn, advance, replayed};

/// Cancels the run: no further effect is started, and one under way is recorded when it comes back. Cancelling twice is nothing to do; cancelling
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
            advance::cancel_idle_steps(turn)?;
            let under_way = turn.state.steps.iter().any(|step| step.lease().is_some());
            let event = if under_way {
                Event::RunCancelRequested { comment, request }
            } else {
                Event::RunCancelled { comment, request }
            };
            turn.record(None, event)?;
            Ok(Reply::Done)
        }
    }
}
