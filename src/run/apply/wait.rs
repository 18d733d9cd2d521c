//! A wait begins and ends; a signal is taken.

use crate::json::{Json, Value};
use crate::plan::{Action, OnTimeout};
use crate::run::event::{WaitKind, WaitOutcome};
use crate::run::log::Corrupt;
use crate::run::state::State;
use crate::run::step::Phase;
use crate::words::Timestamp;

use super::Entry;

impl State {
    pub(super) fn start_wait(
        &mut self,
        entry: &Entry,
        kind: WaitKind,
        until: Option<Timestamp>,
        names: &[String],
    ) -> Result<(), Corrupt> {
        let since = entry.at;
        let bounded = || until.ok_or_else(|| entry.corrupt("a wait that must end has no end"));
        let phase = match kind {
            WaitKind::Sleep => Phase::Sleeping {
                since,
                until: bounded()?,
            },
            WaitKind::Signal => Phase::AwaitingSignal {
                since,
                until,
                names: names.to_vec(),
            },
            WaitKind::Callback => Phase::AwaitingCallback {
                since,
                until: bounded()?,
            },
        };
        let step = self.step_mut(entry)?;
        if kind == WaitKind::Callback {
            step.losses = 0;
            step.note(since, "accepted", None, None);
        }
        step.phase = phase;
        Ok(())
    }

    pub(super) fn end_wait(
        &mut self,
        entry: &Entry,
        kind: WaitKind,
        outcome: WaitOutcome,
    ) -> Result<(), Corrupt> {
        match (kind, outcome) {
            (WaitKind::Sleep, _) => {
                self.step_mut(entry)?.finish(Phase::Completed, Json::null());
            }
            // What ended well has finished the step, or what follows does.
            (_, WaitOutcome::Received | WaitOutcome::Elapsed) => {}
            (WaitKind::Callback, WaitOutcome::TimedOut) => {}
            (WaitKind::Signal, WaitOutcome::TimedOut) => {
                let index = entry.step_index()?;
                let planned = self.planned(index);
                if planned.is_some_and(|planned| planned.on_timeout == OnTimeout::Continue) {
                    let result = if self.waits_for_several(index) {
                        signal_result(Value::Null, Json::null())
                    } else {
                        Json::null()
                    };
                    self.step_mut(entry)?.finish(Phase::Completed, result);
                }
            }
        }
        Ok(())
    }

    pub(super) fn waits_for_several(&self, index: u32) -> bool {
        let action = self.planned(index).map(|planned| &planned.action);
        matches!(action, Some(Action::WaitFor { several: true, .. }))
    }

    pub(super) fn consume(&mut self, entry: &Entry, received_seq: u64) -> Result<(), Corrupt> {
        let several = self.waits_for_several(entry.step_index()?);
        let signal = self
            .mailbox
            .take(received_seq)
            .ok_or_else(|| entry.corrupt("a signal is consumed that is not in the mailbox"))?;
        let result = if several {
            signal_result(signal.name.into(), signal.payload)
        } else {
            signal.payload
        };
        self.step_mut(entry)?.finish(Phase::Completed, result);
        Ok(())
    }
}

/// The result of a wait for the first of several signals.
fn signal_result(name: Value, payload: Json) -> Json {
    let members = [
        ("signal".to_owned(), name),
        ("payload".to_owned(), Value::clone(&payload)),
    ];
    Json::new(Value::Object(members.into_iter().collect()))
}
