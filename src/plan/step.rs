//! One step of a plan: its action, and the options that fit it.

use serde_json::{Map, Value};

use super::definition::{Action, OnFailure, OnReject, OnTimeout, Step, parse_versioned_name};
use crate::expression::{Expression, Template};
use crate::fields::{Fields, Flaws, shorten};
use crate::json::pointer;
use crate::words::{DurationMs, Name, SignalName, Timestamp};

const ACTIONS: [&str; 7] = [
    "tool",
    "sleep",
    "sleep_until",
    "wait_for",
    "approval",
    "run",
    "emit",
];
const OPTIONS: [&str; 8] = [
    "id",
    "depends_on",
    "when",
    "arguments",
    "timeout",
    "on_timeout",
    "on_failure",
    "on_reject",
];
/// Names in one `wait_for`, and bytes of an event's type.
const WAIT_NAMES_MAX: usize = 32;
const EVENT_TYPE_BYTES_MAX: usize = 256;

/// A step, and what can be judged only when all of them are known.
pub(super) struct Draft<'v> {
    pub step: Step,
    pub pointer: String,
    pub depends_on: Option<&'v [Value]>,
    /// The pointer of an expression, and a step that it reads.
    pub references: Vec<(String, String)>,
}

/// Whether strings may hold expressions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Strings {
    Templates,
    /// What a planner wants is not of this plan's making: it means what it says.
    Literal,
}

pub(super) fn read_step<'v>(
    value: &'v Value,
    at: &str,
    strings: Strings,
    flaws: &mut Flaws,
) -> Draft<'v> {
    let mut draft = Draft {
        step: Step {
            id: String::new(),
            action: Action::Sleep { duration_ms: 0 },
            needs: Vec::new(),
            when: None,
            timeout_ms: None,
            on_timeout: OnTimeout::default(),
            on_failure: OnFailure::default(),
            on_reject: OnReject::default(),
        },
        pointer: at.to_owned(),
        depends_on: None,
        references: Vec::new(),
    };
    let Some(fields) = Fields::of(value, at, flaws) else {
        return draft;
    };
    fields.refuse_unknown(&[OPTIONS.as_slice(), ACTIONS.as_slice()].concat(), flaws);
    if let Some(id) = fields.required_text("id", flaws) {
        if let Err(error) = Name::parse(id) {
            flaws.add(fields.at("id"), error.to_string());
        }
        id.clone_into(&mut draft.step.id);
    }
    draft.depends_on = fields.array("depends_on", flaws);

    let actions: Vec<&str> = ACTIONS
        .into_iter()
        .filter(|action| fields.get(action).is_some())
        .collect();
    match actions.as_slice() {
        [action] => {
            refuse_misfits(&fields, action, flaws);
            if let Some(found) = read_action(&fields, action, strings, &mut draft.references, flaws)
            {
                draft.step.action = found;
            }
        }
        [] => flaws.add(
            at,
            format!("a step has exactly one action: {}", ACTIONS.join(", ")),
        ),
        several => flaws.add(
            at,
            format!(
                "a step has exactly one action, and this one has {}",
                several.join(" and ")
            ),
        ),
    }

    let step = &mut draft.step;
    step.when = read_when(&fields, &mut draft.references, flaws);
    step.timeout_ms = fields.duration_ms("timeout", DurationMs::MAX, flaws);
    let on_timeout = [("fail", OnTimeout::Fail), ("continue", OnTimeout::Continue)];
    step.on_timeout = fields
        .choice("on_timeout", &on_timeout, flaws)
        .unwrap_or_default();
    let on_failure = [
        ("dead_letter", OnFailure::DeadLetter),
        ("fail", OnFailure::Fail),
        ("continue", OnFailure::Continue),
    ];
    step.on_failure = fields
        .choice("on_failure", &on_failure, flaws)
        .unwrap_or_default();
    let on_reject = [("fail", OnReject::Fail), ("continue", OnReject::Continue)];
    step.on_reject = fields
        .choice("on_reject", &on_reject, flaws)
        .unwrap_or_default();
    draft
}

/// An option that can never take effect is a misunderstanding, so it is refused, with advice.
fn refuse_misfits(fields: &Fields<'_>, action: &str, flaws: &mut Flaws) {
    let waits = matches!(action, "wait_for" | "approval");
    let mut refuse = |option: &str, advice: &str| {
        if fields.get(option).is_some() {
            flaws.add(fields.at(option), advice);
        }
    };
    if action != "tool" {
        refuse("arguments", "arguments belong to a step with a tool");
    }
    if !matches!(action, "approval" | "tool") {
        refuse(
            "on_reject",
            "only an approval, or the call of a tool that requires one, can be rejected",
        );
    }
    if waits {
        if fields.get("timeout").is_none() {
            refuse(
                "on_timeout",
                "this step has no timeout, so it waits for ever",
            );
        }
        return;
    }
    refuse("on_timeout", "only wait_for and approval have a timeout");
    refuse(
        "timeout",
        match action {
            "tool" => "a tool's timeout and callback_timeout are part of its own definition",
            "run" => "a child run's time is its agent's limits.deadline",
            "emit" => "an event is sent at once: only wait_for and approval have a timeout",
            _ => "a sleep lasts as long as it says: only wait_for and approval have a timeout",
        },
    );
}

