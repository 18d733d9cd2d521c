//! Takes a log's entries into account, one by one.
//!
//! This is the only way a state changes, for the live run and for one read back from disk alike, so
//! the two cannot differ. It is total over any log that this engine wrote; a log that it cannot make
//! sense of is [`Corrupt`], and that run alone is frozen.

mod approval;
mod call;
mod child;
mod repair;
mod round;
mod wait;

use crate::json::Json;
use crate::words::{RunId, Timestamp};

use super::approval::Verdict;
use super::event::{ChildStatus, Event, Purpose, RequestRef};
use super::log::{Corrupt, Recorded};
use super::mailbox::Signal;
use super::round::Reached;
use super::state::{State, Status};
use super::step::{Attempt, Child, DeadLetter, Phase, Step};

/// Lines of a step's history that are kept for its dead letter.
const HISTORY_MAX: usize = 100;

impl State {
    /// Takes one entry of the log into account.
    pub fn apply(&mut self, recorded: &Recorded) -> Result<(), Corrupt> {
        let entry = Entry {
            seq: self.seq.saturating_add(1),
            at: recorded.at,
            step: recorded.step,
        };
        let reopens = matches!(recorded.event, Event::RunRetried { .. });
        if self.ended_at.is_some() && !reopens {
            return Err(entry.corrupt("an entry follows the end of the run"));
        }
        self.apply_event(&entry, recorded)?;
        self.seq = entry.seq;
        if recorded.event.is_shown() {
            self.shown_seq = entry.seq;
        }
        self.hash.clone_from(&recorded.hash);
        self.updated_at = entry.at;
        self.log_bytes = self.log_bytes.saturating_add(recorded.bytes);
        self.refresh_status(entry.at);
        Ok(())
    }

    fn apply_event(&mut self, entry: &Entry, recorded: &Recorded) -> Result<(), Corrupt> {
        let at = entry.at;
        match &recorded.event {
            Event::RunCreated(_) if self.seq == 0 => {}
            Event::RunCreated(_) => return Err(entry.corrupt("the run is created twice")),
            Event::RunStarted {} => self.started = true,
            Event::RunWaiting {} | Event::RunBlocked { .. } => {}
            Event::RunCompleted { output } => {
                self.output = output.clone();
                self.end(Status::Completed, at);
            }
            Event::RunFailed { error } => {
                self.error = Some(error.clone());
                self.call_children_off(entry);
                self.end(Status::Failed, at);
            }
            Event::RunCancelRequested { request, .. } => {
                self.remember(entry, request.as_ref());
                self.cancelling = true;
                self.status = Status::Cancelled;
                self.rest(at, false);
            }
            Event::RunCancelled { request, .. } => {
                self.remember(entry, request.as_ref());
                self.call_children_off(entry);
                self.end(Status::Cancelled, at);
            }
            Event::RunPaused { request, .. } => {
                self.remember(entry, request.as_ref());
                self.paused_at = Some(at);
            }
            Event::RunResumed { request, .. } => {
                self.remember(entry, request.as_ref());
                self.paused_at = None;
                self.resumed_at = Some(at);
            }
            Event::RunRetried { request, .. } => {
                self.remember(entry, request.as_ref());
                self.reopen(entry)?;
            }
            Event::LimitReached { limit, message, .. } => {
                // How long the run stands here says nothing of how quickly its rounds follow.
                if let Some(last) = self.rounds.last_mut() {
                    last.followed_at.get_or_insert(at);
                }
                self.reached = Some(Reached {
                    limit: limit.clone(),
                    message: message.clone(),
                    at,
                });
            }
            Event::LimitRaised {
                limits, request, ..
            } => {
                self.remember(entry, request.as_ref());
                self.raise(entry, limits)?;
            }
            Event::StepSkipped { .. } => {
                self.step_mut(entry)?.finish(Phase::Skipped, Json::null());
            }
            Event::StepFailed { error } => {
                let step = self.step_mut(entry)?;
                step.error = Some(error.clone());
                step.phase = Phase::Failed;
            }
            Event::StepCancelled {} => self.cancel_step(entry)?,
            Event::EventEmitted { .. } => {
                self.step_mut(entry)?.finish(Phase::Completed, Json::null());
            }
            Event::DeadLetterOpened {
                dead_letter_id,
                reason,
                message,
                errors,
            } => {
                let step_index = entry.step_index()?;
                let step = self.step_mut(entry)?;
                step.phase = Phase::DeadLettered {
                    dead_letter_id: dead_letter_id.clone(),
                };
                let letter = DeadLetter {
                    dead_letter_id: dead_letter_id.clone(),
                    step_index,
                    reason: *reason,
                    message: message.clone(),
                    errors: errors.clone(),
                    attempts: step.history.clone(),
                    request: step.request.clone(),
                    created_at: at,
                    settled: None,
                    changed_seq: entry.seq,
                };
                self.dead_letters.push(letter);
            }
            Event::DeadLetterSettled {
                dead_letter_id,
                settlement,
                request,
            } => {
                self.remember(entry, request.as_ref());
                self.settle_dead_letter(entry, dead_letter_id, settlement)?;
            }
            Event::SignalReceived {
                name,
                payload,
                request,
            } => {
                self.remember(entry, request.as_ref());
                self.mailbox.put(Signal {
                    seq: entry.seq,
                    name: name.clone(),
                    payload: payload.clone(),
                    received_at: at,
                });
            }
            Event::SignalConsumed { received_seq, .. } => self.consume(entry, *received_seq)?,
            Event::WaitStarted { kind, until, names } => {
                self.start_wait(entry, *kind, *until, names)?;
            }
            Event::WaitEnded { kind, outcome } => self.end_wait(entry, *kind, *outcome)?,
            Event::ApprovalRequested { .. }
            | Event::ApprovalDecided { .. }
            | Event::ApprovalExpired { .. } => self.apply_approval(entry, &recorded.event)?,
            Event::ChildRequested { .. }
            | Event::ChildStarted { .. }
            | Event::ChildEnded { .. } => self.apply_child(entry, &recorded.event)?,
            Event::CallbackReceived {
                attempt,
                status,
                request,
            } => {
                self.remember(entry, request.as_ref());
                let step = self.step_mut(entry)?;
                step.called_back.push(*attempt);
                let outcome = format!("callback_{}", status.as_str());
                step.note(at, &outcome, None, None);
            }
            Event::ToolRequested { .. } => self.request_tool(entry, recorded)?,
            Event::PlanRequested { .. } => self.request_round(entry, recorded)?,
            Event::PlanClaimed { .. }
            | Event::PlanLeaseExtended { .. }
            | Event::PlanLeaseExpired { .. }
            | Event::PlanRetryScheduled { .. }
            | Event::PlanCompleted(_)
            | Event::PlanFailed(_) => self.apply_round(entry, &recorded.event)?,
            _ => self.apply_call(entry, &recorded.event)?,
        }
        Ok(())
    }

