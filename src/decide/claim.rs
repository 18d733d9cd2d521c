//! A worker asks for a step, or for more time with it.

use serde::{Deserialize, Serialize};

use crate::json::Json;
use crate::run::event::{Event, Purpose};
use crate::run::{Phase, State, Step};
use crate::tool::{Effect, Tool};
use crate::words::{RunId, TenantId, Timestamp, TraceId};

use super::round::{self, Asked};
use super::{Refusal, Turn};

/// The first lease, and the least that an extension adds. Short, so that a lost worker is noticed
/// soon; a worker that lives asks for more in time.
pub const LEASE_MS: i64 = 4_000;
const LEASE_MS_MAX: i64 = 60_000;
/// What a call may take beyond its own timeout: arguments checked, result checked, report made.
const LEASE_MARGIN_MS: i64 = 5_000;
/// Alarms and clocks may be this much early.
const EARLY_MS: i64 = 20;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Claim {
    pub step_index: u32,
    pub idempotency_key: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ClaimReply {
    Granted(Box<Assignment>),
    /// A round: the planner is to be asked.
    Asked(Box<PlanAssignment>),
    /// Nothing to do for this delivery: the run itself sees to what is left.
    TurnedAway(TurnedAway),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TurnedAway {
    /// The step has its outcome.
    Done,
    /// Another worker holds it.
    Held,
    /// Its next attempt is not due.
    Early,
    /// The run is paused.
    Paused,
    /// A person must settle it first.
    DeadLettered,
    /// The message is of an intent that was replaced, or of no step of this run.
    Stale,
    /// The run has ended.
    Ended,
}

/// A step handed to a worker: everything needed to act, so that nothing else need be asked.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Assignment {
    pub run_id: RunId,
    pub tenant_id: TenantId,
    pub trace_id: TraceId,
    pub step_index: u32,
    pub idempotency_key: String,
    pub attempt: u32,
    pub token: u64,
    pub purpose: Purpose,
    pub tool_name: String,
    pub tool_version: u64,
    pub tool: Json,
    pub arguments: Json,
    pub granted_at: Timestamp,
    pub lease_until: Timestamp,
    /// Workers lost with this attempt: its outcome may have been put aside.
    pub losses: u32,
    /// Where callbacks find this service, as far as the run knows.
    pub origin: Option<String>,
}

/// A round handed to a worker: everything needed to ask the planner.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PlanAssignment {
    pub run_id: RunId,
    pub tenant_id: TenantId,
    pub trace_id: TraceId,
    pub step_index: u32,
    pub idempotency_key: String,
    pub attempt: u32,
    pub token: u64,
    /// The agent's definition: its planner is the one to ask.
    pub agent: Json,
    /// `name@version` of it.
    pub agent_label: Option<String>,
    pub asked: Asked,
    pub granted_at: Timestamp,
    pub lease_until: Timestamp,
    /// Workers lost with this attempt: its answer may have been put aside.
    pub losses: u32,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Extend {
    pub step_index: u32,
    pub token: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ExtendReply {
    /// `None`: the step is no longer this worker's.
    pub lease_until: Option<Timestamp>,
}

pub(super) fn claim(turn: &mut Turn, claim: &Claim) -> Result<ClaimReply, Refusal> {
    if let Some(why) = turned_away(&turn.state, claim, turn.now) {
        return Ok(ClaimReply::TurnedAway(why));
    }
    let index = claim.step_index;
    if turn.state.step(index).is_some_and(|step| step.is_round()) {
        let asked = round::grant(turn, index)?.map(Box::new);
        let stale = ClaimReply::TurnedAway(TurnedAway::Stale);
        return Ok(asked.map_or(stale, ClaimReply::Asked));
    }
    Ok(match grant(turn, index)? {
        Some(assignment) => ClaimReply::Granted(Box::new(assignment)),
        None => ClaimReply::TurnedAway(TurnedAway::Stale),
    })
}

fn turned_away(state: &State, claim: &Claim, now: Timestamp) -> Option<TurnedAway> {
    if state.status.is_end() {
        return Some(TurnedAway::Ended);
    }
    let Some(step) = state.step(claim.step_index) else {
        return Some(TurnedAway::Stale);
    };
    if step.idempotency_key() != Some(claim.idempotency_key.as_str()) {
        return Some(TurnedAway::Stale);
    }
    match step.phase {
        Phase::Ready { .. } | Phase::Retrying { .. } if state.paused_at.is_some() => {
            Some(TurnedAway::Paused)
        }
        Phase::Ready { .. } if state.failing().is_some() => Some(TurnedAway::Ended),
        Phase::Ready { .. } => None,
        Phase::Retrying { at, .. } if at <= now.plus_ms(EARLY_MS) => None,
        Phase::Retrying { .. } => Some(TurnedAway::Early),
        Phase::Running { .. } => Some(TurnedAway::Held),
        Phase::DeadLettered { .. } => Some(TurnedAway::DeadLettered),
        Phase::AwaitingCallback { .. } | Phase::AwaitingApproval { .. } => Some(TurnedAway::Early),
        Phase::Pending
        | Phase::Sleeping { .. }
        | Phase::AwaitingSignal { .. }
        | Phase::AwaitingChild => Some(TurnedAway::Stale),
        Phase::Completed | Phase::Failed | Phase::Skipped | Phase::Cancelled => {
            Some(TurnedAway::Done)
        }
    }
}

/// Records the claim of a step that wants a worker. `None`: the step has no intent or no tool.
pub(super) fn grant(turn: &mut Turn, index: u32) -> Result<Option<Assignment>, Refusal> {
    let Some(step) = turn.state.step(index) else {
        return Ok(None);
    };
    let (Some(request), Some(pinned)) = (&step.request, turn.state.tool_of(step)) else {
        return Ok(None);
    };
    // The last gate: whatever led here, nothing is called that nobody allowed.
    if turn.state.wants_approval(step) {
        return Ok(None);
    }
    let arguments_digest = pinned
        .tool
        .requires_approval
        .then(|| request.arguments_digest());
    let purpose = step.purpose;
    let token = turn.state.token.saturating_add(1);
    let lease_until = turn.now.plus_ms(first_lease_ms(&pinned.tool, purpose));
    let assignment = Assignment {
        run_id: turn.state.run_id().clone(),
        tenant_id: turn.state.tenant_id().clone(),
        trace_id: turn.state.trace_id().clone(),
        step_index: index,
        idempotency_key: request.idempotency_key.clone(),
        attempt: if purpose == Purpose::Call {
            step.next_attempt()
        } else {
            step.attempt
        },
        token,
        purpose,
        tool_name: request.tool.clone(),
        tool_version: pinned.version,
        tool: pinned.definition.clone(),
        arguments: request.arguments.clone(),
        granted_at: turn.now,
        lease_until,
        losses: step.losses,
        origin: turn.state.created.origin.clone(),
    };
    if !turn.state.started {
        turn.record(None, Event::RunStarted {})?;
    }
    let attempt = assignment.attempt;
    turn.record(
        Some(index),
        Event::ToolClaimed {
            attempt,
            token,
            lease_until,
            purpose,
            arguments_digest,
        },
    )?;
    Ok(Some(assignment))
}

fn least_lease_ms(turn: &Turn, index: u32, purpose: Purpose) -> i64 {
    let step = turn.state.step(index);
    let pinned = step.and_then(|step| turn.state.tool_of(step));
    pinned.map_or(LEASE_MS, |pinned| first_lease_ms(&pinned.tool, purpose))
}

/// A call that must never be made twice is given its whole time at once: taking it for lost while
/// it lives would put a person to work for nothing.
fn first_lease_ms(tool: &Tool, purpose: Purpose) -> i64 {
    match (tool.effect, purpose) {
        (Effect::AtMostOnce, Purpose::Call) => tool.timeout_ms.saturating_add(LEASE_MARGIN_MS),
        _ => LEASE_MS,
    }
}

/// Grants the holder more time, in growing portions: a long call costs few entries, and a worker
/// lost early in it is still noticed early.
pub(super) fn extend(turn: &mut Turn, extend: &Extend) -> Result<ExtendReply, Refusal> {
    let lease = turn
        .state
        .step(extend.step_index)
        .and_then(Step::lease)
        .copied();
    let held = lease.filter(|lease| lease.token == extend.token && !turn.state.has_ended());
    let Some(lease) = held else {
        return Ok(ExtendReply { lease_until: None });
    };
    let held_ms = turn.now.ms_since(lease.granted_at);
    let portion_ms = held_ms.clamp(LEASE_MS, LEASE_MS_MAX).max(least_lease_ms(
        turn,
        extend.step_index,
        lease.purpose,
    ));
    let lease_until = turn.now.plus_ms(portion_ms).max(lease.until);
    let token = extend.token;
    let of_round = turn
        .state
        .step(extend.step_index)
        .is_some_and(|step| step.is_round());
    let event = if of_round {
        Event::PlanLeaseExtended { token, lease_until }
    } else {
        Event::ToolLeaseExtended { token, lease_until }
    };
    turn.record(Some(extend.step_index), event)?;
    Ok(ExtendReply {
        lease_until: Some(lease_until),
    })
}
