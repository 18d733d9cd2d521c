//! What a planner wants is held against what it may want, before anything is done.
//!
//! Nothing is guessed: what is not exactly right is told back, with the place and the reason.

use crate::agent::EngineTool;
use crate::json::{self, Json, Value, Violation, pointer};
use crate::model::{Offer, RawArguments, RawCall, Target, shown_name};
use crate::plan;
use crate::run::State;
use crate::run::event::{PlannedCall, StepError};
use crate::schema;

/// What is quoted of arguments that cannot be read.
const PREVIEW_BYTES_MAX: usize = 1_000;
const NAME_BYTES_MAX: usize = 200;
/// Calls in one answer.
const CALLS_MAX: usize = 128;

/// The calls of one answer, each with an intent or an error.
pub(super) struct Wanted {
    pub calls: Vec<PlannedCall>,
    /// The run is to end with this.
    pub output: Option<Json>,
}

/// A call that a planner made, before it is told apart.
struct Call<'a> {
    raw: &'a RawCall,
    alone: bool,
}

/// Holds the calls of one answer against what was offered.
pub(super) fn wanted(
    state: &State,
    round: u32,
    raw: &[RawCall],
    offers: &[(Offer, Target)],
) -> Wanted {
    let mut wanted = Wanted {
        calls: Vec::with_capacity(raw.len()),
        output: None,
    };
    let alone = raw.len() == 1;
    for (place, raw) in raw.iter().enumerate() {
        let id = unique_id(state, &wanted.calls, raw.id.as_deref(), round, place);
        let call = Call { raw, alone };
        let read = arguments(&raw.arguments);
        let shown = match &read {
            Ok(arguments) => arguments.clone(),
            Err((_, preview)) => unread(preview),
        };
        let judged = if place >= CALLS_MAX {
            let message = format!("one answer can have {CALLS_MAX} calls; this one is left out");
            Err(error("too_many_calls", message, Vec::new()))
        } else {
            judge(&call, read, offers)
        };
        let (intent, error) = match judged {
            Ok(Judged::Step(intent)) => (Some(intent), None),
            Ok(Judged::Output(output)) => {
                wanted.output = Some(output);
                (None, None)
            }
            Err(error) => (None, Some(error)),
        };
        wanted.calls.push(PlannedCall {
            id,
            name: bounded(&raw.name, NAME_BYTES_MAX),
            arguments: shown,
            intent,
            error,
        });
    }
    wanted
}

/// What a call comes to.
enum Judged {
    Step(Json),
    Output(Json),
}

fn judge(
    call: &Call<'_>,
    read: Result<Json, (StepError, String)>,
    offers: &[(Offer, Target)],
) -> Result<Judged, StepError> {
    let name = call.raw.name.as_str();
    let Some((offer, target)) = offers.iter().find(|(offer, _)| offer.name == name) else {
        return Err(unknown(name, offers));
    };
    let arguments = read.map_err(|(error, _)| error)?;
    schema::validate_with(&offer.parameters, &arguments, "").map_err(|errors| {
        let message = format!("the arguments do not fit: {}", json::sentence(&errors));
        error("invalid_arguments", message, errors)
    })?;
    match target {
        Target::Tool(tool) => Ok(Judged::Step(member("tool", tool.as_str().into()))),
        Target::Finish if !call.alone => {
            let message = format!(
                "{name} must be called alone, after the results of all other calls have come"
            );
            Err(error("not_alone", message, Vec::new()))
        }
        Target::Finish => {
            let output = arguments.get("output").cloned().unwrap_or(Value::Null);
            Ok(Judged::Output(Json::new(output)))
        }
        Target::Engine(tool) => engine(*tool, &arguments).map(Judged::Step),
    }
}

/// The step that a call of the engine's own tools stands for.
fn engine(tool: EngineTool, arguments: &Value) -> Result<Json, StepError> {
    let given = |name: &str| arguments.get(name).cloned();
    let mut step = serde_json::Map::new();
    let mut put = |name: &str, value: Option<Value>| {
        if let Some(value) = value {
            step.insert(name.to_owned(), value);
        }
    };
    match tool {
        EngineTool::Sleep => {
            put("sleep", given("duration"));
            put("sleep_until", given("until"));
        }
        EngineTool::WaitFor => {
            put("wait_for", given("signals"));
            put("timeout", given("timeout"));
        }
        EngineTool::AskPerson => {
            let mut approval = serde_json::Map::new();
            approval.insert("prompt".into(), given("prompt").unwrap_or(Value::Null));
            if let Some(schema) = given("schema") {
                approval.insert("schema".into(), schema);
            }
            put("approval", Some(Value::Object(approval)));
            put("timeout", given("timeout"));
        }
        EngineTool::StartRun => {
            let mut run = serde_json::Map::new();
            run.insert("agent".into(), given("agent").unwrap_or(Value::Null));
            if let Some(input) = given("input") {
                run.insert("input".into(), input);
            }
            put("run", Some(Value::Object(run)));
        }
        EngineTool::Emit => put("emit", Some(arguments.clone())),
    }
    let step = Value::Object(step);
    if let Some(wanted) = arguments.get("schema") {
        schema::check(wanted, "/schema").map_err(|errors| {
            let message = format!("the schema cannot be used: {}", json::sentence(&errors));
            error("invalid_arguments", message, errors)
        })?;
    }
    check_intent(&step).map_err(|errors| {
        let message = format!("the arguments do not fit: {}", json::sentence(&errors));
        error("invalid_arguments", message, errors)
    })?;
    Ok(Json::new(step))
}

