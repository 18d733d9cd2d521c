//! From a sent form to what was typed, and from there to what is meant.

use std::collections::BTreeMap;

use serde_json::Map;

use crate::http::routes::percent_decode;
use crate::json::{self, Value, Violation};
use crate::words::Timestamp;
use crate::words::limits::{
    APPROVAL_COMMENT_CHARS_MAX, APPROVAL_FORM_BYTES_MAX, APPROVAL_INPUTS_MAX,
    APPROVAL_NAME_CHARS_MAX, JSON_DEPTH_MAX,
};

use super::form::{self, Field, Kind, WHOLE};
use super::{Answer, Decision, Malformed};

/// The inputs that every form has.
pub(super) const DECISION: &str = "decision";
pub(super) const COMMENT: &str = "comment";
pub(super) const DECIDED_BY: &str = "decided_by";

/// What a person has typed and chosen, to show it again as it was. The default is a form that
/// nobody has sent yet.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Filled {
    /// None before the form is sent: then fields show their defaults.
    texts: Option<BTreeMap<String, Vec<String>>>,
}

impl Filled {
    /// The texts of the inputs called `name`, if the form was sent.
    pub(super) fn of(&self, name: &str) -> Option<&[String]> {
        let texts = self.texts.as_ref()?;
        Some(texts.get(name).map_or(&[], Vec::as_slice))
    }

    pub(super) fn first(&self, name: &str) -> &str {
        let first = self.of(name).and_then(<[String]>::first);
        first.map_or("", String::as_str)
    }
}

/// A form that was sent.
#[derive(Debug, Clone, PartialEq)]
pub struct Sent {
    /// What was typed, for showing the form again.
    pub filled: Filled,
    /// What is meant, or why the texts mean nothing. Not yet held against the schema.
    pub answer: Result<Answer, Vec<Violation>>,
}

/// Reads the body of a sent form, `application/x-www-form-urlencoded`, in UTF-8.
///
/// `schema` is the approval's, `decided_by` the name that the link is bound to: with it the form
/// asks for no name, and that name is the answer's. Fails if no browser would have sent this.
///
/// The answer's `data` is made as the schema says, but not checked by it: the caller does that with
/// [`crate::schema::validate_with`] and the prefix `/data`. A rejection carries no data, so nobody
/// has to fill in a form in order to refuse.
pub fn read_form(
    body: &[u8],
    schema: Option<&Value>,
    decided_by: Option<&str>,
) -> Result<Sent, Malformed> {
    let form = schema.map(form::form);
    let texts = split(body)?;
    for (name, values) in &texts {
        let may_repeat = match name.as_str() {
            DECISION | COMMENT => Some(false),
            DECIDED_BY if decided_by.is_none() => Some(false),
            name => form.as_ref().and_then(|form| input(form, name)),
        };
        match may_repeat {
            None => return Err(Malformed::Unknown(name.clone())),
            Some(false) if values.len() > 1 => return Err(Malformed::Twice(name.clone())),
            Some(_) => {}
        }
    }
    let filled = Filled { texts: Some(texts) };
    let answer = answer(&filled, form.as_ref(), decided_by);
    Ok(Sent { filled, answer })
}

/// Whether the form has an input of this name, and then whether it has several.
fn input(form: &Field<'_>, name: &str) -> Option<bool> {
    let mut found = None;
    form.walk(&mut |field| {
        if field.pointer == name {
            found = match field.kind {
                Kind::Group(_) => None,
                Kind::Several(_) => Some(true),
                _ => Some(false),
            };
        }
    });
    found
}

fn split(body: &[u8]) -> Result<BTreeMap<String, Vec<String>>, Malformed> {
    if body.len() > APPROVAL_FORM_BYTES_MAX {
        return Err(Malformed::TooLarge);
    }
    let body = str::from_utf8(body).map_err(|_| Malformed::NotEncoded)?;
    let mut texts: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let pairs = body.split('&').filter(|pair| !pair.is_empty());
    for (count, pair) in pairs.enumerate() {
        if count >= APPROVAL_INPUTS_MAX + 3 {
            return Err(Malformed::TooMany);
        }
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let decode = |text| percent_decode(text, true).ok_or(Malformed::NotEncoded);
        let (name, value) = (decode(name)?, decode(value)?);
        if value.contains('\0') {
            return Err(Malformed::Nul(name));
        }
        // Browsers send every line break as CR LF, whatever the text had.
        let value = value.replace("\r\n", "\n").replace('\r', "\n");
        texts.entry(name).or_default().push(value);
    }
    Ok(texts)
}

