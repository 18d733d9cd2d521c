//! What a planner is asked with: the run so far, read off its state.

use serde_json::{Map, json};

use crate::agent::{Mind, ModelPlanner, Provider};
use crate::json::{self, Json, Value};
use crate::model::{
    CallResult, Conversation, Message, Offer, Replay, SentCall, Target, offered, shown_name,
};
use crate::run::event::{Rounds, StepError};
use crate::run::step::Ask;
use crate::run::{Called, Phase, Round, State};

use super::round::Asked;

/// What a call and its result are wrapped in: roles, ids, names.
const FRAME_BYTES: usize = 250;
/// Bytes of one text, call or result as it is told to a model that sums up.
const TOLD_BYTES_MAX: usize = 2_000;
/// The version of what a planner of kind `http` is sent.
const HTTP_SCHEMA_VERSION: &str = "1";

/// What the run's model may call, in the order in which it is offered.
pub(super) fn offers(state: &State, planner: &ModelPlanner) -> Vec<(Offer, Target)> {
    let tools = state.tools.iter().map(|(name, pinned)| {
        (
            name.as_str(),
            pinned.tool.description.as_str(),
            pinned.tool.parameters.as_ref(),
        )
    });
    offered(planner, tools)
}

/// What a model is asked with.
pub(super) fn conversation(state: &State, planner: &ModelPlanner) -> Conversation {
    let tools: Vec<Offer> = offers(state, planner)
        .into_iter()
        .map(|(offer, _)| offer)
        .collect();
    let mut messages = vec![Message::User(first_message(state))];
    let summed_up = state.summary.as_ref().map_or(0, |s| s.to_round);
    for round in state.rounds.iter().filter(|r| r.number > summed_up) {
        // A chat's answer is told again in the normal form alone.
        let replayed = matches!(
            round.provider,
            Some(Provider::OpenaiResponses | Provider::Anthropic)
        );
        let replay = round.provider.zip(round.answer.clone());
        let replay = replay.filter(|_| replayed);
        // What said nothing and called nothing is refused by some providers.
        if round.text.is_none() && round.calls.is_empty() && replay.is_none() {
            messages.extend(round.flaw.clone().map(Message::User));
            continue;
        }
        messages.push(Message::Assistant {
            text: round.text.clone(),
            calls: round.calls.iter().map(sent).collect(),
            replay: replay.map(|(provider, answer)| Replay {
                provider,
                model: round.model.clone(),
                answer,
            }),
        });
        if !round.calls.is_empty() {
            let results = round.calls.iter().map(|call| result(state, call));
            messages.push(Message::Results(results.collect()));
        }
        if let Some(flaw) = &round.flaw {
            messages.push(Message::User(flaw.clone()));
        }
    }
    let structured = planner.output_schema.clone().filter(|_| tools.is_empty());
    Conversation {
        system: planner.system.clone(),
        messages,
        tools,
        output_schema: structured.map(Json::new),
    }
}

/// The run's input, and what stands for the rounds that were summed up.
fn first_message(state: &State) -> String {
    let input = as_text(&state.created.input);
    match &state.summary {
        None => input,
        Some(summary) => format!(
            "{input}\n\n[What you did in the first {} rounds, in your own words:]\n{}",
            summary.to_round, summary.text
        ),
    }
}

/// Bytes of what a model would be asked with, what it is offered left out.
pub(super) fn conversation_bytes(state: &State) -> u64 {
    let of_call = |call: &Called| {
        let result = outcome(state, call).map_or(200, |result| json::bytes_len(&result));
        let arguments = json::bytes_len(&call.arguments);
        FRAME_BYTES.saturating_add(arguments).saturating_add(result)
    };
    let of_round = |round: &Round| {
        let calls: usize = round.calls.iter().map(of_call).sum();
        calls.saturating_add(round.text.as_ref().map_or(0, String::len))
    };
    let rounds: usize = state.rounds.iter().map(of_round).sum();
    rounds.saturating_add(first_message(state).len()) as u64
}

/// What a model is asked with that is to sum its first rounds up: they are told as text, since no tool
/// is to be called.
fn to_sum_up(state: &State, planner: &ModelPlanner, rounds: Rounds) -> Conversation {
    let window = planner.models.iter().map(|m| m.context_tokens).min();
    // Two bytes for a token, so that it surely fits.
    let mut left = window.unwrap_or(0).saturating_mul(2) as usize;
    let mut told = String::new();
    let mut tell = |text: String, bytes_max: usize| {
        let end = text.floor_char_boundary(bytes_max.min(left));
        let cut = if end < text.len() { "…" } else { "" };
        left = left.saturating_sub(end);
        told.push_str(text.get(..end).unwrap_or_default());
        told.push_str(cut);
        told.push('\n');
    };
    let of_rounds = state
        .rounds
        .iter()
        .filter(|r| (rounds.from_round..=rounds.to_round).contains(&r.number));
    for round in of_rounds {
        tell(format!("Round {}:", round.number), usize::MAX);
        if let Some(text) = &round.text {
            tell(format!("You said: {text}"), TOLD_BYTES_MAX);
        }
        for call in &round.calls {
            let arguments = json::write(&call.arguments);
            tell(
                format!("You called {} with {arguments}", call.name),
                TOLD_BYTES_MAX,
            );
            tell(
                format!("It gave: {}", result(state, call).content),
                TOLD_BYTES_MAX,
            );
        }
    }
    let request = format!(
        "{}\n\n[The conversation since then has grown long. Sum up the rounds below for yourself: what was done, with which ids and amounts, what is known, what failed, and what is still to do. What you leave out will be forgotten. Answer with the summary alone.]\n\n{told}",
        first_message(state)
    );
    Conversation {
        system: planner.system.clone(),
        messages: vec![Message::User(request)],
        tools: Vec::new(),
        output_schema: None,
    }
}

