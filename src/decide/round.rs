//! One round of a planner: it is asked, it answers, and what it wants is begun.

use serde::{Deserialize, Serialize};

use crate::agent::Mind;
use crate::json::{self, Json, Value, Violation};
use crate::model::{Conversation, Finish, ModelAnswer, RawArguments, RawCall};
use crate::plan::Action;
use crate::run::event::{
    DeadLetterReason, Event, PlanCompleted, PlanFailed, Rounds, StepError, Try, WaitSource,
};
use crate::run::round::nobody_was_asked;
use crate::run::{Called, Phase, Round, State, Step};
use crate::schema;
use crate::words::{RunId, TenantId, Timestamp, TraceId};

use super::claim::{LEASE_MS, PlanAssignment};
use super::conversation::{asked, conversation_bytes, offers, outcome};
use super::dead_letter::open;
use super::intent::{self, Wanted};
use super::{Refusal, Turn, advance};

/// Rounds that follow each other more slowly than this are no loop, however alike they are.
const LOOP_MS_MAX: i64 = 60_000;
/// Rounds that stay as they were when those before them are summed up.
const ROUNDS_KEPT: u32 = 2;
/// Of text, on average.
const BYTES_PER_TOKEN: u64 = 4;
/// How often a round may find that all its models rest.
const RESTS_MAX: u32 = 1_000;
/// A loop may go through so many different rounds.
const LOOP_ROUNDS_MAX: usize = 4;

/// What a planner is asked with.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Asked {
    Model(Box<Conversation>),
    /// The body of the request.
    Http(Json),
}

/// A planner's answer, as a worker reports it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Planned {
    pub tries: Vec<Try>,
    pub answer: Json,
    /// What a model said; a service's answer speaks for itself.
    pub said: Option<ModelAnswer>,
}

/// A round without an answer, as a worker reports it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Unplanned {
    pub tries: Vec<Try>,
    pub error: StepError,
    pub retryable: bool,
    pub retry_after_ms: Option<i64>,
    /// What came back, where it was JSON and no answer.
    pub answer: Option<Json>,
}

/// Goes on with a run that has a planner to ask. Whether something was begun.
pub(super) fn go_on(turn: &mut Turn) -> Result<bool, Refusal> {
    if turn.state.reached.is_some() {
        return Ok(false);
    }
    if let Some(index) = next_pending(&turn.state) {
        let begun = begun(&turn.state);
        if begun >= turn.state.limits.max_steps {
            reach_steps(turn, begun)?;
            return Ok(false);
        }
        begin(turn, index)?;
        return Ok(true);
    }
    if turn.state.planner_end.is_some() || !turn.state.steps.iter().all(Step::is_done) {
        return Ok(false);
    }
    if reach_limit(turn)? {
        return Ok(false);
    }
    let index = turn.state.steps.len() as u32;
    let summarises = too_long(&turn.state);
    let round = summarises.map_or(turn.state.rounds.len() as u32 + 1, |s| s.to_round);
    let event = Event::PlanRequested {
        round,
        after_seq: turn.state.seq,
        summarises,
    };
    turn.record(Some(index), event)?;
    Ok(false)
}

/// The rounds that are to be summed up before the next one is asked for: all but the last few, once
/// the conversation comes near to what the smallest window holds.
fn too_long(state: &State) -> Option<Rounds> {
    let Some(Mind::Model(planner)) = state.agent.mind() else {
        return None;
    };
    let window = planner.models.iter().map(|m| m.context_tokens).min()?;
    let before = state.summary.as_ref().map_or(0, |s| s.to_round);
    let last = state.rounds.last()?.number;
    let to_round = last.saturating_sub(ROUNDS_KEPT);
    if to_round <= before {
        return None;
    }
    let tokens = conversation_bytes(state) / BYTES_PER_TOKEN;
    let from_round = before.saturating_add(1);
    (tokens > window / 4 * 3).then_some(Rounds {
        from_round,
        to_round,
    })
}

/// Steps that were begun: those that wait for their turn have used nothing up.
fn begun(state: &State) -> u32 {
    let begun = state.steps.iter().filter(|s| s.phase != Phase::Pending);
    begun.count() as u32
}

fn next_pending(state: &State) -> Option<u32> {
    let may_call = advance::has_room(state);
    let calls = |index: u32| {
        let planned = state.planned(index);
        planned.is_some_and(|planned| advance::takes_room(&planned.action))
    };
    let mut pending = state
        .steps_indexed()
        .filter(|(_, step)| step.phase == Phase::Pending)
        .map(|(index, _)| index);
    pending.find(|index| may_call || !calls(*index))
}

