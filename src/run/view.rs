//! What clients are shown of a run: the run itself, its dead letters, pages of its log.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use serde::Serialize;

use crate::json::{self, Json, Value, Violation};
use crate::words::{ApprovalId, DeadLetterId, RunId, Timestamp, TraceId};

use super::approval::{Approval, Verdict};
use super::event::{RunError, StepError};
use super::log::{self, Corrupt, Identity, Row, ZERO_HASH};
use super::state::State;
use super::step::{Attempt, DeadLetter, Phase, Step};

/// Steps of one run that are shown with it.
const STEPS_SHOWN_MAX: usize = 1_000;
/// Of the results that are shown with a run, as JSON: four of the largest fit.
const RESULTS_SHOWN_BYTES_MAX: usize = 2_100_000;

/// `GET /v1/runs/{run_id}`, member for member.
#[derive(Debug, Serialize)]
pub struct RunView<'a> {
    run_id: &'a RunId,
    agent: Option<&'a str>,
    status: &'static str,
    input: &'a Json,
    output: &'a Json,
    error: Option<&'a RunError>,
    tags: &'a BTreeMap<String, String>,
    trace_id: &'a TraceId,
    created_at: Timestamp,
    updated_at: Timestamp,
    ended_at: Option<Timestamp>,
    steps: Vec<StepView<'a>>,
    /// Steps before these, of a run that has very many.
    #[serde(skip_serializing_if = "is_zero")]
    steps_omitted: usize,
    waiting_for: Vec<WaitingFor<'a>>,
    mailbox: Vec<Unread<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    parent: Option<ParentView<'a>>,
    usage: Usage,
}

#[derive(Debug, Serialize)]
struct StepView<'a> {
    step_index: u32,
    id: &'a str,
    kind: &'static str,
    name: Option<&'a str>,
    status: &'static str,
    attempts: u32,
    idempotency_key: Option<&'a str>,
    result: Option<&'a Json>,
    /// Left out: the log has it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    result_omitted: bool,
    error: Option<&'a StepError>,
    #[serde(skip_serializing_if = "Option::is_none")]
    child_run_id: Option<&'a RunId>,
}

/// What a run waits for. The kinds are those of a diagnosis.
#[derive(Debug, Serialize)]
struct WaitingFor<'a> {
    kind: &'static str,
    /// None: the run as a whole waits.
    step_index: Option<u32>,
    /// The limit at which the run stands still.
    #[serde(skip_serializing_if = "Option::is_none")]
    limit: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    approval_id: Option<&'a ApprovalId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dead_letter_id: Option<&'a DeadLetterId>,
    /// The child run.
    #[serde(skip_serializing_if = "Option::is_none")]
    run_id: Option<&'a RunId>,
    /// The signals of which the first is awaited.
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    names: &'a [String],
    until: Option<Timestamp>,
}

/// A signal that came and that nothing has waited for yet.
#[derive(Debug, Serialize)]
struct Unread<'a> {
    seq: u64,
    name: &'a str,
    received_at: Timestamp,
}

#[derive(Debug, Serialize)]
struct ParentView<'a> {
    run_id: &'a RunId,
    step_index: u32,
    root_run_id: &'a RunId,
    depth: u32,
}

#[derive(Debug, Serialize)]
struct Usage {
    active_ms: i64,
    waiting_ms: i64,
    tool_calls: u64,
    model_calls: u64,
    input_tokens: u64,
    output_tokens: u64,
}

/// `GET /v1/dead-letters/{id}`, member for member.
#[derive(Debug, Serialize)]
pub struct DeadLetterView<'a> {
    dead_letter_id: &'a DeadLetterId,
    status: &'static str,
    reason: super::event::DeadLetterReason,
    message: &'a str,
    run_id: &'a RunId,
    step_index: u32,
    envelope: Option<EnvelopeView<'a>>,
    errors: &'a [Violation],
    attempts: &'a [Attempt],
    created_at: Timestamp,
    settled_at: Option<Timestamp>,
}

/// The envelope of the step's intent.
#[derive(Debug, Serialize)]
struct EnvelopeView<'a> {
    schema_version: &'static str,
    event_id: crate::words::EventId,
    event_type: &'static str,
    tenant_id: &'a str,
    trace_id: &'a str,
    run_id: &'a str,
    step_index: u32,
    idempotency_key: &'a str,
    timestamp: Timestamp,
    payload: PayloadView<'a>,
}

#[derive(Debug, Serialize)]
struct PayloadView<'a> {
    tool: &'a str,
    arguments: &'a Json,
}