fn read_action(
    fields: &Fields<'_>,
    action: &str,
    strings: Strings,
    references: &mut Vec<(String, String)>,
    flaws: &mut Flaws,
) -> Option<Action> {
    let mut template = |value: Option<&Value>, at: String, flaws: &mut Flaws| {
        let empty = Value::Object(Map::new());
        if strings == Strings::Literal {
            return Template::of_literal(value.unwrap_or(&empty).clone());
        }
        let (template, mut found) = read_template(value.unwrap_or(&empty), at, flaws);
        references.append(&mut found);
        template
    };
    match action {
        "tool" => {
            let tool = versioned_name(fields, "tool", flaws);
            let arguments = fields.get("arguments");
            let at = fields.at("arguments");
            if arguments.is_some_and(|value| !value.is_object() && !value.is_string()) {
                flaws.add(
                    &at,
                    "arguments are an object, or one expression that gives one",
                );
            }
            let arguments = template(arguments, at.clone(), flaws);
            if matches!(arguments.literal(), Some(Value::String(_))) {
                flaws.add(
                    at,
                    "arguments are an object, or one expression that gives one",
                );
            }
            Some(Action::Tool {
                tool: tool?,
                arguments,
            })
        }
        "sleep" => Some(Action::Sleep {
            duration_ms: fields.duration_ms("sleep", DurationMs::MAX, flaws)?,
        }),
        "sleep_until" => {
            let text = fields.text("sleep_until", flaws)?;
            let at = template(fields.get("sleep_until"), fields.at("sleep_until"), flaws);
            if at.literal().is_some()
                && let Err(error) = Timestamp::parse(text)
            {
                flaws.add(fields.at("sleep_until"), error.to_string());
            }
            Some(Action::SleepUntil { at })
        }
        "wait_for" => read_wait(fields, flaws),
        "approval" => {
            let inner = fields.object("approval", flaws)?;
            inner.refuse_unknown(&["prompt", "schema"], flaws);
            let schema = inner.schema("schema", flaws);
            inner.required_text("prompt", flaws)?;
            let prompt = template(inner.get("prompt"), inner.at("prompt"), flaws);
            Some(Action::Approval { prompt, schema })
        }
        "run" => {
            let inner = fields.object("run", flaws)?;
            inner.refuse_unknown(&["agent", "input"], flaws);
            let input = template(inner.get("input"), inner.at("input"), flaws);
            let agent = versioned_name(&inner, "agent", flaws)?;
            Some(Action::Run { agent, input })
        }
        _ => {
            let inner = fields.object("emit", flaws)?;
            inner.refuse_unknown(&["type", "data"], flaws);
            let data = template(inner.get("data"), inner.at("data"), flaws);
            let r#type = inner.required_text("type", flaws)?.to_owned();
            if r#type.is_empty()
                || r#type.len() > EVENT_TYPE_BYTES_MAX
                || !r#type.bytes().all(|byte| byte.is_ascii_graphic())
                || r#type.contains("{{")
            {
                flaws.add(
                    inner.at("type"),
                    format!(
                        "an event's type is 1 to {EVENT_TYPE_BYTES_MAX} visible ASCII characters, and fixed: it holds no expression"
                    ),
                );
            }
            Some(Action::Emit { r#type, data })
        }
    }
}

fn read_wait(fields: &Fields<'_>, flaws: &mut Flaws) -> Option<Action> {
    let at = fields.at("wait_for");
    let (values, several) = match fields.get("wait_for")? {
        Value::Array(items) => (items.as_slice(), true),
        single => (std::slice::from_ref(single), false),
    };
    if values.is_empty() || values.len() > WAIT_NAMES_MAX {
        flaws.add(&at, format!("a wait names 1 to {WAIT_NAMES_MAX} signals"));
        return None;
    }
    let mut names: Vec<String> = Vec::with_capacity(values.len());
    for (index, value) in values.iter().enumerate() {
        let at = if several {
            pointer::push(&at, index)
        } else {
            at.clone()
        };
        match value.as_str().map(|name| (name, SignalName::parse(name))) {
            None => flaws.add(at, "a signal's name must be a string"),
            Some((_, Err(error))) => flaws.add(at, error.to_string()),
            Some((name, Ok(_))) if names.iter().any(|known| known == name) => {
                flaws.add(at, format!("the signal {name:?} is named twice"));
            }
            Some((name, Ok(_))) => names.push(name.to_owned()),
        }
    }
    Some(Action::WaitFor { names, several })
}

fn versioned_name(fields: &Fields<'_>, member: &str, flaws: &mut Flaws) -> Option<String> {
    let text = fields.required_text(member, flaws)?;
    if parse_versioned_name(text).is_none() {
        flaws.add(
            fields.at(member),
            format!(
                "{:?} is no name: [a-z0-9][a-z0-9._-]{{0,63}}, and after it @ and a version if need be",
                shorten(text)
            ),
        );
    }
    Some(text.to_owned())
}

/// A condition is one expression in its braces, so that it looks like every other one.
fn read_when(
    fields: &Fields<'_>,
    references: &mut Vec<(String, String)>,
    flaws: &mut Flaws,
) -> Option<Expression> {
    let text = fields.text("when", flaws)?.trim();
    let at = fields.at("when");
    let Some(inner) = text
        .strip_prefix("{{")
        .and_then(|text| text.strip_suffix("}}"))
    else {
        flaws.add(at, "a condition is one expression: {{ … }}");
        return None;
    };
    match Expression::parse(inner) {
        Ok(expression) => {
            for id in expression.references() {
                references.push((at.clone(), id.clone()));
            }
            Some(expression)
        }
        Err(error) => {
            flaws.add(at, error.to_string());
            None
        }
    }
}

pub(super) fn read_template(
    value: &Value,
    at: String,
    flaws: &mut Flaws,
) -> (Template, Vec<(String, String)>) {
    match Template::parse(value) {
        Ok(template) => {
            let references = template
                .references()
                .into_iter()
                .map(|(inner, id)| (format!("{at}{inner}"), id))
                .collect();
            (template, references)
        }
        Err(violations) => {
            flaws.add_all(&at, violations);
            (Template::default(), Vec::new())
        }
    }
}