/// Begins what the planner wanted; what is malformed after all its repairs goes to a person as it is.
fn begin(turn: &mut Turn, index: u32) -> Result<(), Refusal> {
    let Some(flaw) = turn.state.step(index).and_then(|step| step.flaw.clone()) else {
        return advance::begin(turn, index);
    };
    let Some(Action::Tool { tool, arguments }) =
        turn.state.planned(index).map(|planned| &planned.action)
    else {
        return advance::begin(turn, index);
    };
    let (tool, arguments) = (tool.clone(), arguments.literal().cloned());
    let arguments = Json::new(arguments.unwrap_or(Value::Null));
    turn.record(Some(index), Event::ToolRequested { tool, arguments })?;
    let reason = match flaw.reason.as_str() {
        "unknown_tool" => DeadLetterReason::UnknownTool,
        _ => DeadLetterReason::InvalidArguments,
    };
    super::step::fail(turn, index, flaw, reason)
}

// ---- Limits ---------------------------------------------------------------------------------

fn reach_steps(turn: &mut Turn, used: u32) -> Result<(), Refusal> {
    let value = turn.state.limits.max_steps;
    let message = format!("the run has {used} steps, and {value} are allowed");
    reach(turn, "max_steps", value.into(), used.into(), message)
}

/// Whether another round would go beyond a limit; then the run stands still there.
fn reach_limit(turn: &mut Turn) -> Result<bool, Refusal> {
    let limits = turn.state.limits;
    let steps = turn.state.steps.len() as u32;
    if steps >= limits.max_steps {
        reach_steps(turn, steps)?;
        return Ok(true);
    }
    let rounds = turn.state.rounds.len() as u32;
    if let Some(value) = limits.max_rounds.filter(|value| rounds >= *value) {
        let message = format!("the planner was asked {rounds} times, and {value} are allowed");
        reach(turn, "max_rounds", value.into(), rounds.into(), message)?;
        return Ok(true);
    }
    let tokens = turn.state.tokens;
    let needed = tokens.used().saturating_add(tokens.last);
    if let Some(value) = limits.max_tokens.filter(|value| needed > *value) {
        let used = tokens.used();
        let message = format!(
            "{used} tokens are used, the next round needs {} or more, and {value} are allowed",
            tokens.last
        );
        reach(turn, "max_tokens", value, used, message)?;
        return Ok(true);
    }
    let repeats = repeats(&turn.state, turn.now);
    if repeats >= limits.max_repeats {
        let calls = turn
            .state
            .rounds
            .last()
            .map_or(&[][..], |round| &round.calls);
        let names: Vec<&str> = calls.iter().map(|call| call.name.as_str()).collect();
        let message = format!(
            "the last {repeats} rounds brought nothing new: {} with the same arguments and the same results",
            names.join(", ")
        );
        let value = limits.max_repeats.into();
        reach(turn, "max_repeats", value, repeats.into(), message)?;
        return Ok(true);
    }
    Ok(false)
}

/// Why a round that is asked for once more, by a person, would go beyond a limit.
pub(super) fn spent(state: &State) -> Option<String> {
    let value = state.limits.max_tokens?;
    let used = state.tokens.used();
    (used >= value).then(|| {
        format!(
            "the run has used {used} tokens, and {value} are allowed: raise max_tokens first, with POST /v1/runs/{}/limits",
            state.run_id()
        )
    })
}

fn reach(
    turn: &mut Turn,
    limit: &str,
    value: u64,
    used: u64,
    message: String,
) -> Result<(), Refusal> {
    turn.record(
        None,
        Event::LimitReached {
            limit: limit.to_owned(),
            value,
            used,
            message,
        },
    )
}

/// How many of the last rounds, one after another, were like one shortly before them: the same calls
/// with the same results.
fn repeats(state: &State, now: Timestamp) -> u32 {
    let rounds = &state.rounds;
    let repeated = |place: usize| {
        let Some(round) = rounds.get(place) else {
            return false;
        };
        let followed_at = round.followed_at.unwrap_or(now);
        let slow = followed_at.ms_since(round.completed_at) >= LOOP_MS_MAX;
        let before = rounds.get(place.saturating_sub(LOOP_ROUNDS_MAX)..place);
        let mut before = before.unwrap_or_default().iter();
        !slow && !round.calls.is_empty() && before.any(|earlier| alike(state, earlier, round))
    };
    (0..rounds.len()).rev().take_while(|p| repeated(*p)).count() as u32
}