    fn cancel_step(&mut self, entry: &Entry) -> Result<(), Corrupt> {
        let step = self.step_mut(entry)?;
        let phase = std::mem::replace(&mut step.phase, Phase::Cancelled);
        let called_off = step.unfinished_child(entry.at);
        self.call_off(called_off);
        if let Phase::AwaitingApproval { approval_id, .. } = phase {
            self.close_approval(entry, &approval_id, Verdict::Cancelled)?;
        }
        Ok(())
    }

    fn end(&mut self, status: Status, at: Timestamp) {
        self.status = status;
        self.ended_at = Some(at);
        self.rest(at, false);
    }

    /// The status is what the steps' phases say, so it needs no entry of its own.
    fn refresh_status(&mut self, at: Timestamp) {
        if self.status.is_end() {
            return;
        }
        let active = self.steps.iter().any(Step::is_active);
        self.status = if self.paused_at.is_some() {
            Status::Paused
        } else if active && self.started {
            Status::Running
        } else if active {
            Status::Queued
        } else if self.open_dead_letters().next().is_some() {
            Status::Blocked
        } else if self.seq > 1 || self.agent.plan().is_none() {
            Status::Waiting
        } else {
            Status::Queued
        };
        self.rest(at, self.status.is_idle());
    }

    fn rest(&mut self, at: Timestamp, idle: bool) {
        match (self.idle_since, idle) {
            (None, true) => self.idle_since = Some(at),
            (Some(since), false) => {
                self.waiting_ms = self.waiting_ms.saturating_add(at.ms_since(since).max(0));
                self.idle_since = None;
            }
            _ => {}
        }
    }

    fn remember(&mut self, entry: &Entry, request: Option<&RequestRef>) {
        if let Some(request) = request {
            self.requests.push((request.clone(), entry.seq));
        }
    }

    fn step_mut(&mut self, entry: &Entry) -> Result<&mut Step, Corrupt> {
        let index = entry.step;
        index
            .and_then(|index| self.steps.get_mut(index as usize))
            .ok_or_else(|| entry.corrupt(&format!("no step {index:?}")))
    }
}

/// Which entry of the log is at hand.
struct Entry {
    seq: u64,
    at: Timestamp,
    step: Option<u32>,
}

impl Entry {
    fn corrupt(&self, message: &str) -> Corrupt {
        Corrupt {
            seq: self.seq,
            message: message.to_owned(),
        }
    }

    fn step_index(&self) -> Result<u32, Corrupt> {
        self.step
            .ok_or_else(|| self.corrupt("an entry of a step names none"))
    }
}

impl Step {
    fn finish(&mut self, phase: Phase, result: Json) {
        self.phase = phase;
        self.result = result;
        self.in_doubt = false;
        self.error = None;
        self.losses = 0;
    }

    /// Forgets what went wrong: the retry policy begins anew.
    fn start_anew(&mut self) {
        self.attempts_before = self.attempt;
        self.losses = 0;
        self.previous_wait_ms = None;
        self.error = None;
        self.purpose = Purpose::Call;
    }

    /// Where a step goes on that is to be done again: with its intent, if that can be acted on.
    fn phase_to_do(&self, at: Timestamp) -> Phase {
        if self.is_round() || self.request.is_some() && !self.unfilled {
            Phase::Ready { since: at }
        } else {
            Phase::Pending
        }
    }

    /// The child that is not known to have done its work, if there is one, to be called off at `at`.
    fn unfinished_child(&self, at: Timestamp) -> Option<(RunId, Timestamp)> {
        let child = self.child.as_ref()?;
        let finished = child.ended == Some(ChildStatus::Completed);
        (!finished).then(|| (child.run_id.clone(), at))
    }

    fn child_mut(&mut self, run_id: &RunId) -> Option<&mut Child> {
        self.child.as_mut().filter(|child| &child.run_id == run_id)
    }

    fn note(
        &mut self,
        at: Timestamp,
        outcome: &str,
        status_code: Option<u16>,
        error: Option<&str>,
    ) {
        if self.history.len() >= HISTORY_MAX {
            self.history.remove(0);
        }
        self.history.push(Attempt {
            at,
            outcome: outcome.to_owned(),
            status_code,
            error: error.map(str::to_owned),
        });
    }
}
