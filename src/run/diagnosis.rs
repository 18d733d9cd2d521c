//! Why a run is not moving, and what would release it: read off its state.

use serde::Serialize;

use crate::agent::Planner;
use crate::words::{ApprovalId, DeadLetterId, RunId, Timestamp};

use super::state::{State, Status};
use super::step::{Phase, Step};

/// `GET /v1/runs/{run_id}/diagnosis`, member for member.
#[derive(Debug, Serialize)]
pub struct Diagnosis {
    pub run_id: RunId,
    pub status: &'static str,
    /// Whether something is under way that needs nobody outside.
    pub moving: bool,
    pub blockers: Vec<Blocker>,
}

#[derive(Debug, Serialize)]
pub struct Blocker {
    pub kind: &'static str,
    pub step_index: Option<u32>,
    pub since: Option<Timestamp>,
    pub until: Option<Timestamp>,
    pub detail: String,
    /// The call that releases it. Null: time does, or a worker.
    pub release: Option<String>,
    /// Of a frozen run: the entry that cannot be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seq: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub approval_id: Option<ApprovalId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dead_letter_id: Option<DeadLetterId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub child_run_id: Option<RunId>,
}

impl Blocker {
    fn new(kind: &'static str, detail: impl Into<String>) -> Self {
        Self {
            kind,
            step_index: None,
            since: None,
            until: None,
            detail: detail.into(),
            release: None,
            seq: None,
            approval_id: None,
            dead_letter_id: None,
            child_run_id: None,
        }
    }
}

/// Every blocker of the run: of the run as a whole first, then of its steps in their order.
pub fn diagnose(state: &State) -> Diagnosis {
    let run_id = state.run_id();
    let mut blockers = Vec::new();
    if !state.has_ended() {
        if let (Some(since), false) = (state.paused_at, state.status.is_end()) {
            blockers.push(Blocker {
                since: Some(since),
                release: Some(format!("POST /v1/runs/{run_id}/resume")),
                ..Blocker::new("paused", "the run is paused: nothing new is begun")
            });
        }
        let of_steps = state.steps_indexed().filter_map(|(index, step)| {
            let blocker = of_step(state, step)?;
            Some(Blocker {
                step_index: Some(index),
                ..blocker
            })
        });
        blockers.extend(of_steps);
        blockers.extend(of_limit(state));
        blockers.extend(of_planner(state));
    }
    Diagnosis {
        run_id: run_id.clone(),
        status: state.status.as_str(),
        moving: matches!(state.status, Status::Queued | Status::Running),
        blockers,
    }
}

/// Of a run whose log cannot be read: it stands still, whatever it was about to do.
pub fn frozen(run_id: RunId, seq: u64) -> Diagnosis {
    let detail = format!(
        "entry {seq} of the run's log cannot be read by this release, so nothing of the run is carried out: deploy the release that wrote it, or a later one"
    );
    Diagnosis {
        run_id,
        status: "frozen",
        moving: false,
        blockers: vec![Blocker {
            seq: Some(seq),
            ..Blocker::new("frozen", detail)
        }],
    }
}

fn of_step(state: &State, step: &Step) -> Option<Blocker> {
    let run_id = state.run_id();
    let name = step.name.as_deref().unwrap_or(&step.id);
    Some(match &step.phase {
        Phase::Ready { since } => Blocker {
            since: Some(*since),
            ..Blocker::new("lease", format!("{name} waits for a worker"))
        },
        Phase::Running { lease } => Blocker {
            since: Some(lease.granted_at),
            until: Some(lease.until),
            ..Blocker::new(
                "lease",
                format!("a worker calls {name}, attempt {}", step.attempt),
            )
        },
        Phase::Retrying { since, at } => {
            let error = step.error.as_ref().map_or("", |error| &error.message);
            let attempt = step.attempt;
            Blocker {
                since: Some(*since),
                until: Some(*at),
                ..Blocker::new(
                    "retry",
                    format!("{name} failed at attempt {attempt}: {error}"),
                )
            }
        }
        Phase::Sleeping { since, until } => Blocker {
            since: Some(*since),
            until: Some(*until),
            ..Blocker::new("timer", format!("{} sleeps", step.id))
        },
        Phase::AwaitingSignal {
            since,
            until,
            names,
        } => {
            let first = names.first().map_or("", String::as_str);
            Blocker {
                since: Some(*since),
                until: *until,
                release: Some(format!("POST /v1/runs/{run_id}/signals/{first}")),
                ..Blocker::new("signal", format!("waits for {}", names.join(" or ")))
            }
        }
        Phase::AwaitingApproval { approval_id, until } => {
            let approval = state.approval(approval_id);
            let prompt = approval.map_or("", |approval| approval.prompt.as_str());
            Blocker {
                since: approval.map(|approval| approval.requested_at),
                until: *until,
                release: Some(format!("POST /v1/approvals/{approval_id}")),
                approval_id: Some(approval_id.clone()),
                ..Blocker::new("approval", crate::fields::shorten(prompt))
            }
        }
        Phase::AwaitingCallback { since, until } => Blocker {
            since: Some(*since),
            until: Some(*until),
            // The token is the tool's, and nobody else's.
            release: Some("POST /v1/callbacks/{token}".to_owned()),
            ..Blocker::new(
                "callback",
                format!("{name} answered 202 and was given the URL to call, in Dormouse-Callback"),
            )
        },
        Phase::AwaitingChild => {
            let child = step.child.as_ref()?;
            let child_run_id = &child.run_id;
            let detail = if child.started {
                format!("the child run {child_run_id} has not ended")
            } else {
                format!("the child run {child_run_id} is being started")
            };
            Blocker {
                since: Some(child.requested_at),
                release: child
                    .started
                    .then(|| format!("GET /v1/runs/{child_run_id}/diagnosis")),
                child_run_id: Some(child_run_id.clone()),
                ..Blocker::new("child", detail)
            }
        }
        Phase::DeadLettered { dead_letter_id } => {
            let letter = state.dead_letter(dead_letter_id);
            let detail = letter.map_or(String::new(), |letter| {
                format!("{}: {}", letter.reason.as_str(), letter.message)
            });
            Blocker {
                since: letter.map(|letter| letter.created_at),
                release: Some(format!("POST /v1/dead-letters/{dead_letter_id}/redeliver")),
                dead_letter_id: Some(dead_letter_id.clone()),
                ..Blocker::new("dead_letter", detail)
            }
        }
        Phase::Pending | Phase::Completed | Phase::Failed | Phase::Skipped | Phase::Cancelled => {
            return None;
        }
    })
}

/// A run that has used up what it may use.
fn of_limit(state: &State) -> Option<Blocker> {
    let reached = state.reached.as_ref().filter(|_| !state.status.is_end())?;
    Some(Blocker {
        since: Some(reached.at),
        release: Some(format!("POST /v1/runs/{}/limits", state.run_id())),
        ..Blocker::new("limit", format!("{}: {}", reached.limit, reached.message))
    })
}

/// A run whose planner is outside stands still until that says what is next.
fn of_planner(state: &State) -> Option<Blocker> {
    let outside = matches!(state.agent.planner, Planner::External);
    let idle = state.steps.iter().all(Step::is_done);
    (outside && idle && state.planner_end.is_none()).then(|| Blocker {
        since: Some(state.updated_at),
        release: Some("POST /v1/envelopes".to_owned()),
        ..Blocker::new("planner", "the external planner has not said what is next")
    })
}
