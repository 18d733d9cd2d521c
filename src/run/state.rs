//! What a run's log adds up to.
//!
//! [`State::apply`] is the only way to change a state, for the live run and for one read back from
//! disk alike, so the two cannot differ. It is total over any log that this engine wrote; a log it
//! cannot make sense of is [`Corrupt`], and that run alone is frozen.

use std::collections::BTreeMap;

use crate::agent::{Agent, Planner};
use crate::json::{Json, Value};
use crate::plan::Plan;
use crate::tool::Tool;
use crate::words::{DeadLetterId, RunId, TenantId, Timestamp, TraceId};

use super::event::{
    Event, PinnedTool, Purpose, RequestRef, RunCreated, RunError, Settlement, StepError, WaitKind,
};
use super::log::{Corrupt, Identity, Recorded, ZERO_HASH};
use super::step::{Attempt, DeadLetter, Lease, Phase, Pinned, Request, Settled, Step};

/// Lines of a step's history that are kept for its dead letter.
const HISTORY_MAX: usize = 100;

#[derive(Clone, Debug, PartialEq)]
pub struct State {
    pub identity: Identity,
    pub created: RunCreated,
    pub agent: Agent,
    pub tools: BTreeMap<String, Pinned>,
    pub steps: Vec<Step>,
    pub dead_letters: Vec<DeadLetter>,
    pub status: Status,
    pub started: bool,
    /// Called off, with a call still under way.
    pub cancelling: bool,
    pub output: Json,
    pub error: Option<RunError>,
    /// What an external planner said last, if it is done.
    pub planner_end: Option<PlannerEnd>,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
    pub ended_at: Option<Timestamp>,
    /// The fencing token granted last.
    pub token: u64,
    /// The sequence number and the hash of the last entry.
    pub seq: u64,
    pub hash: String,
    /// The last entry that the tenant's index must hear of.
    pub shown_seq: u64,
    /// Requests carried out under a client's key, with the dead letter they settled.
    pub requests: Vec<(RequestRef, Option<DeadLetterId>)>,
    /// Since when the run has been in a status in which nothing runs.
    pub idle_since: Option<Timestamp>,
    pub waiting_ms: i64,
    pub tool_calls: u64,
    /// Bytes of the log's rows, for the bound on a run's size.
    pub log_bytes: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    Queued,
    Running,
    Waiting,
    Blocked,
    Completed,
    Failed,
    Cancelled,
}

#[derive(Clone, Debug, PartialEq)]
pub enum PlannerEnd {
    Completed { output: Json },
    Failed { message: String },
}

impl Status {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Running => "running",
            Self::Waiting => "waiting",
            Self::Blocked => "blocked",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }

    pub fn is_end(self) -> bool {
        matches!(self, Self::Completed | Self::Failed | Self::Cancelled)
    }

    fn is_idle(self) -> bool {
        matches!(self, Self::Waiting | Self::Blocked)
    }
}

impl State {
    /// The state after the first entry of a log.
    pub fn new(identity: Identity, created: RunCreated, at: Timestamp) -> Result<Self, Corrupt> {
        let corrupt = |message: String| Corrupt { seq: 1, message };
        let agent = Agent::parse(&created.definition)
            .map_err(|e| corrupt(format!("the pinned agent: {}", crate::json::sentence(&e))))?;
        let mut tools = BTreeMap::new();
        for (name, pinned) in &created.tools {
            tools.insert(name.clone(), pin(name, pinned).map_err(corrupt)?);
        }
        let steps = match &agent.planner {
            Planner::Plan(plan, _) => plan
                .steps
                .iter()
                .map(|step| Step::new(step.id.clone(), step.action.kind(), step.action.name()))
                .collect(),
            Planner::External => Vec::new(),
        };
        Ok(Self {
            identity,
            created,
            agent,
            tools,
            steps,
            dead_letters: Vec::new(),
            status: Status::Queued,
            started: false,
            cancelling: false,
            output: Json::null(),
            error: None,
            planner_end: None,
            created_at: at,
            updated_at: at,
            ended_at: None,
            token: 0,
            seq: 0,
            hash: ZERO_HASH.to_owned(),
            shown_seq: 0,
            requests: Vec::new(),
            idle_since: None,
            waiting_ms: 0,
            tool_calls: 0,
            log_bytes: 0,
        })
    }

    pub fn run_id(&self) -> &RunId {
        &self.identity.run_id
    }

    pub fn tenant_id(&self) -> &TenantId {
        &self.identity.tenant_id
    }

    pub fn trace_id(&self) -> &TraceId {
        &self.identity.trace_id
    }

    pub fn plan(&self) -> Option<&Plan> {
        self.agent.plan()
    }

    pub fn step(&self, index: u32) -> Option<&Step> {
        self.steps.get(index as usize)
    }

    pub fn steps_indexed(&self) -> impl Iterator<Item = (u32, &Step)> {
        self.steps
            .iter()
            .enumerate()
            .map(|(index, step)| (index as u32, step))
    }

    pub fn dead_letter(&self, id: &DeadLetterId) -> Option<&DeadLetter> {
        self.dead_letters
            .iter()
            .find(|letter| &letter.dead_letter_id == id)
    }

