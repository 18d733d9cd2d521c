//! What a run's log adds up to. `State::apply` is the only way to change it.

use std::collections::BTreeMap;

use crate::agent::{Agent, Limits, Planner};
use crate::json::{Json, Value};
use crate::plan::{self, OnFailure, OnReject, Plan};
use crate::tool::Tool;
use crate::words::{ApprovalId, DeadLetterId, RunId, TenantId, Timestamp, TraceId};

use super::approval::{Approval, GuardedCall};
use super::event::{Parent, PinnedTool, RequestRef, RunCreated, RunError, StepError};
use super::log::{Corrupt, Identity, ZERO_HASH};
use super::mailbox::Mailbox;
use super::round::{Reached, Round, Summary, Tokens};
use super::step::{DeadLetter, Phase, Pinned, Step};

/// The reason of a step that a person did not allow.
pub const REJECTED: &str = "approval_rejected";

#[derive(Clone, Debug, PartialEq)]
pub struct State {
    pub identity: Identity,
    pub created: RunCreated,
    pub agent: Agent,
    pub tools: BTreeMap<String, Pinned>,
    pub steps: Vec<Step>,
    pub dead_letters: Vec<DeadLetter>,
    pub approvals: Vec<Approval>,
    pub mailbox: Mailbox,
    /// Child runs that were called off with their steps and have not reported an end, and when.
    pub called_off: Vec<(RunId, Timestamp)>,
    pub status: Status,
    pub started: bool,
    pub paused_at: Option<Timestamp>,
    /// When the run was resumed or retried last: what it wanted before, it wants anew since then.
    pub resumed_at: Option<Timestamp>,
    /// When it was retried last: its own deadline counts from there.
    pub retried_at: Option<Timestamp>,
    /// Called off, with a call still under way.
    pub cancelling: bool,
    pub output: Json,
    pub error: Option<RunError>,
    /// What the planner said last, if it is done.
    pub planner_end: Option<PlannerEnd>,
    /// The agent's limits, and what was raised of them since.
    pub limits: Limits,
    /// The limit at which the run stands still.
    pub reached: Option<Reached>,
    /// The rounds of the planner that are answered.
    pub rounds: Vec<Round>,
    /// What stands for those of them whose content was let go.
    pub summary: Option<Summary>,
    pub tokens: Tokens,
    pub model_calls: u64,
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
    /// Requests carried out under a client's key, with the entry that records them.
    pub requests: Vec<(RequestRef, u64)>,
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
    Paused,
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
            Self::Paused => "paused",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }

    pub fn is_end(self) -> bool {
        matches!(self, Self::Completed | Self::Failed | Self::Cancelled)
    }

    /// Whether nothing runs.
    pub fn is_idle(self) -> bool {
        matches!(self, Self::Waiting | Self::Blocked | Self::Paused)
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
            Planner::Model(_) | Planner::Http(_) | Planner::External => Vec::new(),
        };
        let mut limits = agent.limits;
        let granted = created.parent.as_ref().and_then(|parent| parent.tokens);
        limits.max_tokens = limits.max_tokens.into_iter().chain(granted).min();
        Ok(Self {
            identity,
            created,
            agent,
            tools,
            steps,
            dead_letters: Vec::new(),
            approvals: Vec::new(),
            mailbox: Mailbox::default(),
            called_off: Vec::new(),
            status: Status::Queued,
            started: false,
            paused_at: None,
            resumed_at: None,
            retried_at: None,
            cancelling: false,
            output: Json::null(),
            error: None,
            planner_end: None,
            limits,
            reached: None,
            rounds: Vec::new(),
            summary: None,
            tokens: Tokens::default(),
            model_calls: 0,
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

    /// The step as the plan has it, or as the planner wanted it.
    pub fn planned(&self, index: u32) -> Option<&plan::Step> {
        match self.plan() {
            Some(plan) => plan.steps.get(index as usize),
            None => self.step(index)?.intent.as_deref(),
        }
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

    /// When the run must have ended: its own deadline or its parent's, whichever is sooner.
    pub fn deadline(&self) -> Option<Timestamp> {
        let own = self.limits.deadline_ms;
        let own = own.map(|ms| self.retried_at.unwrap_or(self.created_at).plus_ms(ms));
        let inherited = self.parent().and_then(|parent| parent.deadline);
        own.into_iter().chain(inherited).min()
    }

    pub fn parent(&self) -> Option<&Parent> {
        self.created.parent.as_ref()
    }

    /// Levels of child runs that may be below this one.
    pub fn depth_left(&self) -> u32 {
        let own = self.limits.max_depth;
        self.parent()
            .map_or(own, |parent| own.min(parent.depth_left))
    }

    pub fn approval(&self, id: &ApprovalId) -> Option<&Approval> {
        self.approvals
            .iter()
            .find(|approval| &approval.approval_id == id)
    }

    /// Whether the step's tool may be called only with a person's leave that nobody has given for
    /// exactly these arguments.
    pub fn wants_approval(&self, step: &Step) -> bool {
        let (Some(request), Some(pinned)) = (&step.request, self.tool_of(step)) else {
            return false;
        };
        let approved = |call: &GuardedCall| {
            call.tool == request.tool && call.arguments_digest == request.arguments_digest()
        };
        pinned.tool.requires_approval && !step.approved.as_ref().is_some_and(approved)
    }

    /// The first failure that ends the run once nothing is under way any more.
    pub fn failing(&self) -> Option<(u32, &Step, &StepError)> {
        self.steps_indexed().find_map(|(index, step)| {
            let (Phase::Failed, Some(error)) = (&step.phase, &step.error) else {
                return None;
            };
            // What a planner wanted and did not get is news for the planner.
            let of_planner = self.agent.mind().is_some() && !step.is_round();
            let goes_on = of_planner
                || self.planned(index).is_some_and(|planned| {
                    planned.on_failure == OnFailure::Continue
                        || error.reason == REJECTED && planned.on_reject == OnReject::Continue
                });
            (!goes_on).then_some((index, step, error))
        })
    }
}

pub(super) fn pin(name: &str, pinned: &PinnedTool) -> Result<Pinned, String> {
    let definition: &Value = &pinned.definition;
    let tool = Tool::parse(definition)
        .map_err(|e| format!("the pinned tool {name}: {}", crate::json::sentence(&e)))?;
    Ok(Pinned {
        version: pinned.version,
        tool,
        definition: pinned.definition.clone(),
    })
}