fn alike(state: &State, one: &Round, other: &Round) -> bool {
    let same = |(a, b): (&Called, &Called)| {
        a.name == b.name && a.arguments == b.arguments && outcome(state, a) == outcome(state, b)
    };
    one.calls.len() == other.calls.len() && one.calls.iter().zip(&other.calls).all(same)
}

// ---- A worker takes the round, and reports ---------------------------------------------------

/// Records the claim of a round. `None`: there is nothing to ask.
pub(super) fn grant(turn: &mut Turn, index: u32) -> Result<Option<PlanAssignment>, Refusal> {
    let Some(step) = turn.state.step(index) else {
        return Ok(None);
    };
    let Some(ask) = step.ask.clone() else {
        return Ok(None);
    };
    let Some(asked) = asked(&turn.state, &ask) else {
        return Ok(None);
    };
    let run_id: RunId = turn.state.run_id().clone();
    let tenant_id: TenantId = turn.state.tenant_id().clone();
    let trace_id: TraceId = turn.state.trace_id().clone();
    let attempt = step.next_attempt();
    let token = turn.state.token.saturating_add(1);
    let lease_until = turn.now.plus_ms(LEASE_MS);
    let assignment = PlanAssignment {
        run_id,
        tenant_id,
        trace_id,
        step_index: index,
        idempotency_key: ask.idempotency_key,
        attempt,
        token,
        agent: turn.state.created.definition.clone(),
        agent_label: turn.state.created.agent.clone(),
        asked,
        granted_at: turn.now,
        lease_until,
        losses: step.losses,
    };
    if !turn.state.started {
        turn.record(None, Event::RunStarted {})?;
    }
    turn.record(
        Some(index),
        Event::PlanClaimed {
            attempt,
            token,
            lease_until,
        },
    )?;
    Ok(Some(assignment))
}

/// Takes an answer: it is recorded as it came, with what is made of it, before anything is done.
pub(super) fn take(turn: &mut Turn, index: u32, planned: Planned) -> Result<(), Refusal> {
    let Planned {
        tries,
        answer,
        said,
    } = planned;
    let step = turn.state.step(index);
    let attempt = step.map_or(0, |step| step.attempt);
    let round = step
        .and_then(|step| step.ask.as_ref())
        .map_or(0, |ask| ask.round);
    let sums_up = step
        .and_then(|step| step.ask.as_ref()?.summarises)
        .is_some();
    let heard = match &said {
        Some(said) if sums_up => hear_summary(said),
        Some(said) => hear_model(&turn.state, round, said),
        None => hear_service(&turn.state, round, &answer),
    };
    let (text, raw) = match said {
        Some(said) => (said.text, said.calls),
        None => (None, Vec::new()),
    };
    let mut completed = PlanCompleted {
        attempt,
        tries,
        answer: Some(answer),
        text,
        calls: Vec::new(),
        flaw: None,
        output: None,
    };
    let used_up = repairs(&turn.state) >= repair_attempts(&turn.state);
    match heard {
        Heard::Wanted(wanted) => {
            completed.calls = wanted.calls;
            completed.output = wanted.output;
            if used_up {
                give_to_a_person(&mut completed, &raw);
            }
        }
        Heard::Output(output) => completed.output = Some(output),
        Heard::Paused => {}
        Heard::Flawed(flaw) if sums_up => {
            let failed = Unplanned {
                tries: completed.tries,
                error: intent::error("invalid_result", flaw, Vec::new()),
                retryable: true,
                retry_after_ms: None,
                answer: completed.answer,
            };
            return fail(turn, index, failed);
        }
        Heard::Flawed(flaw) if used_up => {
            let message = format!(
                "the model's output stayed invalid after {} rounds to mend it: {flaw}",
                repair_attempts(&turn.state)
            );
            let error = intent::error("invalid_result", message.clone(), Vec::new());
            return fail_round(
                turn,
                index,
                PlanFailed {
                    message,
                    attempt,
                    error: Some(error),
                    tries: completed.tries,
                    answer: completed.answer,
                },
                Some(DeadLetterReason::InvalidResult),
            );
        }
        Heard::Flawed(flaw) => completed.flaw = Some(flaw),
        Heard::Failure(message) => {
            let error = intent::error("planner_failed", message.clone(), Vec::new());
            let failed = PlanFailed {
                message,
                attempt,
                error: Some(error),
                tries: completed.tries,
                answer: completed.answer,
            };
            return fail_round(turn, index, failed, None);
        }
    }
    turn.record(Some(index), Event::PlanCompleted(Box::new(completed)))
}