    pub fn open_dead_letters(&self) -> impl Iterator<Item = &DeadLetter> {
        self.dead_letters
            .iter()
            .filter(|letter| letter.settled.is_none())
    }

    /// The pinned tool of a step.
    pub fn tool_of(&self, step: &Step) -> Option<&Pinned> {
        self.tools.get(&step.request.as_ref()?.tool)
    }

    /// Whether the log is closed. A run that is called off is `cancelled` at once, and closes its log
    /// when the calls under way have come back.
    pub fn has_ended(&self) -> bool {
        self.ended_at.is_some()
    }

    /// When the run must have ended.
    pub fn deadline(&self) -> Option<Timestamp> {
        self.agent
            .limits
            .deadline_ms
            .map(|ms| self.created_at.plus_ms(ms))
    }

    /// The first failure that ends the run once nothing is under way any more.
    pub fn failing(&self) -> Option<(u32, &Step, &StepError)> {
        use crate::plan::OnFailure;
        self.steps_indexed().find_map(|(index, step)| {
            let goes_on = self
                .plan()
                .and_then(|plan| plan.steps.get(index as usize))
                .is_some_and(|planned| planned.on_failure == OnFailure::Continue);
            match (&step.phase, &step.error) {
                (Phase::Failed, Some(error)) if !goes_on => Some((index, step, error)),
                _ => None,
            }
        })
    }

    /// Takes one entry of the log into account.
    pub fn apply(&mut self, recorded: &Recorded) -> Result<(), Corrupt> {
        let seq = self.seq.saturating_add(1);
        let at = recorded.at;
        let corrupt = |message: &str| Corrupt {
            seq,
            message: message.to_owned(),
        };
        if self.ended_at.is_some() {
            return Err(corrupt("an entry follows the end of the run"));
        }
        match &recorded.event {
            Event::RunCreated(_) if self.seq == 0 => {}
            Event::RunCreated(_) => return Err(corrupt("the run is created twice")),
            Event::RunStarted {} => self.started = true,
            Event::RunWaiting {} | Event::RunBlocked { .. } => {}
            Event::RunCompleted { output } => {
                self.output = output.clone();
                self.end(Status::Completed, at);
            }
            Event::RunFailed { error } => {
                self.error = Some(error.clone());
                self.end(Status::Failed, at);
            }
            Event::RunCancelRequested { request, .. } => {
                self.remember(request.as_ref(), None);
                self.cancelling = true;
                self.status = Status::Cancelled;
                self.rest(at, false);
            }
            Event::RunCancelled { request, .. } => {
                self.remember(request.as_ref(), None);
                self.end(Status::Cancelled, at);
            }
            Event::PlanCompleted { output } => {
                self.planner_end = Some(PlannerEnd::Completed {
                    output: output.clone(),
                });
            }
            Event::PlanFailed { message } => {
                self.planner_end = Some(PlannerEnd::Failed {
                    message: message.clone(),
                });
            }
            Event::DeadLetterOpened {
                dead_letter_id,
                reason,
                message,
                errors,
            } => {
                let step_index = recorded
                    .step
                    .ok_or_else(|| corrupt("a dead letter without a step"))?;
                let step = self.step_mut(recorded, seq)?;
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
                };
                self.dead_letters.push(letter);
            }
            Event::DeadLetterSettled {
                dead_letter_id,
                settlement,
                request,
            } => {
                self.remember(request.as_ref(), Some(dead_letter_id));
                self.settle_dead_letter(recorded, seq, dead_letter_id, settlement)?;
            }
            Event::ToolRequested { tool, arguments } => {
                let idempotency_key = recorded.idempotency_key(&self.identity.run_id);
                if self.agent.plan().is_none() && recorded.step == Some(self.steps.len() as u32) {
                    let id = format!("step-{}", self.steps.len());
                    self.steps.push(Step::new(id, "tool", Some(tool.clone())));
                }
                let step = self.step_mut(recorded, seq)?;
                step.request = Some(Request {
                    tool: tool.clone(),
                    arguments: arguments.clone(),
                    idempotency_key,
                    at,
                    seq,
                });
                step.purpose = Purpose::Call;
                step.phase = Phase::Ready { since: at };
            }
            Event::ToolClaimed {
                attempt,
                token,
                lease_until,
                purpose,
            } => {
                self.token = *token;
                if *purpose == Purpose::Call {
                    self.tool_calls = self.tool_calls.saturating_add(1);
                }
                let step = self.step_mut(recorded, seq)?;
                match purpose {
                    Purpose::Call => step.attempt = *attempt,
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
                let step = self.step_mut(recorded, seq)?;
                match &mut step.phase {
                    Phase::Running { lease } if lease.token == *token => lease.until = *lease_until,
                    _ => return Err(corrupt("a lease is extended that nobody holds")),
                }
            }
            Event::ToolLeaseExpired { losses, .. } => {
                let step = self.step_mut(recorded, seq)?;
                step.losses = *losses;
                step.phase = Phase::Ready { since: at };
                step.note(at, "worker_lost", None, None);
            }
            Event::ToolCompleted {
                result,
                status_code,
                ..
            } => {
                let step = self.step_mut(recorded, seq)?;
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
                let step = self.step_mut(recorded, seq)?;
                step.note(
                    at,
                    "retry_scheduled",
                    error.status_code,
                    Some(&error.message),
                );
                step.losses = 0;
                step.previous_wait_ms = Some(*wait_ms);
                step.error = Some(error.clone());
                step.purpose = *purpose;
                step.phase = Phase::Retrying { at: *retry_at };
            }
            Event::ToolFailed { error, .. } => {
                let step = self.step_mut(recorded, seq)?;
                let claimed = step.lease().is_some();
                if claimed {
                    let (code, message) = (error.status_code, &error.message);
                    step.note(at, "failed", code, Some(message));
                }
                step.losses = 0;
                step.error = Some(error.clone());
                step.phase = Phase::Failed;
                // A call that could not even be made is none.
                let unsent = matches!(error.reason.as_str(), "invalid_arguments" | "undeliverable");
                if claimed && unsent {
                    self.tool_calls = self.tool_calls.saturating_sub(1);
                }
            }
            Event::ToolOutcomeUnknown { error, .. } => {
                let step = self.step_mut(recorded, seq)?;
                step.note(
                    at,
                    "outcome_unknown",
                    error.status_code,
                    Some(&error.message),
                );
                step.losses = 0;
                step.error = Some(error.clone());
                step.purpose = Purpose::Verify;
                step.verifications = 0;
                step.phase = Phase::Ready { since: at };
            }
            Event::WaitStarted {
                kind: WaitKind::Sleep,
                until,
            } => {
                self.step_mut(recorded, seq)?.phase = Phase::Sleeping { until: *until };
            }
            Event::WaitEnded {
                kind: WaitKind::Sleep,
            }
            | Event::EventEmitted { .. } => {
                self.step_mut(recorded, seq)?
                    .finish(Phase::Completed, Json::null());
            }
            Event::StepSkipped { .. } => {
                self.step_mut(recorded, seq)?
                    .finish(Phase::Skipped, Json::null());
            }
            Event::StepCancelled {} => self.step_mut(recorded, seq)?.phase = Phase::Cancelled,
        }
        self.seq = seq;
        if recorded.event.is_shown() {
            self.shown_seq = seq;
        }
        self.hash.clone_from(&recorded.hash);
        self.updated_at = at;
        self.log_bytes = self.log_bytes.saturating_add(recorded.bytes);
        self.refresh_status(at);
        Ok(())
    }