fn answer(
    filled: &Filled,
    form: Option<&Field<'_>>,
    decided_by: Option<&str>,
) -> Result<Answer, Vec<Violation>> {
    let mut flaws = Vec::new();
    let mut flaw = |name: &str, message: &str| {
        flaws.push(Violation::new(format!("/{name}"), message));
    };
    let decision = match filled.first(DECISION) {
        "approved" => Some(Decision::Approved),
        "rejected" => Some(Decision::Rejected),
        _ => None,
    };
    if decision.is_none() {
        flaw(DECISION, "press Approve or Reject");
    }
    let comment = filled.first(COMMENT).trim();
    if comment.chars().count() > APPROVAL_COMMENT_CHARS_MAX {
        flaw(
            COMMENT,
            &format!("has more than {APPROVAL_COMMENT_CHARS_MAX} characters"),
        );
    }
    let name = decided_by.unwrap_or(filled.first(DECIDED_BY)).trim();
    if decided_by.is_none() {
        if name.chars().count() > APPROVAL_NAME_CHARS_MAX {
            flaw(
                DECIDED_BY,
                &format!("has more than {APPROVAL_NAME_CHARS_MAX} characters"),
            );
        }
        if name.contains(char::is_control) {
            flaw(DECIDED_BY, "holds a control character");
        }
    }
    let asked = form.filter(|_| decision != Some(Decision::Rejected));
    let data = asked.map(|form| {
        let mut reading = Reading {
            filled,
            flaws: &mut flaws,
        };
        let data = reading.field(form).value.unwrap_or_default();
        // What stands in a box of JSON may be as deep as JSON from outside may be, and the box
        // itself stands within groups.
        if json::depth(&data) > JSON_DEPTH_MAX {
            let message = format!("arrays and objects are nested more than {JSON_DEPTH_MAX} deep");
            flaws.push(Violation::new(WHOLE, message));
        }
        data
    });
    match decision {
        Some(decision) if flaws.is_empty() => Ok(Answer {
            decision,
            comment: (!comment.is_empty()).then(|| comment.to_owned()),
            decided_by: (!name.is_empty()).then(|| name.to_owned()),
            data,
        }),
        _ => Err(flaws),
    }
}

struct Reading<'r> {
    filled: &'r Filled,
    flaws: &'r mut Vec<Violation>,
}

/// What a field comes to.
#[derive(Default)]
struct Read {
    /// What is sent for it, if anything is: there may be a value for an empty field.
    value: Option<Value>,
    /// Somebody has filled it in.
    touched: bool,
}

impl Read {
    fn touched(value: Value) -> Self {
        Self {
            value: Some(value),
            touched: true,
        }
    }

    /// Something was filled in that means nothing.
    const FLAWED: Self = Self {
        value: None,
        touched: true,
    };
}

