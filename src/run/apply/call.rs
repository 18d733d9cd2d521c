//! A step's intent, and how a call of its tool goes, from its claim to its outcome.

use crate::agent::Planner;
use crate::run::event::{Event, Purpose};
use crate::run::log::{Corrupt, Recorded};
use crate::run::state::State;
use crate::run::step::{Lease, Phase, Request, Step};
use crate::words::Timestamp;

use super::Entry;

impl State {
    pub(super) fn request_tool(
        &mut self,
        entry: &Entry,
        recorded: &Recorded,
    ) -> Result<(), Corrupt> {
        let Event::ToolRequested { tool, arguments } = &recorded.event else {
            return Ok(());
        };
        let idempotency_key = recorded.idempotency_key(&self.identity.run_id);
        let external = matches!(self.agent.planner, Planner::External);
        if external && entry.step == Some(self.steps.len() as u32) {
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

    /// A worker holds the step.
    pub(super) fn hold(
        &mut self,
        entry: &Entry,
        token: u64,
        until: Timestamp,
        purpose: Purpose,
    ) -> Result<(), Corrupt> {
        self.token = token;
        let lease = Lease {
            token,
            granted_at: entry.at,
            until,
            purpose,
        };
        self.step_mut(entry)?.phase = Phase::Running { lease };
        Ok(())
    }

    pub(super) fn hold_longer(
        &mut self,
        entry: &Entry,
        token: u64,
        until: Timestamp,
    ) -> Result<(), Corrupt> {
        match &mut self.step_mut(entry)?.phase {
            Phase::Running { lease } if lease.token == token => lease.until = until,
            _ => return Err(entry.corrupt("a lease is extended that nobody holds")),
        }
        Ok(())
    }

    pub(super) fn lose_holder(&mut self, entry: &Entry, losses: u32) -> Result<(), Corrupt> {
        let at = entry.at;
        let step = self.step_mut(entry)?;
        step.losses = losses;
        step.phase = Phase::Ready { since: at };
        step.note(at, "worker_lost", None, None);
        Ok(())
    }

    /// How a call of a tool goes, from its claim to its outcome.
    pub(super) fn apply_call(&mut self, entry: &Entry, event: &Event) -> Result<(), Corrupt> {
        let at = entry.at;
        match event {
            Event::ToolClaimed {
                attempt,
                token,
                lease_until,
                purpose,
                ..
            } => {
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
                self.hold(entry, *token, *lease_until, *purpose)?;
            }
            Event::ToolLeaseExtended { token, lease_until } => {
                self.hold_longer(entry, *token, *lease_until)?;
            }
            Event::ToolLeaseExpired { losses, .. } => self.lose_holder(entry, *losses)?,
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
                let planned = planned || step.flaw.is_some();
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
}