/// What was malformed once too often becomes a step that a person must settle.
fn give_to_a_person(completed: &mut PlanCompleted, raw: &[RawCall]) {
    for (place, call) in completed.calls.iter_mut().enumerate() {
        let Some(error) = &mut call.error else {
            continue;
        };
        error.message = format!("the model's output stayed invalid: {}", error.message);
        let arguments = raw.get(place).map_or_else(
            || Value::clone(&call.arguments),
            |raw| intent::as_written(&raw.arguments),
        );
        let tool = intent::logged_name(&call.name);
        let members = [
            ("tool".to_owned(), Value::String(tool)),
            ("arguments".to_owned(), arguments),
        ];
        call.intent = Some(Json::new(Value::Object(members.into_iter().collect())));
    }
}

/// No answer: later again, or never.
pub(super) fn fail(turn: &mut Turn, index: u32, failed: Unplanned) -> Result<(), Refusal> {
    let Some(step) = turn.state.step(index) else {
        return Ok(());
    };
    let Some(policy) = turn.state.agent.mind().map(|mind| mind.retry()) else {
        return Ok(());
    };
    let attempt = step.attempt;
    // That all models rested is no attempt, though it cannot go on for ever.
    let rested = nobody_was_asked(&failed.tries) && step.rests < RESTS_MAX;
    let used = step.attempts_used().saturating_sub(u32::from(rested));
    let may_retry = failed.retryable && policy.may_retry(used);
    if may_retry && !turn.state.cancelling {
        let used = step.attempts_used().max(1);
        let backoff_ms = policy.wait_ms(used, step.previous_wait_ms, turn.random);
        let (wait_ms, wait_source) = match failed.retry_after_ms {
            Some(ms) => (ms, WaitSource::RetryAfter),
            None => (backoff_ms, WaitSource::Backoff),
        };
        let event = Event::PlanRetryScheduled {
            attempt,
            error: failed.error,
            wait_ms,
            retry_at: turn.now.plus_ms(wait_ms),
            wait_source,
            tries: failed.tries,
        };
        return turn.record(Some(index), event);
    }
    let reason = if failed.retryable {
        DeadLetterReason::RetriesExhausted
    } else {
        DeadLetterReason::ModelFailed
    };
    let event = PlanFailed {
        message: failed.error.message.clone(),
        attempt,
        error: Some(StepError {
            reason: reason.as_str().to_owned(),
            ..failed.error
        }),
        tries: failed.tries,
        answer: failed.answer,
    };
    fail_round(turn, index, event, Some(reason))
}

fn fail_round(
    turn: &mut Turn,
    index: u32,
    failed: PlanFailed,
    reason: Option<DeadLetterReason>,
) -> Result<(), Refusal> {
    let message = failed.message.clone();
    let errors = failed.error.as_ref().map(|error| error.errors.clone());
    turn.record(Some(index), Event::PlanFailed(Box::new(failed)))?;
    match reason {
        Some(reason) => open(turn, index, reason, message, errors.unwrap_or_default()),
        None => Ok(()),
    }
}

fn repair_attempts(state: &State) -> u32 {
    state.agent.mind().map_or(0, |mind| mind.repair_attempts())
}

/// Rounds in a row in which something was malformed.
fn repairs(state: &State) -> u32 {
    let malformed = state.rounds.iter().rev();
    malformed.take_while(|round| round.is_malformed()).count() as u32
}

// ---- What an answer means --------------------------------------------------------------------

enum Heard {
    Wanted(Wanted),
    Output(Json),
    /// It goes on in the next round.
    Paused,
    /// What the planner is told.
    Flawed(String),
    Failure(String),
}