impl Reading<'_> {
    fn field(&mut self, field: &Field<'_>) -> Read {
        let text = self.filled.first(&field.pointer);
        let read = match &field.kind {
            Kind::Group(fields) => return self.group(field, fields),
            Kind::Text { format, .. } => self.text(field, text, *format),
            Kind::Number { .. } => self.number(field, text.trim()),
            Kind::Check { else_false } => match text {
                "" => Read {
                    value: else_false.then_some(Value::Bool(false)),
                    touched: false,
                },
                "true" => Read::touched(Value::Bool(true)),
                _ => self.flawed(field, "is neither checked nor unchecked"),
            },
            Kind::Choice(choices) => match text {
                "" => Read::default(),
                place => match place.parse().ok().and_then(|at: usize| choices.get(at)) {
                    Some(choice) => Read::touched(choice.value.to_value()),
                    None => self.flawed(field, "is none of the choices"),
                },
            },
            Kind::Several(choices) => {
                let places = self.filled.of(&field.pointer).unwrap_or_default();
                let mut chosen = Vec::new();
                for place in places {
                    match place.parse::<usize>().ok().filter(|at| *at < choices.len()) {
                        Some(at) => chosen.push(at),
                        None => return self.flawed(field, "is none of the choices"),
                    }
                }
                chosen.sort_unstable();
                chosen.dedup();
                let items = chosen.iter().filter_map(|at| choices.get(*at));
                let items: Vec<Value> = items.map(|choice| choice.value.to_value()).collect();
                let touched = !items.is_empty();
                let value =
                    (touched || (field.required && !field.nullable)).then(|| Value::Array(items));
                Read { value, touched }
            }
            Kind::Json { .. } => self.json(field, text),
        };
        if read.touched || read.value.is_some() || !field.required {
            return read;
        }
        if field.nullable {
            return Read {
                value: Some(Value::Null),
                touched: false,
            };
        }
        // The schema says so of a member that is missing, but for the whole there is always a value.
        if field.pointer == WHOLE && !matches!(field.kind, Kind::Json { .. }) {
            return self.flawed(field, "is required and missing");
        }
        read
    }

    fn text(&mut self, field: &Field<'_>, text: &str, format: Option<&str>) -> Read {
        let trimmed = text.trim();
        let (text, flaw) = match format {
            _ if text.is_empty() => {
                let is_value = field.required && !field.nullable && !field.refuses_empty();
                let value = is_value.then(|| Value::String(String::new()));
                return Read {
                    value,
                    touched: false,
                };
            }
            Some("date") => {
                // A date is what makes a time of noon that day.
                let noon = Timestamp::parse(&format!("{trimmed}T12:00:00Z"));
                (
                    trimmed,
                    noon.err()
                        .map(|_| "expected a date, such as 2026-12-01".to_owned()),
                )
            }
            Some("date-time") => (
                trimmed,
                Timestamp::parse(trimmed)
                    .err()
                    .map(|error| error.to_string()),
            ),
            _ => (text, None),
        };
        match flaw {
            Some(flaw) => self.flawed(field, flaw),
            None => Read::touched(Value::String(text.to_owned())),
        }
    }

    /// The number as it was typed, to the last digit.
    fn number(&mut self, field: &Field<'_>, text: &str) -> Read {
        if text.is_empty() {
            return Read::default();
        }
        match json::read(text.as_bytes()) {
            Ok(number @ Value::Number(_)) => Read::touched(number),
            Err(flaws) if text.parse::<f64>().is_ok_and(f64::is_infinite) => {
                let flaw = flaws.into_iter().next();
                self.flawed(field, flaw.map_or_else(String::new, |flaw| flaw.message))
            }
            _ => self.flawed(
                field,
                "expected a number written like 1200, -3 or 19.99: with a point, without \
                 separators, and with no zeros before it",
            ),
        }
    }

    fn json(&mut self, field: &Field<'_>, text: &str) -> Read {
        if text.trim().is_empty() {
            return Read::default();
        }
        match json::read(text.as_bytes()) {
            Ok(value) => Read::touched(value),
            Err(flaws) => {
                let at = |flaw: Violation| {
                    Violation::new(format!("{}{}", field.pointer, flaw.pointer), flaw.message)
                };
                self.flaws.extend(flaws.into_iter().map(at));
                Read::FLAWED
            }
        }
    }

    fn group(&mut self, field: &Field<'_>, fields: &[Field<'_>]) -> Read {
        let mut members = Map::new();
        let mut touched = false;
        for inner in fields {
            let read = self.field(inner);
            touched |= read.touched;
            if let (Some(value), Some((_, token))) = (read.value, inner.pointer.rsplit_once('/')) {
                members.insert(token.replace("~1", "/").replace("~0", "~"), value);
            }
        }
        let value = match (touched, field.required, field.nullable) {
            // Values that empty fields have do not count as an answer.
            (false, false, _) => None,
            (false, true, true) => Some(Value::Null),
            _ => Some(Value::Object(members)),
        };
        Read { value, touched }
    }

    fn flawed(&mut self, field: &Field<'_>, message: impl Into<String>) -> Read {
        self.flaws
            .push(Violation::new(field.pointer.as_str(), message));
        Read::FLAWED
    }
}