pub fn run(state: &State) -> RunView<'_> {
    let until = state.ended_at.unwrap_or(state.updated_at);
    let waiting_ms = state.waiting_ms;
    RunView {
        run_id: state.run_id(),
        agent: state.created.agent.as_deref(),
        status: state.status.as_str(),
        input: &state.created.input,
        output: &state.output,
        error: state.error.as_ref(),
        tags: &state.created.tags,
        trace_id: state.trace_id(),
        created_at: state.created_at,
        updated_at: state.updated_at,
        ended_at: state.ended_at,
        steps: step_views(state),
        steps_omitted: state.steps.len().saturating_sub(STEPS_SHOWN_MAX),
        waiting_for: state
            .steps_indexed()
            .filter_map(|(i, step)| waiting_for(i, step))
            .chain(waiting_for_limit(state))
            .collect(),
        mailbox: state
            .mailbox
            .iter()
            .map(|signal| Unread {
                seq: signal.seq,
                name: &signal.name,
                received_at: signal.received_at,
            })
            .collect(),
        parent: state.parent().map(|parent| ParentView {
            run_id: &parent.run_id,
            step_index: parent.step_index,
            root_run_id: &parent.root_run_id,
            depth: parent.depth,
        }),
        usage: Usage {
            active_ms: until
                .ms_since(state.created_at)
                .saturating_sub(waiting_ms)
                .max(0),
            waiting_ms,
            tool_calls: state.tool_calls,
            model_calls: state.model_calls,
            input_tokens: state.tokens.input,
            output_tokens: state.tokens.output,
        },
    }
}

/// The last steps, the last of their results. A run may have thousands; its log has them all.
fn step_views(state: &State) -> Vec<StepView<'_>> {
    let mut left = RESULTS_SHOWN_BYTES_MAX;
    let last = state.steps.len().saturating_sub(STEPS_SHOWN_MAX);
    let shown = state.steps_indexed().skip(last).collect::<Vec<_>>();
    let mut views: Vec<StepView<'_>> = shown
        .into_iter()
        .rev()
        .map(|(index, step)| {
            let mut view = step_view(index, step);
            let bytes = json::bytes_len(&step.result);
            view.result_omitted = bytes > left;
            view.result = view.result.filter(|_| bytes <= left);
            left = left.saturating_sub(bytes);
            view
        })
        .collect();
    views.reverse();
    views
}

fn step_view(step_index: u32, step: &Step) -> StepView<'_> {
    StepView {
        step_index,
        id: &step.id,
        kind: step.kind,
        name: step.name.as_deref(),
        status: step.status(),
        attempts: step.attempt,
        idempotency_key: step.idempotency_key(),
        result: Some(&step.result),
        result_omitted: false,
        error: step.error.as_ref(),
        child_run_id: step.child.as_ref().map(|child| &child.run_id),
    }
}

fn waiting_for(step_index: u32, step: &Step) -> Option<WaitingFor<'_>> {
    let awaited = |kind, until| WaitingFor {
        kind,
        step_index: Some(step_index),
        limit: None,
        approval_id: None,
        dead_letter_id: None,
        run_id: None,
        names: &[],
        until,
    };
    Some(match &step.phase {
        Phase::Retrying { at, .. } => awaited("retry", Some(*at)),
        Phase::Sleeping { until, .. } => awaited("timer", Some(*until)),
        Phase::AwaitingCallback { until, .. } => awaited("callback", Some(*until)),
        Phase::AwaitingSignal { until, names, .. } => WaitingFor {
            names,
            ..awaited("signal", *until)
        },
        Phase::AwaitingApproval { approval_id, until } => WaitingFor {
            approval_id: Some(approval_id),
            ..awaited("approval", *until)
        },
        Phase::AwaitingChild => WaitingFor {
            run_id: step.child.as_ref().map(|child| &child.run_id),
            ..awaited("child", None)
        },
        Phase::DeadLettered { dead_letter_id } => WaitingFor {
            dead_letter_id: Some(dead_letter_id),
            ..awaited("dead_letter", None)
        },
        _ => return None,
    })
}

fn waiting_for_limit(state: &State) -> Option<WaitingFor<'_>> {
    let reached = state.reached.as_ref().filter(|_| !state.status.is_end())?;
    Some(WaitingFor {
        kind: "limit",
        step_index: None,
        limit: Some(&reached.limit),
        approval_id: None,
        dead_letter_id: None,
        run_id: None,
        names: &[],
        until: None,
    })
}

pub fn dead_letter<'a>(state: &'a State, letter: &'a DeadLetter) -> DeadLetterView<'a> {
    let envelope = letter.request.as_ref().map(|request| EnvelopeView {
        schema_version: crate::envelope::SCHEMA_VERSION,
        event_id: super::log::event_id(&state.identity, request.seq, request.at),
        event_type: "tool.requested",
        tenant_id: state.tenant_id().as_str(),
        trace_id: state.trace_id().as_str(),
        run_id: state.run_id().as_str(),
        step_index: letter.step_index,
        idempotency_key: &request.idempotency_key,
        timestamp: request.at,
        payload: PayloadView {
            tool: &request.tool,
            arguments: &request.arguments,
        },
    });
    DeadLetterView {
        dead_letter_id: &letter.dead_letter_id,
        status: letter.status(),
        reason: letter.reason,
        message: &letter.message,
        run_id: state.run_id(),
        step_index: letter.step_index,
        envelope,
        errors: &letter.errors,
        attempts: &letter.attempts,
        created_at: letter.created_at,
        settled_at: letter.settled.as_ref().map(|settled| settled.at),
    }
}

