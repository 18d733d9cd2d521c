//! Takes a log's entries into account, one by one.
//!
//! This is the only way a state changes, for the live run and for one read back from disk alike, so
//! the two cannot differ. It is total over any log that this engine wrote; a log that it cannot make
//! sense of is [`Corrupt`], and that run alone is frozen.

use crate::json::{Json, Value};
use crate::plan::{Action, OnReject, OnTimeout};
use crate::words::{ApprovalId, DeadLetterId, RunId, Timestamp};

use super::approval::{Approval, GuardedCall, Verdict};
use super::event::{
    ChildStatus, Decision, Event, Purpose, RequestRef, Settlement, StepError, WaitKind, WaitOutcome,
};
use super::log::{Corrupt, Recorded};
use super::mailbox::Signal;
use super::state::{PlannerEnd, State, Status, pin};
use super::step::{Attempt, Child, DeadLetter, Lease, Phase, Request, Settled, Step};

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
            Event::PlanCompleted { output } => {
                let output = output.clone();
                self.planner_end = Some(PlannerEnd::Completed { output });
            }
            Event::PlanFailed { message } => {
                let message = message.clone();
                self.planner_end = Some(PlannerEnd::Failed { message });
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
            _ => self.apply_call(entry, &recorded.event)?,
        }
        Ok(())
    }

    fn request_tool(&mut self, entry: &Entry, recorded: &Recorded) -> Result<(), Corrupt> {
        let Event::ToolRequested { tool, arguments } = &recorded.event else {
            return Ok(());
        };
        let idempotency_key = recorded.idempotency_key(&self.identity.run_id);
        if self.agent.plan().is_none() && entry.step == Some(self.steps.len() as u32) {
            let id = format!("step-{}", self.steps.len());
            self.steps.push(Step::new(id, "tool", Some(tool.clone())));
        }
        let step = self.step_mut(entry)?;
        step.request = Some(Request {
            tool: tool.clone(),
            arguments: arguments.clone(),
            idempotency_key,
            at: entry.at,
            seq: entry.seq,
        });
        step.unfilled = false;
        step.purpose = Purpose::Call;
        step.phase = Phase::Ready { since: entry.at };
        Ok(())
    }

    /// How a call of a tool goes, from its claim to its outcome.
    fn apply_call(&mut self, entry: &Entry, event: &Event) -> Result<(), Corrupt> {
        let at = entry.at;
        match event {
            Event::ToolClaimed {
                attempt,
                token,
                lease_until,
                purpose,
                ..
            } => {
                self.token = *token;
                if *purpose == Purpose::Call {
                    self.tool_calls = self.tool_calls.saturating_add(1);
                }
                let step = self.step_mut(entry)?;
                match purpose {
                    Purpose::Call => {
                        step.attempt = *attempt;
                        step.in_doubt = true;
                    }
                    Purpose::Verify => step.verifications = step.verifications.saturating_add(1),
                }
                let lease = Lease {
                    token: *token,
                    granted_at: at,
                    until: *lease_until,
                    purpose: *purpose,
                };
                step.phase = Phase::Running { lease };
            }
            Event::ToolLeaseExtended { token, lease_until } => {
                match &mut self.step_mut(entry)?.phase {
                    Phase::Running { lease } if lease.token == *token => lease.until = *lease_until,
                    _ => return Err(entry.corrupt("a lease is extended that nobody holds")),
                }
            }
            Event::ToolLeaseExpired { losses, .. } => {
                let step = self.step_mut(entry)?;
                step.losses = *losses;
                step.phase = Phase::Ready { since: at };
                step.note(at, "worker_lost", None, None);
            }
            Event::ToolCompleted {
                result,
                status_code,
                ..
            } => {
                let step = self.step_mut(entry)?;
                step.note(at, "completed", *status_code, None);
                step.finish(Phase::Completed, result.clone());
            }
            Event::ToolRetryScheduled {
                error,
                wait_ms,
                retry_at,
                purpose,
                ..
            } => {
                let step = self.step_mut(entry)?;
                let (code, message) = (error.status_code, &error.message);
                step.note(at, "retry_scheduled", code, Some(message));
                step.in_doubt &= *purpose == Purpose::Verify;
                step.losses = 0;
                step.previous_wait_ms = Some(*wait_ms);
                step.error = Some(error.clone());
                step.purpose = *purpose;
                step.phase = Phase::Retrying {
                    since: at,
                    at: *retry_at,
                };
            }
            Event::ToolFailed { error, .. } => {
                let planned = self.agent.plan().is_some();
                let step = self.step_mut(entry)?;
                let called = step.lease().is_some();
                if called || matches!(step.phase, Phase::AwaitingCallback { .. }) {
                    step.note(at, "failed", error.status_code, Some(&error.message));
                } else {
                    step.unfilled = planned && error.reason == "invalid_arguments";
                }
                step.in_doubt = false;
                step.losses = 0;
                step.error = Some(error.clone());
                step.phase = Phase::Failed;
                // A call that could not even be made is none.
                let unsent = matches!(error.reason.as_str(), "invalid_arguments" | "undeliverable");
                if called && unsent {
                    self.tool_calls = self.tool_calls.saturating_sub(1);
                }
            }
            Event::ToolOutcomeUnknown { error, .. } => {
                let step = self.step_mut(entry)?;
                let (code, message) = (error.status_code, &error.message);
                step.note(at, "outcome_unknown", code, Some(message));
                step.losses = 0;
                step.error = Some(error.clone());
                step.purpose = Purpose::Verify;
                step.verifications = 0;
                step.phase = Phase::Ready { since: at };
            }
            _ => return Err(entry.corrupt("an entry of a kind that is not of a call")),
        }
        Ok(())
    }

    fn start_wait(
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

    fn end_wait(
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

    fn waits_for_several(&self, index: u32) -> bool {
        let action = self.planned(index).map(|planned| &planned.action);
        matches!(action, Some(Action::WaitFor { several: true, .. }))
    }

    fn consume(&mut self, entry: &Entry, received_seq: u64) -> Result<(), Corrupt> {
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

    fn apply_approval(&mut self, entry: &Entry, event: &Event) -> Result<(), Corrupt> {
        match event {
            Event::ApprovalRequested {
                approval_id,
                prompt,
                schema,
                until,
                tool,
                arguments_digest,
            } => {
                let step_index = entry.step_index()?;
                let step = self.step_mut(entry)?;
                let call = match (tool, arguments_digest, &step.request) {
                    (Some(tool), Some(digest), Some(request)) => Some(GuardedCall {
                        tool: tool.clone(),
                        arguments: request.arguments.clone(),
                        arguments_digest: digest.clone(),
                    }),
                    _ => None,
                };
                step.phase = Phase::AwaitingApproval {
                    approval_id: approval_id.clone(),
                    until: *until,
                };
                self.approvals.push(Approval {
                    approval_id: approval_id.clone(),
                    step_index,
                    prompt: prompt.clone(),
                    schema: schema.clone(),
                    until: *until,
                    requested_at: entry.at,
                    call,
                    verdict: None,
                    changed_seq: entry.seq,
                });
            }
            Event::ApprovalDecided {
                approval_id,
                decision,
                data,
                comment,
                decided_by,
                request,
                ..
            } => {
                self.remember(entry, request.as_ref());
                let verdict = Verdict::Decided {
                    decision: *decision,
                    data: data.clone(),
                    comment: comment.clone(),
                    decided_by: decided_by.clone(),
                };
                let call = self.close_approval(entry, approval_id, verdict)?;
                let on_reject = self.planned(entry.step_index()?).map(|p| p.on_reject);
                let at = entry.at;
                let step = self.step_mut(entry)?;
                match (call, decision) {
                    (Some(call), Decision::Approved) => {
                        step.approved = Some(call);
                        step.phase = Phase::Ready { since: at };
                    }
                    (None, Decision::Approved) => {
                        let by = Value::from(decided_by.as_str());
                        let result = approval_result("approved", data, by, comment.as_deref());
                        step.finish(Phase::Completed, result);
                    }
                    (None, Decision::Rejected) if on_reject == Some(OnReject::Continue) => {
                        let by = Value::from(decided_by.as_str());
                        let result = approval_result("rejected", data, by, comment.as_deref());
                        step.finish(Phase::Completed, result);
                    }
                    // The step fails by an entry of its own.
                    (_, Decision::Rejected) => {}
                }
            }
            Event::ApprovalExpired { approval_id } => {
                self.close_approval(entry, approval_id, Verdict::Expired)?;
                let planned = self.planned(entry.step_index()?);
                if planned.is_some_and(|planned| planned.on_timeout == OnTimeout::Continue) {
                    let result = approval_result("expired", &Json::null(), Value::Null, None);
                    self.step_mut(entry)?.finish(Phase::Completed, result);
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn close_approval(
        &mut self,
        entry: &Entry,
        id: &ApprovalId,
        verdict: Verdict,
    ) -> Result<Option<GuardedCall>, Corrupt> {
        let approval = self
            .approvals
            .iter_mut()
            .find(|approval| &approval.approval_id == id && approval.verdict.is_none())
            .ok_or_else(|| entry.corrupt("an approval is settled that is not pending"))?;
        approval.verdict = Some((entry.at, verdict));
        approval.changed_seq = entry.seq;
        Ok(approval.call.clone())
    }

    fn apply_child(&mut self, entry: &Entry, event: &Event) -> Result<(), Corrupt> {
        let stranger = || entry.corrupt("an entry of a child run that the step did not ask for");
        let step = self.step_mut(entry)?;
        match event {
            Event::ChildRequested {
                run_id,
                agent,
                input,
            } => {
                let replaced = step.unfinished_child(entry.at);
                step.child = Some(Child {
                    run_id: run_id.clone(),
                    agent: agent.clone(),
                    input: input.clone(),
                    requested_at: entry.at,
                    started: false,
                    ended: None,
                });
                step.phase = Phase::AwaitingChild;
                self.call_off(replaced);
            }
            Event::ChildStarted { run_id, agent } => {
                let child = step.child_mut(run_id).ok_or_else(stranger)?;
                child.started = true;
                child.agent.clone_from(agent);
            }
            Event::ChildEnded {
                run_id,
                status,
                output,
                ..
            } => {
                let child = step.child_mut(run_id).ok_or_else(stranger)?;
                child.ended = Some(*status);
                let awaited = step.phase == Phase::AwaitingChild;
                if awaited && *status == ChildStatus::Completed {
                    step.finish(Phase::Completed, output.clone());
                }
            }
            _ => {}
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

    /// A child that failed may have been retried by hand, so it is called off like one that never
    /// ended.
    fn call_children_off(&mut self, entry: &Entry) {
        let children: Vec<_> = self
            .steps
            .iter()
            .filter_map(|step| step.unfinished_child(entry.at))
            .collect();
        for child in children {
            self.call_off(Some(child));
        }
    }

    fn call_off(&mut self, child: Option<(RunId, Timestamp)>) {
        let known = |run_id: &RunId| self.called_off.iter().any(|(known, _)| known == run_id);
        if let Some(child) = child.filter(|(run_id, _)| !known(run_id)) {
            self.called_off.push(child);
        }
    }

    /// A failed run goes on: what failed it, and what its failure cancelled, is to be done again.
    fn reopen(&mut self, entry: &Entry) -> Result<(), Corrupt> {
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

    fn reset_step(&mut self, entry: &Entry, index: u32) {
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

    fn settle_dead_letter(
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

/// The result of a wait for the first of several signals.
fn signal_result(name: Value, payload: Json) -> Json {
    let members = [
        ("signal".to_owned(), name),
        ("payload".to_owned(), Value::clone(&payload)),
    ];
    Json::new(Value::Object(members.into_iter().collect()))
}

/// The result of an approval step.
fn approval_result(decision: &str, data: &Json, by: Value, comment: Option<&str>) -> Json {
    let members = [
        ("decision".to_owned(), decision.into()),
        ("data".to_owned(), Value::clone(data)),
        ("decided_by".to_owned(), by),
        ("comment".to_owned(), comment.into()),
    ];
    Json::new(Value::Object(members.into_iter().collect()))
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
        if self.request.is_some() && !self.unfilled {
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
