//! What only tests ask of a run's home.

use crate::decide::Input;
use crate::outbox;
use crate::ports::{RunOp, RunResult};
use crate::run::{State, view};
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
        let outbox: Vec<u32> = state
            .steps_indexed()
            .filter(|(index, _)| outbox::work_message(state, *index).is_some())
            .map(|(index, _)| index)
            .collect();
        let timers: Vec<_> = state
            .steps_indexed()
            .filter_map(|(index, step)| match step.phase {
                crate::run::Phase::Retrying { at } | crate::run::Phase::Sleeping { until: at } => {
                    Some(serde_json::json!({ "step_index": index, "at": at }))
                }
                _ => None,
            })
            .collect();
        serde_json::json!({
            "seq": state.seq,
            "log_bytes": state.log_bytes,
            "leases": leases,
            "outbox": outbox,
            "timers": timers,
            "mailbox": [],
            "alarm_at": self.alarm,
            "duplicates_suppressed": self.counts.duplicates_suppressed,
            "operations": self.counts,
        })
    }
}
