//! What clients are shown of a run: the run itself, its dead letters, pages of its log.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use serde::Serialize;

use crate::json::{Json, Value, Violation};
use crate::words::{DeadLetterId, RunId, Timestamp, TraceId};

use super::event::{RunError, StepError};
use super::log::{Corrupt, Identity, Row, ZERO_HASH, read_row};
use super::state::State;
use super::step::{Attempt, DeadLetter, Phase, Step};

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
    waiting_for: Vec<WaitingFor<'a>>,
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
    result: &'a Json,
    error: Option<&'a StepError>,
}

#[derive(Debug, Serialize)]
struct WaitingFor<'a> {
    kind: &'static str,
    step_index: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    dead_letter_id: Option<&'a DeadLetterId>,
    until: Option<Timestamp>,
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
        steps: state
            .steps_indexed()
            .map(|(index, step)| step_view(index, step))
            .collect(),
        waiting_for: state
            .steps_indexed()
            .filter_map(|(i, step)| waiting_for(i, step))
            .collect(),
        usage: Usage {
            active_ms: until
                .ms_since(state.created_at)
                .saturating_sub(waiting_ms)
                .max(0),
            waiting_ms,
            tool_calls: state.tool_calls,
            model_calls: 0,
            input_tokens: 0,
            output_tokens: 0,
        },
    }
}

fn step_view(step_index: u32, step: &Step) -> StepView<'_> {
    StepView {
        step_index,
        id: &step.id,
        kind: step.kind,
        name: step.name.as_deref(),
        status: step.status(),
        attempts: step.attempt,
        idempotency_key: step
            .request
            .as_ref()
            .map(|request| request.idempotency_key.as_str()),
        result: &step.result,
        error: step.error.as_ref(),
    }
}

fn waiting_for(step_index: u32, step: &Step) -> Option<WaitingFor<'_>> {
    let (kind, dead_letter_id, until) = match &step.phase {
        Phase::Retrying { at } => ("retry", None, Some(*at)),
        Phase::Sleeping { until } => ("timer", None, Some(*until)),
        Phase::DeadLettered { dead_letter_id } => ("dead_letter", Some(dead_letter_id), None),
        _ => return None,
    };
    Some(WaitingFor {
        kind,
        step_index,
        dead_letter_id,
        until,
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
        let read = read_row(row)?;
        for (offset, recorded) in read.entries.into_iter().enumerate() {
            let seq = read.seq.saturating_add(offset as u64);
            if let Some(prev_hash) = prev_hash.filter(|_| seqs.contains(&seq)) {
                let entry = recorded.entry(identity, seq, &prev_hash);
                page.push(entry.map_err(|e| Corrupt {
                    seq,
                    message: e.to_string(),
                })?);
            }
            prev_hash = Some(recorded.hash);
        }
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
