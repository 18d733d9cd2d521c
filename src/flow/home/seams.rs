//! What only tests ask of a run's home.

use crate::decide::Input;
use crate::outbox;
use crate::ports::{RunOp, RunResult};
use crate::run::{Phase, State, view};
use crate::words::Timestamp;

use super::{Failure, Home, LogStore, raw, unexpected};

impl Home {
    pub(super) fn seam<S: LogStore>(
        &mut self,
        store: &S,
        state: State,
        op: RunOp,
        now: Timestamp,
        random: u64,
    ) -> Result<RunResult, Failure> {
        match op {
            RunOp::AdvanceClock { ms } => {
                let offset_ms = store.clock_offset_ms().saturating_add(ms);
                store.set_clock_offset_ms(offset_ms)?;
                // The alarm that is set is of the old clock.
                self.alarm = None;
                self.turn(store, state, Input::Tick, now.plus_ms(ms), random)?;
                let Some(state) = &self.state else {
                    return Err(unexpected());
                };
                Ok(RunResult::Shown(raw(&view::run(state))?))
            }
            RunOp::Redeliver { step_index, copies } => {
                self.copies = outbox::copies(&state, step_index, copies);
                self.state = Some(state);
                Ok(RunResult::Done {
                    replayed: false,
                    seq: 0,
                    shown: None,
                })
            }
            RunOp::Internals => {
                let internals = self.internals(&state);
                self.state = Some(state);
                Ok(RunResult::Shown(raw(&internals)?))
            }
            _ => Err(unexpected()),
        }
    }

    /// `GET /dev/runs/{run_id}/internals`.
    fn internals(&self, state: &State) -> serde_json::Value {
        let leases: Vec<_> = state
            .steps_indexed()
            .filter_map(|(index, step)| {
                let lease = step.lease()?;
                Some(serde_json::json!({
                    "step_index": index, "token": lease.token, "until": lease.until,
                }))
            })
            .collect();
        let timers: Vec<_> = state
            .steps_indexed()
            .filter(|(_, step)| step.lease().is_none())
            .filter_map(|(index, step)| {
                let retry = match step.phase {
                    Phase::Retrying { at, .. } => Some(at),
                    _ => None,
                };
                let at = step.due().or(retry)?;
                Some(serde_json::json!({ "step_index": index, "at": at }))
            })
            .collect();
        let mailbox: Vec<_> = state
            .mailbox
            .iter()
            .map(|signal| serde_json::json!({ "seq": signal.seq, "name": signal.name }))
            .collect();
        serde_json::json!({
            "seq": state.seq,
            "log_bytes": state.log_bytes,
            "leases": leases,
            "outbox": outbox::wanting(state),
            "timers": timers,
            "mailbox": mailbox,
            "alarm_at": self.alarm,
            "duplicates_suppressed": self.counts.duplicates_suppressed,
            "operations": self.counts,
        })
    }
}
