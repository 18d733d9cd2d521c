//! Decides: takes a run's state, one input, the time and a random number, and answers with the
//! entries to append and the reply to give. Nothing here waits, stores or sends.

mod advance;
mod approval;
mod callback;
mod child;
mod claim;
mod control;
mod conversation;
mod dead_letter;
mod envelope;
mod intent;
mod limit;
mod round;
mod settle;
mod signal;
mod start;
mod step;
mod tick;

use serde::{Deserialize, Serialize};

use crate::envelope::Envelope;
use crate::json::{Json, Violation};
use crate::run::event::{Event, RequestRef, Settlement};
use crate::run::{Corrupt, Recorded, State, Status};
use crate::words::{ApprovalId, DeadLetterId, Timestamp};

pub use approval::Answer;
pub use callback::{Callback, CallbackReport};
pub use child::{ChildNews, ChildOrder, ChildReport, Told, order, told};
pub use claim::{Assignment, Claim, ClaimReply, Extend, ExtendReply, PlanAssignment, TurnedAway};
pub use round::{Asked, Planned, Unplanned};
pub use settle::{Report, Settle, SettleReply};
pub use start::start;

/// Everything that can happen to a run after its start.
#[derive(Debug)]
pub enum Input {
    Claim(Claim),
    Extend(Extend),
    Settle(Settle),
    /// Time has passed.
    Tick,
    Control {
        control: Control,
        comment: Option<String>,
        request: Option<RequestRef>,
    },
    /// A person lets the run use up more.
    Raise {
        limits: Json,
        comment: Option<String>,
        request: Option<RequestRef>,
    },
    Signal {
        name: String,
        payload: Json,
        request: Option<RequestRef>,
    },
    /// A person's answer to an approval.
    Answer {
        approval_id: ApprovalId,
        answer: Answer,
        request: Option<RequestRef>,
    },
    Callback {
        callback: Callback,
        request: Option<RequestRef>,
    },
    Child(ChildReport),
    SettleDeadLetter {
        dead_letter_id: DeadLetterId,
        settlement: Settlement,
        request: Option<RequestRef>,
    },
    /// From a client, for a run whose planner is external, or once more for a step that is known.
    Envelope(Envelope),
}

/// What a person or a parent run may do with a run as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Control {
    Cancel,
    Pause,
    Resume,
    /// A failed run goes on from the steps that failed it.
    Retry,
}

/// What the one who gave the input is told.
#[derive(Debug)]
pub enum Reply {
    Claim(ClaimReply),
    Extend(ExtendReply),
    Settle(SettleReply),
    Done,
    /// The request was carried out before, under the same key: entry `seq` records it.
    Replayed {
        seq: u64,
    },
}

/// Why an input was not taken: the sender's matter, a value and not a failure.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Refusal {
    NotFound,
    /// The run has ended, and how.
    Ended {
        status: String,
    },
    /// The dead letter was settled before, and how.
    AlreadySettled {
        status: String,
        at: Timestamp,
    },
    /// The approval was decided before, expired or was cancelled.
    AlreadyDecided {
        status: String,
        decided_by: Option<String>,
        at: Timestamp,
    },
    /// Only a failed run can be retried, and only in time.
    NotRetryable {
        status: String,
        message: String,
    },
    /// The callback is of no use any more, and why.
    Gone {
        message: String,
    },
    /// No more signals can be kept until some are taken.
    MailboxFull {
        message: String,
    },
    /// The client's key was used for another body.
    KeyReused,
    Invalid {
        violations: Vec<Violation>,
    },
    /// The log cannot be read; the run is frozen.
    Frozen {
        seq: u64,
        message: String,
    },
}

impl From<Corrupt> for Refusal {
    fn from(corrupt: Corrupt) -> Self {
        Self::Frozen {
            seq: corrupt.seq,
            message: corrupt.message,
        }
    }
}

/// One turn of a run: the state as it becomes, and the entries that make it so.
pub struct Turn {
    pub state: State,
    pub entries: Vec<Recorded>,
    pub now: Timestamp,
    pub random: u64,
}

impl Turn {
    pub fn new(state: State, now: Timestamp, random: u64) -> Self {
        // A clock that went back must not write a log that does.
        let now = now.max(state.updated_at);
        Self {
            state,
            entries: Vec::new(),
            now,
            random,
        }
    }

    /// Appends an entry and takes it into account.
    fn record(&mut self, step: Option<u32>, event: Event) -> Result<(), Refusal> {
        let previous = (self.state.seq, self.state.hash.as_str());
        let recorded = Recorded::new(&self.state.identity, previous, self.now, step, event)
            .map_err(|e| Corrupt {
                seq: self.state.seq,
                message: e.to_string(),
            })?;
        self.state.apply(&recorded)?;
        self.entries.push(recorded);
        Ok(())
    }

    /// Notes that the run has come to rest, where this turn brought it there.
    fn mark_rest(&mut self, before: Status) -> Result<(), Refusal> {
        match self.state.status {
            status if status == before => Ok(()),
            Status::Waiting => self.record(None, Event::RunWaiting {}),
            Status::Blocked => {
                let open = self.state.open_dead_letters();
                let dead_letter_ids = open.map(|letter| letter.dead_letter_id.clone()).collect();
                self.record(None, Event::RunBlocked { dead_letter_ids })
            }
            _ => Ok(()),
        }
    }
}

/// Takes one input into account. On a refusal the turn is void: its state must be dropped.
pub fn decide(turn: &mut Turn, input: Input) -> Result<Reply, Refusal> {
    let before = turn.state.status;
    let reply = match input {
        Input::Claim(claim) => Reply::Claim(claim::claim(turn, &claim)?),
        Input::Extend(extend) => Reply::Extend(claim::extend(turn, &extend)?),
        Input::Settle(settle) => Reply::Settle(settle::settle(turn, settle)?),
        Input::Tick => tick::tick(turn)?,
        Input::Control {
            control,
            comment,
            request,
        } => control::control(turn, control, comment, request)?,
        Input::Raise {
            limits,
            comment,
            request,
        } => limit::raise(turn, limits, comment, request)?,
        Input::Signal {
            name,
            payload,
            request,
        } => signal::receive(turn, name, payload, request)?,
        Input::Answer {
            approval_id,
            answer,
            request,
        } => approval::answer(turn, &approval_id, answer, request)?,
        Input::Callback { callback, request } => callback::take(turn, callback, request)?,
        Input::Child(report) => child::take(turn, report)?,
        Input::SettleDeadLetter {
            dead_letter_id,
            settlement,
            request,
        } => dead_letter::settle(turn, dead_letter_id, settlement, request)?,
        Input::Envelope(envelope) => envelope::take(turn, envelope)?,
    };
    turn.mark_rest(before)?;
    Ok(reply)
}

/// The reply to a request that was carried out before under the same key; refused if it was another
/// one.
fn replayed(state: &State, request: Option<&RequestRef>) -> Result<Option<Reply>, Refusal> {
    let Some(request) = request else {
        return Ok(None);
    };
    let earlier = state
        .requests
        .iter()
        .find(|(known, _)| known.route == request.route && known.key == request.key);
    match earlier {
        None => Ok(None),
        Some((known, seq)) if known.fingerprint == request.fingerprint => {
            Ok(Some(Reply::Replayed { seq: *seq }))
        }
        Some(_) => Err(Refusal::KeyReused),
    }
}
