//! From the engine's errors to places and sentences for the person who mends the document.

use jsonschema::error::{TypeKind, ValidationError, ValidationErrorKind as Kind};
use jsonschema::{JsonType, Validator};

use crate::json::{self, Value, pointer};

use super::graph::Work;
use super::usable::Usable;
use super::{MESSAGE_CHARS_MAX, VIOLATIONS_MAX, Violation, embedded, engine};

/// Characters of a value that a message shows.
const PREVIEW_CHARS_MAX: usize = 60;
/// An instance with more values than this has only its first violation named: the engine builds
/// all errors before it hands out one, some hundred bytes each.
const VALUES_EXPLAINED_MAX: usize = 20_000;
/// Bytes of instance times subschemas: the engine copies the instance into the errors of each
/// branch of an `anyOf`, so beyond this the answer is only that something does not fit.
const COPIED_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// The violations of an embedded schema, whose shape is known to be harmless.
pub(super) fn own(validator: &Validator, instance: &Value, prefix: &str) -> Vec<Violation> {
    if values(instance, VALUES_EXPLAINED_MAX).is_some() {
        return all(validator.iter_errors(instance), prefix);
    }
    all(validator.validate(instance).err(), prefix)
}

/// The violations of a user's schema, with as much detail as the bounds allow. `work` is what the
/// schema can take for an instance of this depth.
pub(super) fn users(usable: &Usable, work: Work, instance: &Value, prefix: &str) -> Vec<Violation> {
    let bytes = u64::try_from(json::bytes_len(instance)).unwrap_or(u64::MAX);
    if work.count.saturating_mul(bytes) > COPIED_BYTES_MAX {
        let message =
            "does not fit its schema; value and schema are too large together to say where";
        return vec![Violation::new(prefix, message)];
    }
    own(&usable.validator, instance, prefix)
}

/// Explains every error, the deepest places first, each place and sentence once.
pub(super) fn all<'i>(
    errors: impl IntoIterator<Item = ValidationError<'i>>,
    prefix: &str,
) -> Vec<Violation> {
    let mut found = Vec::new();
    for error in errors {
        if found.len() >= 4 * VIOLATIONS_MAX {
            break;
        }
        one(&error, prefix, &mut found);
    }
    let mut seen = std::collections::HashSet::new();
    found.retain(|violation| seen.insert((violation.pointer.clone(), violation.message.clone())));
    found.sort_by_key(|violation| std::cmp::Reverse(violation.pointer.matches('/').count()));
    found.truncate(VIOLATIONS_MAX);
    found
}

fn one(error: &ValidationError<'_>, prefix: &str, found: &mut Vec<Violation>) {
    let at = format!("{prefix}{}", error.instance_path());
    let note = Note::of(error);
    let mut say = |at: String, message: String| found.push(Violation::new(at, cut(&message)));
    match error.kind() {
        Kind::Required { property } => {
            let name = property.as_str().unwrap_or_default();
            say(pointer::push(&at, name), "is required and missing".into());
        }
        Kind::AdditionalProperties { unexpected } | Kind::UnevaluatedProperties { unexpected } => {
            for name in unexpected.iter().take(VIOLATIONS_MAX) {
                say(
                    pointer::push(&at, name),
                    "is not a member that may stand here".into(),
                );
            }
        }
        Kind::PropertyNames { error } => {
            let name = error.instance().as_str().unwrap_or_default();
            let mut inner = Vec::new();
            one(error, "", &mut inner);
            for violation in inner {
                say(
                    pointer::push(&at, name),
                    format!("the name: {}", violation.message),
                );
            }
        }
        Kind::FalseSchema => say(at, "may not stand here".into()),
        Kind::Not { .. } => {
            say(
                at,
                note.refused
                    .unwrap_or_else(|| "has a form that is refused here".into()),
            );
        }
        Kind::AnyOf { context } | Kind::OneOfNotValid { context } => {
            if let Some(expected) = &note.expected {
                say(at, expected_got(expected, error, note.secret));
            } else if let Some(names) = only_missing(error, context) {
                say(at, format!("needs one of {}", listed(&names, "or")));
            } else if let Some(best) = best_branch(error, context) {
                for inner in best {
                    one(inner, prefix, found);
                }
            } else {
                say(at, "fits none of the forms that may stand here".into());
            }
        }
        Kind::OneOfMultipleValid { .. } => {
            say(
                at,
                "fits more than one form where exactly one is wanted".into(),
            );
        }
        kind => {
            let expected = note.expected.unwrap_or_else(|| wanted(kind));
            say(at, expected_got(&expected, error, note.secret));
        }
    }
}