fn hear_model(state: &State, round: u32, said: &ModelAnswer) -> Heard {
    let Some(Mind::Model(planner)) = state.agent.mind() else {
        return Heard::Flawed("the run has no model".into());
    };
    if !said.calls.is_empty() {
        let offers = offers(state, planner);
        return Heard::Wanted(intent::wanted(state, round, &said.calls, &offers));
    }
    let text = said
        .text
        .as_deref()
        .map(str::trim)
        .filter(|t| !t.is_empty());
    match (said.finish, text, &planner.output_schema) {
        (Finish::Paused, ..) => Heard::Paused,
        (Finish::Length, ..) => Heard::Flawed(
            "Your answer was cut off at the limit of its length. Answer again, and be shorter."
                .into(),
        ),
        (_, None, _) => Heard::Flawed("Your answer was empty. Answer, or call a tool.".into()),
        (_, Some(_), None) => {
            let text = said.text.clone().unwrap_or_default();
            Heard::Output(Json::new(Value::String(text)))
        }
        (_, Some(text), Some(wanted)) => match output(text, wanted) {
            Ok(output) => Heard::Output(output),
            Err(why) => Heard::Flawed(format!(
                "Your answer is not the output that is asked for: {why}. Give it as JSON that fits its schema, and nothing else."
            )),
        },
    }
}

/// What stands for earlier rounds from here on.
fn hear_summary(said: &ModelAnswer) -> Heard {
    match &said.text {
        Some(_) => Heard::Paused,
        None => Heard::Flawed("the answer holds no summary".into()),
    }
}

fn output(text: &str, wanted: &Value) -> Result<Json, String> {
    let sentence =
        |errors: Vec<Violation>| json::sentence(&errors).trim_end_matches('.').to_owned();
    let value = json::read(text.as_bytes()).map_err(sentence)?;
    schema::validate_with(wanted, &value, "").map_err(sentence)?;
    Ok(Json::new(value))
}

/// A service answers `{"intents": […]}`, `{"output": …}` or `{"failure": "…"}`.
fn hear_service(state: &State, round: u32, answer: &Value) -> Heard {
    if let Err(errors) = schema::validate("planner-answer", answer) {
        return Heard::Flawed(format!(
            "the answer does not fit /schemas/planner-answer.json: {}",
            json::sentence(&errors)
        ));
    }
    if let Some(output) = answer.get("output") {
        return Heard::Output(Json::new(output.clone()));
    }
    if let Some(failure) = answer.get("failure").and_then(Value::as_str) {
        return Heard::Failure(failure.to_owned());
    }
    let intents = answer.get("intents").and_then(Value::as_array);
    let raw: Vec<RawCall> = intents
        .into_iter()
        .flatten()
        .map(|intent| {
            let text = |name: &str| intent.get(name).and_then(Value::as_str);
            RawCall {
                id: text("id").map(str::to_owned),
                name: text("tool").unwrap_or("intent").to_owned(),
                arguments: RawArguments::Value(Json::new(intent.clone())),
            }
        })
        .collect();
    let mut wanted = intent::wanted(state, round, &raw, &[]);
    for call in &mut wanted.calls {
        let intent = without_id(&call.arguments);
        match judge_service_intent(state, &intent) {
            Ok(()) => (call.intent, call.error) = (Some(Json::new(intent)), None),
            Err(error) => call.error = Some(error),
        }
    }
    Heard::Wanted(wanted)
}

fn without_id(intent: &Value) -> Value {
    let mut intent = intent.clone();
    if let Some(members) = intent.as_object_mut() {
        members.shift_remove("id");
        if members.contains_key("tool") && !members.contains_key("arguments") {
            members.insert("arguments".into(), Value::Object(serde_json::Map::new()));
        }
    }
    intent
}

fn judge_service_intent(state: &State, intent: &Value) -> Result<(), StepError> {
    let invalid = |errors: Vec<Violation>| {
        let message = format!("the intent does not fit: {}", json::sentence(&errors));
        intent::error("invalid_arguments", message, errors)
    };
    intent::check_intent(intent).map_err(invalid)?;
    let Some(tool) = intent.get("tool").and_then(Value::as_str) else {
        return Ok(());
    };
    let Some(pinned) = state.tools.get(tool) else {
        let known: Vec<&str> = state.tools.keys().map(String::as_str).collect();
        let message = format!(
            "the agent has no tool {tool:?}; it has {}",
            known.join(", ")
        );
        return Err(intent::error("unknown_tool", message, Vec::new()));
    };
    let arguments = intent.get("arguments").unwrap_or(&Value::Null);
    match &pinned.tool.parameters {
        Some(wanted) => schema::validate_with(wanted, arguments, "/arguments").map_err(invalid),
        None => Ok(()),
    }
}

#[cfg(test)]
#[path = "round_tests.rs"]
mod tests;
