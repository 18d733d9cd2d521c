//! What a person settles is settled; a failed run goes on.

use crate::run::event::{Settlement, StepError};
use crate::run::log::Corrupt;
use crate::run::state::{PlannerEnd, State, Status, pin};
use crate::run::step::{Phase, Settled};
use crate::words::DeadLetterId;

use super::Entry;

impl State {
    /// A failed run goes on: what failed it, and what its failure cancelled, is to be done again.
    pub(super) fn reopen(&mut self, entry: &Entry) -> Result<(), Corrupt> {
        if self.status != Status::Failed {
            return Err(entry.corrupt("a run is retried that has not failed"));
        }
        self.ended_at = None;
        self.error = None;
        self.planner_end = None;
        self.paused_at = None;
        self.status = Status::Running;
        self.resumed_at = Some(entry.at);
        self.retried_at = Some(entry.at);
        while let Some((index, ..)) = self.failing() {
            self.reset_step(entry, index);
        }
        let cancelled: Vec<u32> = self
            .steps_indexed()
            .filter(|(_, step)| step.phase == Phase::Cancelled)
            .map(|(index, _)| index)
            .collect();
        for index in cancelled {
            self.reset_step(entry, index);
        }
        Ok(())
    }

    pub(super) fn reset_step(&mut self, entry: &Entry, index: u32) {
        let letter = self
            .open_dead_letters()
            .find(|letter| letter.step_index == index)
            .map(|letter| letter.dead_letter_id.clone());
        let Some(step) = self.steps.get_mut(index as usize) else {
            return;
        };
        step.start_anew();
        step.note(entry.at, "retried", None, None);
        step.phase = match letter {
            // It waited for a person before the run failed, and does so again.
            Some(dead_letter_id) => Phase::DeadLettered { dead_letter_id },
            None => step.phase_to_do(entry.at),
        };
    }

    pub(super) fn settle_dead_letter(
        &mut self,
        entry: &Entry,
        dead_letter_id: &DeadLetterId,
        settlement: &Settlement,
    ) -> Result<(), Corrupt> {
        let at = entry.at;
        let letter = self
            .dead_letters
            .iter_mut()
            .find(|letter| &letter.dead_letter_id == dead_letter_id && letter.settled.is_none())
            .ok_or_else(|| entry.corrupt("a dead letter is settled that is not open"))?;
        letter.settled = Some(Settled {
            at,
            settlement: settlement.clone(),
        });
        letter.changed_seq = entry.seq;
        let (reason, message) = (letter.reason, letter.message.clone());
        if let Settlement::Redelivered { tools, .. } = settlement {
            for (name, pinned) in tools {
                let pinned = pin(name, pinned).map_err(|message| entry.corrupt(&message))?;
                self.tools.insert(name.clone(), pinned);
            }
        }
        let step = self.step_mut(entry)?;
        let left = match settlement {
            // Whoever settles it otherwise than by the child's own success is done with the child.
            Settlement::Resolved { .. } | Settlement::Discarded { .. } => step.unfinished_child(at),
            Settlement::Redelivered { .. } => None,
        };
        match settlement {
            Settlement::Redelivered { .. } => {
                step.in_doubt = false;
                step.start_anew();
                step.note(at, "redelivered", None, None);
                step.phase = step.phase_to_do(at);
            }
            Settlement::Resolved { result } => {
                step.note(at, "resolved", None, None);
                step.finish(Phase::Completed, result.clone());
                if step.is_round() {
                    // A person has said what the planner could not.
                    let output = result.clone();
                    self.planner_end = Some(PlannerEnd::Completed { output });
                }
            }
            Settlement::Discarded { comment } => {
                step.error = Some(StepError {
                    reason: "discarded".into(),
                    message: match comment {
                        Some(comment) => format!("discarded by a person: {comment}"),
                        None => format!("discarded by a person; it was {reason:?}: {message}"),
                    },
                    status_code: None,
                    errors: Vec::new(),
                });
                step.phase = Phase::Failed;
            }
        }
        self.call_off(left);
        Ok(())
    }
}