fn expected_got(expected: &str, error: &ValidationError<'_>, secret: bool) -> String {
    if secret {
        return format!("expected {expected}");
    }
    let room = MESSAGE_CHARS_MAX.saturating_sub(PREVIEW_CHARS_MAX + 40);
    format!(
        "expected {}, got {}",
        cut_to(expected, room),
        preview(error.instance())
    )
}

/// What a value that breaks this keyword should have been, as the end of "expected …".
fn wanted(kind: &Kind) -> String {
    match kind {
        Kind::Type {
            kind: TypeKind::Single(one),
        } => with_article(*one).into(),
        Kind::Type {
            kind: TypeKind::Multiple(several),
        } => {
            let names: Vec<String> = several
                .iter()
                .map(|one| with_article(one).to_owned())
                .collect();
            listed(&names, "or")
        }
        Kind::Enum { options } => match options.as_array() {
            Some(options) => {
                let shown: Vec<String> = options.iter().take(20).map(preview).collect();
                let rest = options.len().saturating_sub(shown.len());
                match rest {
                    0 if shown.len() == 1 => listed(&shown, "or"),
                    0 => format!("one of {}", listed(&shown, "or")),
                    more => format!("one of {} or {more} others", shown.join(", ")),
                }
            }
            None => "one of a list".into(),
        },
        Kind::Constant { expected_value } => preview(expected_value),
        Kind::Pattern { pattern } => {
            format!("text that matches the pattern {}", cut_to(pattern, 120))
        }
        Kind::MinLength { limit } => format!("at least {}", counted(*limit, "character")),
        Kind::MaxLength { limit } => format!("at most {}", counted(*limit, "character")),
        Kind::MinItems { limit } => format!("at least {}", counted(*limit, "item")),
        Kind::MaxItems { limit } => format!("at most {}", counted(*limit, "item")),
        Kind::MinProperties { limit } => format!("at least {}", counted(*limit, "member")),
        Kind::MaxProperties { limit } => format!("at most {}", counted(*limit, "member")),
        Kind::AdditionalItems { limit } => {
            format!(
                "at most {}",
                counted(u64::try_from(*limit).unwrap_or(u64::MAX), "item")
            )
        }
        Kind::Minimum { limit } => format!("at least {}", preview(limit)),
        Kind::Maximum { limit } => format!("at most {}", preview(limit)),
        Kind::ExclusiveMinimum { limit } => format!("more than {}", preview(limit)),
        Kind::ExclusiveMaximum { limit } => format!("less than {}", preview(limit)),
        Kind::MultipleOf { multiple_of } => format!("a multiple of {}", preview(multiple_of)),
        Kind::UniqueItems => "items that are all different".into(),
        Kind::Contains => "the wanted number of items of the wanted form".into(),
        Kind::UnevaluatedItems { .. } => "no items beyond those described".into(),
        Kind::Format { format } => format!("text in the format {}", cut_to(format, 60)),
        Kind::ContentEncoding { content_encoding } => {
            format!("text in the encoding {}", cut_to(content_encoding, 60))
        }
        Kind::ContentMediaType { content_media_type } => {
            format!("text of the media type {}", cut_to(content_media_type, 60))
        }
        other => format!("what the keyword {} asks for", cut_to(other.keyword(), 60)),
    }
}

fn with_article(one: JsonType) -> &'static str {
    match one {
        JsonType::Array => "an array",
        JsonType::Boolean => "true or false",
        JsonType::Integer => "a whole number",
        JsonType::Null => "null",
        JsonType::Number => "a number",
        JsonType::Object => "an object",
        JsonType::String => "a string",
    }
}

fn counted(count: u64, what: &str) -> String {
    match count {
        1 => format!("1 {what}"),
        _ => format!("{count} {what}s"),
    }
}

fn listed(names: &[String], last: &str) -> String {
    match names {
        [] => String::new(),
        [one] => one.clone(),
        [rest @ .., end] => format!("{} {last} {end}", rest.join(", ")),
    }
}