/// `GET /v1/approvals/{approval_id}`, member for member.
#[derive(Debug, Serialize)]
pub struct ApprovalView<'a> {
    approval_id: &'a ApprovalId,
    status: &'static str,
    run_id: &'a RunId,
    step_index: u32,
    step_id: Option<&'a str>,
    prompt: &'a str,
    schema: Option<&'a Json>,
    tool: Option<&'a str>,
    arguments: Option<&'a Json>,
    arguments_digest: Option<&'a str>,
    created_at: Timestamp,
    until: Option<Timestamp>,
    data: Option<&'a Json>,
    comment: Option<&'a str>,
    decided_by: Option<&'a str>,
    decided_at: Option<Timestamp>,
}

pub fn approval<'a>(state: &'a State, approval: &'a Approval) -> ApprovalView<'a> {
    let call = approval.call.as_ref();
    let (data, comment, decided_by) = match &approval.verdict {
        Some((
            _,
            Verdict::Decided {
                data,
                comment,
                decided_by,
                ..
            },
        )) => (Some(data), comment.as_deref(), Some(decided_by.as_str())),
        _ => (None, None, None),
    };
    ApprovalView {
        approval_id: &approval.approval_id,
        status: approval.status(),
        run_id: state.run_id(),
        step_index: approval.step_index,
        step_id: state.step(approval.step_index).map(|step| step.id.as_str()),
        prompt: &approval.prompt,
        schema: approval.schema.as_ref(),
        tool: call.map(|call| call.tool.as_str()),
        arguments: call.map(|call| &call.arguments),
        arguments_digest: call.map(|call| call.arguments_digest.as_str()),
        created_at: approval.requested_at,
        until: approval.until,
        data,
        comment,
        decided_by,
        decided_at: approval.verdict.as_ref().map(|(at, _)| *at),
    }
}

impl ApprovalView<'_> {
    /// For lists: the whole approval is read by its id.
    pub fn listed(self, prompt_bytes_max: usize) -> Self {
        let end = self.prompt.floor_char_boundary(prompt_bytes_max);
        Self {
            prompt: self.prompt.get(..end).unwrap_or_default(),
            arguments: None,
            schema: None,
            data: None,
            ..self
        }
    }
}

/// Entries `seqs` of a log, as clients read them, oldest first. What stands below the first row's
/// first entry is not among `rows`, so that entry is left out, unless it is the log's first: nobody
/// could say its `prev_hash`.
pub fn entries(
    identity: &Identity,
    rows: &[Row],
    seqs: RangeInclusive<u64>,
) -> Result<Vec<Value>, Corrupt> {
    let first = rows.iter().rposition(|row| row.seq < *seqs.start());
    let rows = rows.get(first.unwrap_or(0)..).unwrap_or_default();
    let mut page = Vec::new();
    let is_begun = rows.first().is_some_and(|row| row.seq == 1);
    let mut prev_hash = is_begun.then(|| ZERO_HASH.to_owned());
    for row in rows.iter().take_while(|row| row.seq <= *seqs.end()) {
        page.extend(log::shown_entries(identity, row, &seqs, &mut prev_hash)?);
    }
    Ok(page)
}

impl DeadLetterView<'_> {
    /// For lists: the whole letter is read by its id.
    pub fn without_envelope(self) -> Self {
        Self {
            envelope: None,
            ..self
        }
    }
}

fn is_zero(count: &usize) -> bool {
    *count == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::event::RunCreated;
    use crate::words::TenantId;

    #[test]
    fn a_run_of_many_steps_is_shown_within_bounds() {
        let at = Timestamp::EPOCH;
        let identity = Identity {
            run_id: RunId::derive(at, "run"),
            tenant_id: TenantId::parse("acme").unwrap(),
            trace_id: TraceId::derive("trace"),
        };
        let created = RunCreated {
            agent: None,
            definition: Json::new(serde_json::json!({ "planner": { "kind": "external" } })),
            input: Json::null(),
            tags: BTreeMap::new(),
            tools: BTreeMap::new(),
            started_by: None,
            parent: None,
            origin: None,
        };
        let mut state = State::new(identity, created, at).unwrap();
        for index in 0..10_000 {
            let mut step = Step::new(format!("step-{index}"), "tool", Some("t".to_owned()));
            step.phase = Phase::Completed;
            step.result = Json::new(Value::from("x".repeat(200_000)));
            state.steps.push(step);
        }
        let shown = serde_json::to_string(&run(&state)).unwrap();
        assert!(shown.len() < 2_500_000, "{} bytes", shown.len());
        let shown = json::read_stored(shown.as_bytes()).unwrap();
        assert_eq!(shown["steps_omitted"], Value::from(9_000));
        let steps = shown["steps"].as_array().unwrap();
        assert_eq!(steps[0]["step_index"], Value::from(9_000));
        assert_eq!(steps[0]["result_omitted"], Value::from(true));
        assert_eq!(steps[0]["result"], Value::Null);
        assert!(steps[999]["result"].is_string());
        assert!(steps[999].get("result_omitted").is_none());
    }
}