/// Whether a step can be begun that is written as in a plan, but without expressions. It is given an
/// id here, as it will be when it is begun.
pub(super) fn check_intent(step: &Value) -> Result<(), Vec<Violation>> {
    let mut step = step.clone();
    if let Some(members) = step.as_object_mut() {
        members.insert("id".to_owned(), "intent".into());
    }
    plan::parse_intent(&step).map(drop)
}

/// Arguments as an object, or what is wrong and the text that is quoted. Absence is no error: it means
/// that there are none.
fn arguments(raw: &RawArguments) -> Result<Json, (StepError, String)> {
    let empty = || Json::new(Value::Object(serde_json::Map::new()));
    let not_object = |value: &Value| {
        let text = json::write(value);
        let preview = bounded(&text, PREVIEW_BYTES_MAX);
        let kind = match value {
            Value::Array(_) => "an array",
            Value::String(_) => "a string (was the JSON encoded twice?)",
            Value::Number(_) => "a number",
            _ => "no object",
        };
        let message = format!("the arguments must be one JSON object, and are {kind}: {preview}");
        let errors = vec![Violation::new("", "expected an object")];
        (error("invalid_arguments", message, errors), preview)
    };
    match raw {
        RawArguments::Absent => Ok(empty()),
        RawArguments::Value(value) if value.is_null() => Ok(empty()),
        RawArguments::Value(value) if value.is_object() => Ok(value.clone()),
        RawArguments::Value(value) => Err(not_object(value)),
        RawArguments::Text(text) if matches!(text.trim(), "" | "null") => Ok(empty()),
        RawArguments::Text(text) => match json::read(text.as_bytes()) {
            Ok(value) if value.is_object() => Ok(Json::new(value)),
            Ok(value) => Err(not_object(&value)),
            Err(errors) => {
                let preview = bounded(text, PREVIEW_BYTES_MAX);
                let message = format!(
                    "the arguments are not JSON: {}. They were: {preview}",
                    json::sentence(&errors).trim_end_matches('.')
                );
                Err((error("invalid_arguments", message, errors), preview))
            }
        },
    }
}

/// What the model is shown again in place of arguments that are no object: providers take only those.
fn unread(preview: &str) -> Json {
    member("invalid_json", preview.into())
}

/// The text of the call's arguments, for a person who is to repair them.
pub(super) fn as_written(raw: &RawArguments) -> Value {
    match raw {
        RawArguments::Absent => Value::Null,
        RawArguments::Value(value) => Value::clone(value),
        RawArguments::Text(text) => {
            let read = json::read(text.as_bytes()).ok();
            let object = read.filter(Value::is_object);
            object.unwrap_or_else(|| text.as_str().into())
        }
    }
}

fn unknown(name: &str, offers: &[(Offer, Target)]) -> StepError {
    let names: Vec<&str> = offers
        .iter()
        .map(|(offer, _)| offer.name.as_str())
        .collect();
    let known = match names.as_slice() {
        [] => "there is nothing to call".to_owned(),
        names => format!("there are {}", names.join(", ")),
    };
    let name = bounded(name, NAME_BYTES_MAX);
    let message = format!("there is no tool {name:?}; {known}");
    let errors = vec![Violation::new(pointer::push("", "name"), message.clone())];
    error("unknown_tool", message, errors)
}

/// A call's place is its identity: the provider's label is kept only where it names one call.
fn unique_id(
    state: &State,
    calls: &[PlannedCall],
    label: Option<&str>,
    round: u32,
    place: usize,
) -> String {
    let before = state.rounds.iter().flat_map(|round| &round.calls);
    let known: Vec<&str> = before.map(|call| call.id.as_str()).collect();
    let taken = |id: &str| known.contains(&id) || calls.iter().any(|call| call.id.as_str() == id);
    let usable = |id: &&str| {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
        !id.is_empty() && id.len() <= 128 && id.bytes().all(plain) && !taken(id)
    };
    if let Some(label) = label.filter(usable) {
        return label.to_owned();
    }
    let made = format!("call_r{round}_{}", place.saturating_add(1));
    let numbered = (2_u32..).map(|number| format!("{made}_{number}"));
    let mut ids = std::iter::once(made.clone()).chain(numbered);
    ids.find(|id| !taken(id)).unwrap_or(made)
}

/// The name under which an unknown tool stands in the run's log.
pub(super) fn logged_name(name: &str) -> String {
    if plan::parse_versioned_name(name).is_some() {
        return name.to_owned();
    }
    // Not to be taken for a tool that has nearly this name.
    let shown: String = shown_name(name).chars().take(50).collect();
    format!("unknown.{}", shown.to_ascii_lowercase())
}

pub(super) fn error(reason: &str, message: String, errors: Vec<Violation>) -> StepError {
    StepError {
        reason: reason.to_owned(),
        message,
        status_code: None,
        errors,
    }
}

fn member(name: &str, value: Value) -> Json {
    Json::new(Value::Object(
        std::iter::once((name.to_owned(), value)).collect(),
    ))
}

fn bounded(text: &str, bytes_max: usize) -> String {
    if text.len() <= bytes_max {
        return text.to_owned();
    }
    let end = text.floor_char_boundary(bytes_max);
    format!("{}…", text.get(..end).unwrap_or_default())
}