/// The members that would each do, where every branch only misses members of this place.
fn only_missing(
    error: &ValidationError<'_>,
    branches: &[Vec<ValidationError<'_>>],
) -> Option<Vec<String>> {
    let mut names = Vec::new();
    for branch in branches {
        let mut needed = Vec::new();
        for inner in branch {
            match inner.kind() {
                Kind::Required { property } if inner.instance_path() == error.instance_path() => {
                    needed.push(property.as_str().unwrap_or_default().to_owned());
                }
                _ => return None,
            }
        }
        names.push(listed(&needed, "with"));
    }
    (!names.is_empty()).then_some(names)
}

/// The branch that was most likely meant: one whose kind of value is the one given, then one whose
/// constants fit, then the one with the fewest flaws.
fn best_branch<'b, 'e>(
    error: &ValidationError<'_>,
    branches: &'b [Vec<ValidationError<'e>>],
) -> Option<&'b [ValidationError<'e>]> {
    let place = error.instance_path().as_str();
    let score = |branch: &&Vec<ValidationError<'e>>| {
        let mut score = branch.len();
        for inner in branch.iter() {
            let inner_place = inner.instance_path().as_str();
            let below = inner_place.get(place.len()..).unwrap_or_default();
            score += match (inner.kind(), below.matches('/').count()) {
                (Kind::Type { .. } | Kind::FalseSchema, 0) => 10_000,
                (Kind::Constant { .. } | Kind::Enum { .. }, 0 | 1) => 1_000,
                _ => 0,
            };
        }
        score
    };
    let best = branches
        .iter()
        .filter(|branch| !branch.is_empty())
        .min_by_key(score)?;
    Some(best)
}

/// What the author of an embedded schema wrote beside a keyword for the reader of its violation.
#[derive(Default)]
struct Note {
    /// `x-expected`: completes "expected …".
    expected: Option<String>,
    /// `x-refused`: the sentence for a `not`.
    refused: Option<String>,
    /// `writeOnly`: the value may be a secret, so it is not shown.
    secret: bool,
}

impl Note {
    fn of(error: &ValidationError<'_>) -> Self {
        Self::find(error).unwrap_or_default()
    }

    fn find(error: &ValidationError<'_>) -> Option<Self> {
        let location = error.absolute_keyword_location()?.as_str();
        let (file, fragment) = location.strip_prefix(engine::BASE)?.split_once('#')?;
        let name = file.strip_prefix("/schemas/")?.strip_suffix(".json")?;
        let schema: Value = serde_json::from_str(embedded::text(name)?).ok()?;
        let (subschema, _) = fragment.rsplit_once('/')?;
        let beside = pointer::get(&schema, &subschema.replace("%24", "$"))?;
        let text = |name: &str| beside.get(name).and_then(Value::as_str).map(str::to_owned);
        Some(Self {
            expected: text("x-expected"),
            refused: text("x-refused"),
            secret: beside
                .get("writeOnly")
                .and_then(Value::as_bool)
                .unwrap_or_default(),
        })
    }
}

/// A value in a few characters: small ones whole, large ones by their kind and size.
pub(super) fn preview(value: &Value) -> String {
    match value {
        Value::Null => "null".into(),
        Value::Bool(yes) => yes.to_string(),
        Value::Number(number) => cut_to(&number.to_string(), PREVIEW_CHARS_MAX),
        Value::String(text) => {
            let shown = cut_to(text, PREVIEW_CHARS_MAX);
            cut_to(&Value::String(shown).to_string(), 2 * PREVIEW_CHARS_MAX)
        }
        Value::Array(items) => {
            format!(
                "an array of {}",
                counted(u64::try_from(items.len()).unwrap_or(u64::MAX), "item")
            )
        }
        Value::Object(_) => "an object".into(),
    }
}

/// A message within its bound.
pub(super) fn cut(message: &str) -> String {
    cut_to(message, MESSAGE_CHARS_MAX)
}

fn cut_to(text: &str, chars: usize) -> String {
    match text.char_indices().nth(chars) {
        None => text.to_owned(),
        Some(_) => {
            let kept: String = text.chars().take(chars.saturating_sub(1)).collect();
            kept + "…"
        }
    }
}

/// How many values a value holds, itself included; `None` for more than `most`.
fn values(value: &Value, most: usize) -> Option<usize> {
    let mut open = vec![value];
    let mut count = 0_usize;
    while let Some(value) = open.pop() {
        count += 1;
        if count + open.len() > most {
            return None;
        }
        match value {
            Value::Array(items) => open.extend(items),
            Value::Object(members) => open.extend(members.values()),
            _ => {}
        }
    }
    Some(count)
}