fn sent(call: &Called) -> SentCall {
    SentCall {
        id: call.id.clone(),
        name: shown_name(&call.name),
        arguments: call.arguments.clone(),
    }
}

fn result(state: &State, call: &Called) -> CallResult {
    let (content, is_error) = match outcome(state, call) {
        Ok(result) => (as_text(&result), false),
        Err(error) => (json::write(&shown_error(&error)), true),
    };
    CallResult {
        id: call.id.clone(),
        name: shown_name(&call.name),
        content,
        is_error,
    }
}

/// What became of a call: its result, or why there is none.
pub(super) fn outcome(state: &State, call: &Called) -> Result<Json, StepError> {
    let Some(step) = call.step_index.and_then(|index| state.step(index)) else {
        return call.error.clone().map_or_else(|| Ok(Json::null()), Err);
    };
    match &step.phase {
        Phase::Completed => Ok(step.result.clone()),
        Phase::Failed => Err(step.error.clone().unwrap_or_else(unknown)),
        _ => Err(unknown()),
    }
}

fn unknown() -> StepError {
    super::intent::error("cancelled", "it was not carried out".to_owned(), Vec::new())
}

fn shown_error(error: &StepError) -> Value {
    let mut members = Map::new();
    members.insert("reason".into(), error.reason.as_str().into());
    members.insert("message".into(), error.message.as_str().into());
    if let Some(code) = error.status_code {
        members.insert("status_code".into(), code.into());
    }
    if !error.errors.is_empty() {
        let errors = error.errors.iter();
        let errors = errors.map(|e| json!({ "pointer": e.pointer, "message": e.message }));
        members.insert("errors".into(), errors.collect());
    }
    Value::Object(Map::from_iter([(
        "error".to_owned(),
        Value::Object(members),
    )]))
}

/// A string as it is, anything else as JSON.
fn as_text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => json::write(other),
    }
}

/// What a service is asked with: the run, and all that it wanted before with what became of it.
pub(super) fn history(state: &State, round: u32) -> Json {
    let object = |members: Vec<(&str, Value)>| {
        let members = members.into_iter();
        Value::Object(members.map(|(name, v)| (name.to_owned(), v)).collect())
    };
    let tags = state.created.tags.iter();
    let tags = tags.map(|(name, tag)| (name.clone(), Value::from(tag.as_str())));
    let run = object(vec![
        ("run_id", state.run_id().as_str().into()),
        ("tenant_id", state.tenant_id().as_str().into()),
        ("trace_id", state.trace_id().as_str().into()),
        ("agent", state.created.agent.as_deref().into()),
        ("created_at", state.created_at.to_string().into()),
        ("tags", Value::Object(tags.collect())),
        ("input", Value::clone(&state.created.input)),
    ]);
    let rounds = state.rounds.iter().map(|round| {
        let intents = round.calls.iter().map(|call| {
            let (status, member, value) = match outcome(state, call) {
                Ok(result) => ("succeeded", "result", Value::clone(&result)),
                Err(error) => {
                    let shown = shown_error(&error);
                    let inner = shown.get("error").cloned().unwrap_or(Value::Null);
                    ("failed", "error", inner)
                }
            };
            object(vec![
                ("id", call.id.as_str().into()),
                ("intent", Value::clone(&call.arguments)),
                ("status", status.into()),
                (member, value),
            ])
        });
        object(vec![
            ("round", round.number.into()),
            ("intents", intents.collect()),
            ("flaw", round.flaw.as_deref().into()),
        ])
    });
    let tools = state.tools.iter().map(|(name, pinned)| {
        let parameters = pinned.tool.parameters.clone();
        object(vec![
            ("name", name.as_str().into()),
            ("description", pinned.tool.description.as_str().into()),
            ("parameters", parameters.unwrap_or(Value::Null)),
        ])
    });
    Json::new(object(vec![
        ("schema_version", HTTP_SCHEMA_VERSION.into()),
        ("run", run),
        ("round", round.into()),
        ("history", rounds.collect()),
        ("tools", tools.collect()),
    ]))
}

/// What a planner is asked with in this round.
pub(super) fn asked(state: &State, ask: &Ask) -> Option<Asked> {
    Some(match (state.agent.mind()?, ask.summarises) {
        (Mind::Model(planner), Some(rounds)) => {
            Asked::Model(Box::new(to_sum_up(state, planner, rounds)))
        }
        (Mind::Model(planner), None) => Asked::Model(Box::new(conversation(state, planner))),
        (Mind::Http(_), _) => Asked::Http(history(state, ask.round)),
    })
}