    fn settle_dead_letter(
        &mut self,
        recorded: &Recorded,
        seq: u64,
        dead_letter_id: &DeadLetterId,
        settlement: &Settlement,
    ) -> Result<(), Corrupt> {
        let at = recorded.at;
        let corrupt = |message: String| Corrupt { seq, message };
        let letter = self
            .dead_letters
            .iter_mut()
            .find(|letter| &letter.dead_letter_id == dead_letter_id && letter.settled.is_none())
            .ok_or_else(|| corrupt("a dead letter is settled that is not open".into()))?;
        letter.settled = Some(Settled {
            at,
            settlement: settlement.clone(),
        });
        let (reason, message) = (letter.reason, letter.message.clone());
        if let Settlement::Redelivered { tools, .. } = settlement {
            for (name, pinned) in tools {
                self.tools
                    .insert(name.clone(), pin(name, pinned).map_err(corrupt)?);
            }
        }
        let step = self.step_mut(recorded, seq)?;
        match settlement {
            Settlement::Redelivered { .. } => {
                step.attempts_before = step.attempt;
                step.losses = 0;
                step.previous_wait_ms = None;
                step.error = None;
                step.purpose = Purpose::Call;
                step.note(at, "redelivered", None, None);
                step.phase = match step.request {
                    Some(_) => Phase::Ready { since: at },
                    None => Phase::Pending,
                };
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
        self.status = if active && self.started {
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

    fn remember(&mut self, request: Option<&RequestRef>, settled: Option<&DeadLetterId>) {
        if let Some(request) = request {
            self.requests.push((request.clone(), settled.cloned()));
        }
    }

    fn step_mut(&mut self, recorded: &Recorded, seq: u64) -> Result<&mut Step, Corrupt> {
        recorded
            .step
            .and_then(|index| self.steps.get_mut(index as usize))
            .ok_or_else(|| Corrupt {
                seq,
                message: format!("no step {:?}", recorded.step),
            })
    }
}

impl Step {
    fn finish(&mut self, phase: Phase, result: Json) {
        self.phase = phase;
        self.result = result;
        self.error = None;
        self.losses = 0;
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

fn pin(name: &str, pinned: &PinnedTool) -> Result<Pinned, String> {
    let definition: &Value = &pinned.definition;
    let tool = Tool::parse(definition)
        .map_err(|e| format!("the pinned tool {name}: {}", crate::json::sentence(&e)))?;
    Ok(Pinned {
        version: pinned.version,
        tool,
        definition: pinned.definition.clone(),
    })
}
