//! Signals and the steps that wait for them.
//!
//! A signal is stored first and matched second, with no clock compared: one that comes early waits in
//! the mailbox, and one that is stored before a timeout is recorded wins over it.

use crate::json::{self, Json};
use crate::plan::OnTimeout;
use crate::run::event::{Event, RequestRef, WaitKind, WaitOutcome};
use crate::run::{Phase, State};
use crate::words::Timestamp;
use crate::words::limits::{LOG_BYTES_MAX, MAILBOX_BYTES_MAX, MAILBOX_SIGNALS_MAX, ROW_BYTES_MAX};

use super::{Refusal, Reply, Turn, advance, replayed, step};

pub(super) fn receive(
    turn: &mut Turn,
    name: String,
    payload: Json,
    request: Option<RequestRef>,
) -> Result<Reply, Refusal> {
    if let Some(reply) = replayed(&turn.state, request.as_ref())? {
        return Ok(reply);
    }
    if turn.state.status.is_end() {
        return Err(Refusal::Ended {
            status: turn.state.status.as_str().to_owned(),
        });
    }
    require_room(&turn.state, &name, json::bytes_len(&payload))?;
    turn.record(
        None,
        Event::SignalReceived {
            name,
            payload,
            request,
        },
    )?;
    while let Some(index) = next_taker(&turn.state) {
        take(turn, index)?;
    }
    advance::advance(turn)?;
    Ok(Reply::Done)
}

/// A flood of signals must not take the log's room from the run itself. One that a step waits for needs
/// no room in the mailbox.
fn require_room(state: &State, name: &str, bytes: usize) -> Result<(), Refusal> {
    let mailbox = &state.mailbox;
    let full = |what: String| {
        let message = format!("{what}, and the run takes no more that nothing waits for yet");
        Err(Refusal::MailboxFull { message })
    };
    if state.log_bytes.saturating_add(bytes) > LOG_BYTES_MAX - 2 * ROW_BYTES_MAX {
        return full(format!("the log has {} bytes", state.log_bytes));
    }
    let awaited = state.steps.iter().any(|step| {
        matches!(&step.phase, Phase::AwaitingSignal { names, .. } if names.iter().any(|n| n == name))
    });
    if awaited {
        return Ok(());
    }
    if mailbox.len() >= MAILBOX_SIGNALS_MAX {
        return full(format!("{} signals wait", mailbox.len()));
    }
    if mailbox.bytes().saturating_add(bytes) > MAILBOX_BYTES_MAX {
        return full(format!("signals of {} bytes wait", mailbox.bytes()));
    }
    Ok(())
}

/// Waits for the first of some signals; one that has come already is taken at once.
pub(super) fn wait(
    turn: &mut Turn,
    index: u32,
    names: Vec<String>,
    until: Option<Timestamp>,
) -> Result<(), Refusal> {
    let kind = WaitKind::Signal;
    turn.record(Some(index), Event::WaitStarted { kind, until, names })?;
    if has_signal(&turn.state, index) {
        return take(turn, index);
    }
    if until.is_some_and(|until| until <= turn.now) {
        time_out(turn, index)?;
    }
    Ok(())
}

/// Of the steps that wait for a signal in the mailbox, the one that has waited longest.
fn next_taker(state: &State) -> Option<u32> {
    let waiting = state.steps_indexed().filter_map(|(index, step)| {
        let Phase::AwaitingSignal { since, names, .. } = &step.phase else {
            return None;
        };
        state.mailbox.first_of(names)?;
        Some((*since, index))
    });
    waiting.min().map(|(_, index)| index)
}

fn has_signal(state: &State, index: u32) -> bool {
    match state.step(index).map(|step| &step.phase) {
        Some(Phase::AwaitingSignal { names, .. }) => state.mailbox.first_of(names).is_some(),
        _ => false,
    }
}

fn take(turn: &mut Turn, index: u32) -> Result<(), Refusal> {
    let Some(Phase::AwaitingSignal { names, .. }) = turn.state.step(index).map(|step| &step.phase)
    else {
        return Ok(());
    };
    let Some(signal) = turn.state.mailbox.first_of(names) else {
        return Ok(());
    };
    let (name, received_seq) = (signal.name.clone(), signal.seq);
    turn.record(Some(index), Event::SignalConsumed { name, received_seq })?;
    turn.record(
        Some(index),
        Event::WaitEnded {
            kind: WaitKind::Signal,
            outcome: WaitOutcome::Received,
        },
    )
}

pub(super) fn time_out(turn: &mut Turn, index: u32) -> Result<(), Refusal> {
    turn.record(
        Some(index),
        Event::WaitEnded {
            kind: WaitKind::Signal,
            outcome: WaitOutcome::TimedOut,
        },
    )?;
    let planned = turn.state.planned(index);
    if planned.is_none_or(|planned| planned.on_timeout == OnTimeout::Fail) {
        let message = "none of the signals came in time".to_owned();
        step::fail_for_good(turn, index, "timed_out", message)?;
    }
    Ok(())
}
