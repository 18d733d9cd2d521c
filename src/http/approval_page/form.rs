//! From a JSON Schema to the fields of a form, as far as a form can ask for what it describes.
//!
//! The form decides nothing about validity: what comes back is held against the schema by the
//! caller. Each value that a part of the schema allows can be given, or that part is asked for as
//! JSON. Out of reach are only line breaks in a short text, and members of an open object that the
//! schema does not name.

use serde_json::Map;

use crate::json::{self, Value, pointer};
use crate::words::limits::{
    APPROVAL_INPUTS_MAX, APPROVAL_PRETTY_BYTES_MAX, APPROVAL_TEXT_BYTES_MAX,
};

use super::super::routes::percent_decode;
use super::html::visible;

/// The pointer of all that is asked for.
pub(super) const WHOLE: &str = "/data";
/// Groups within groups; what is deeper is asked for as JSON. Ends schemas that refer to themselves.
const DEPTH_MAX: usize = 6;
/// References followed for one field.
const REFERENCES_MAX: usize = 16;
/// A title; the rest is cut.
const TITLE_CHARS_MAX: usize = 200;
/// A description, or the name of an option; the rest of the former is cut.
const HINT_CHARS_MAX: usize = 2_000;

/// The markup around the name of an option.
const CHOICE_BYTES: usize = 40;

/// One thing that the form asks for.
pub(super) struct Field<'s> {
    /// Where the value goes in the answer, as violations name it, and the name of its inputs:
    /// `/data/amount`.
    pub pointer: String,
    /// What no other field of the form has.
    pub number: usize,
    pub title: String,
    /// Paragraphs that explain it.
    pub hints: Vec<String>,
    pub required: bool,
    /// Each group around it is sent in any case, so what it asks for is certain to be needed.
    pub certain: bool,
    /// Left empty it is null where it is required.
    pub nullable: bool,
    /// What stands there before anybody has filled it in.
    pub default: Option<&'s Value>,
    pub kind: Kind<'s>,
}

pub(super) enum Kind<'s> {
    Text {
        format: Option<&'s str>,
        /// In characters.
        least: u64,
        pattern: Option<&'s str>,
        many_lines: bool,
    },
    Number {
        whole: bool,
        /// No value below zero is allowed.
        positive: bool,
    },
    /// A box that is true when it is checked, and else false or absent.
    Check {
        else_false: bool,
    },
    Choice(Vec<Choice<'s>>),
    /// An array of some of these.
    Several(Vec<Choice<'s>>),
    Group(Vec<Field<'s>>),
    /// A text of JSON, for what has no form; with its schema, if there is room for it.
    Json {
        schema: Option<String>,
    },
}

/// A value that can be chosen.
pub(super) struct Choice<'s> {
    pub label: String,
    pub value: Chosen<'s>,
}

pub(super) enum Chosen<'s> {
    Member(&'s Value),
    Bool(bool),
}

impl Chosen<'_> {
    pub fn to_value(&self) -> Value {
        match self {
            Self::Member(value) => (*value).clone(),
            Self::Bool(value) => Value::Bool(*value),
        }
    }

    pub fn is(&self, other: &Value) -> bool {
        match self {
            Self::Member(value) => json::same(value, other),
            Self::Bool(value) => other.as_bool() == Some(*value),
        }
    }
}

impl Field<'_> {
    /// This field and those within it, in the order of the form.
    pub fn walk<'f>(&'f self, visit: &mut dyn FnMut(&'f Self)) {
        visit(self);
        if let Kind::Group(fields) = &self.kind {
            fields.iter().for_each(|field| field.walk(visit));
        }
    }

    /// Whether nothing typed or chosen is no value of it.
    pub fn refuses_empty(&self) -> bool {
        match &self.kind {
            Kind::Text { format, least, .. } => {
                let formats = ["date", "date-time", "email", "uri"];
                *least > 0 || format.is_some_and(|format| formats.contains(&format))
            }
            Kind::Check { else_false } => !else_false,
            Kind::Number { .. } | Kind::Choice(_) => true,
            // An empty answer as a whole is null, which the schema may allow.
            Kind::Json { .. } => self.pointer != WHOLE,
            Kind::Several(_) | Kind::Group(_) => false,
        }
    }

    /// Whether HTML's `required` says what the schema says. It never does for what may stay away
    /// with its group, nor where the empty text is a value.
    pub fn must_be_filled(&self) -> bool {
        self.required && self.certain && !self.nullable && self.refuses_empty()
    }

    /// What its inputs hold before anybody has filled them in; for choices their places.
    ///
    /// Defaults within a group that may stay away are left out: they would make the group appear.
    pub fn initial(&self) -> Vec<String> {
        let Some(default) = self.default.filter(|_| self.certain) else {
            return Vec::new();
        };
        let place = |choices: &[Choice<'_>], value: &Value| {
            let at = choices.iter().position(|choice| choice.value.is(value))?;
            Some(at.to_string())
        };
        match (&self.kind, default) {
            (Kind::Text { .. }, Value::String(text)) => vec![text.clone()],
            (Kind::Number { .. }, Value::Number(number)) => vec![number.to_string()],
            (Kind::Check { .. }, Value::Bool(true)) => vec!["true".to_owned()],
            (Kind::Choice(choices), value) => place(choices, value).into_iter().collect(),
            (Kind::Several(choices), Value::Array(items)) if items.len() <= choices.len() => {
                let places = items.iter().map(|item| place(choices, item));
                places.collect::<Option<_>>().unwrap_or_default()
            }
            (Kind::Json { .. }, value) => vec![visible(&pretty(value))],
            _ => Vec::new(),
        }
    }
}

/// The form for `data` as `schema` describes it.
pub(super) fn form(schema: &Value) -> Field<'_> {
    let mut building = Building {
        root: schema,
        // The whole is one already.
        inputs_left: APPROVAL_INPUTS_MAX.saturating_sub(1),
        bytes_left: APPROVAL_TEXT_BYTES_MAX,
        number: 0,
    };
    let place = Place {
        pointer: WHOLE.to_owned(),
        name: "Your answer",
        required: true,
        certain: true,
        default: None,
        depth: 0,
    };
    building.field(schema, place)
}

/// Where a field stands, whatever it turns out to be.
struct Place<'s> {
    pointer: String,
    name: &'s str,
    required: bool,
    certain: bool,
    /// The member of the default of the group around it.
    default: Option<&'s Value>,
    depth: usize,
}

struct Building<'s> {
    root: &'s Value,
    inputs_left: usize,
    bytes_left: usize,
    number: usize,
}

/// What a schema says beside its rules; what stands outermost counts.
#[derive(Default)]
struct Notes<'s> {
    title: Option<&'s str>,
    description: Option<&'s str>,
    default: Option<&'s Value>,
    nullable: bool,
}

type Members = Map<String, Value>;

impl<'s> Building<'s> {
    fn field(&mut self, schema: &'s Value, place: Place<'s>) -> Field<'s> {
        self.number = self.number.saturating_add(1);
        let number = self.number;
        let mut notes = Notes::default();
        let members = self.resolve(schema, &mut notes);
        let title = notes.title.filter(|title| !title.trim().is_empty());
        let title = self.room_for(cut(title.unwrap_or(place.name), TITLE_CHARS_MAX));
        let mut hints = Vec::new();
        if let Some(description) = notes.description.filter(|text| !text.trim().is_empty()) {
            hints.extend(self.room_for(cut(description, HINT_CHARS_MAX)));
        }
        let default = place.default.or(notes.default);
        let default = default.filter(|default| self.spend(json::bytes_len(default)));
        if let Some((members, (_, true))) = members.map(|members| (members, type_of(members))) {
            notes.nullable |= !members.contains_key("enum");
        }

        let mut field = Field {
            title: title.unwrap_or_else(|| cut(place.name, 20)),
            pointer: place.pointer,
            number,
            hints,
            required: place.required,
            certain: place.certain,
            nullable: notes.nullable,
            default,
            kind: Kind::Json { schema: None },
        };
        match members.and_then(|members| self.kind(members, &field, place.depth)) {
            Some(kind) => {
                field.kind = kind;
                let rules = members.map(|members| rules(members, &field.kind));
                let rules = rules.filter(|rules| !rules.is_empty());
                field
                    .hints
                    .extend(rules.and_then(|rules| self.room_for(rules)));
            }
            // Null is among what is written as JSON.
            None => {
                field.nullable = false;
                let says_something = schema
                    .as_object()
                    .is_some_and(|members| members.keys().any(|name| asks(name)));
                let text = (says_something && json::bytes_len(schema) <= self.bytes_left / 4)
                    .then(|| visible(&pretty(schema)));
                field.kind = Kind::Json {
                    schema: text.and_then(|text| self.room_for(text)),
                };
            }
        }
        field
    }

    /// What the field is. None: there is no form for it.
    fn kind(&mut self, members: &'s Members, field: &Field<'s>, depth: usize) -> Option<Kind<'s>> {
        if let Some(choices) = self.choices(members) {
            return match choices.as_slice() {
                [Choice { value, .. }] if value.is(&Value::Bool(true)) => {
                    Some(Kind::Check { else_false: false })
                }
                [] => None,
                _ => Some(Kind::Choice(choices)),
            };
        }
        if COMPOSED
            .iter()
            .any(|keyword| members.contains_key(*keyword))
        {
            return None;
        }
        match type_of(members).0? {
            "string" => {
                let text = |name: &str| members.get(name).and_then(Value::as_str);
                let number = |name: &str| members.get(name).and_then(Value::as_u64);
                let (format, pattern) = (text("format"), text("pattern"));
                let default = field.default.and_then(Value::as_str).unwrap_or_default();
                let short = format.is_some()
                    || pattern.is_some()
                    || number("maxLength").is_some_and(|most| most <= 200);
                Some(Kind::Text {
                    format,
                    least: number("minLength").unwrap_or_default(),
                    pattern,
                    // A line cannot hold a break, so a text that may have one is given an area.
                    many_lines: !short || default.contains(['\n', '\r']),
                })
            }
            name @ ("integer" | "number") => {
                let bounds = ["minimum", "exclusiveMinimum"]
                    .iter()
                    .filter_map(|name| members.get(*name));
                let positive = bounds.filter_map(Value::as_f64).any(|bound| bound >= 0.0);
                Some(Kind::Number {
                    whole: name == "integer",
                    positive,
                })
            }
            "boolean" => {
                // An unchecked box cannot be told from one that was overlooked, so there is a box
                // only where the author has said what no answer means.
                let has_default = field.default.is_some_and(Value::is_boolean);
                if field.required && field.certain && !field.nullable && has_default {
                    return Some(Kind::Check { else_false: true });
                }
                let choices = [("Yes", true), ("No", false)].map(|(label, value)| Choice {
                    label: label.to_owned(),
                    value: Chosen::Bool(value),
                });
                Some(Kind::Choice(choices.into()))
            }
            "array" => {
                if members.contains_key("prefixItems") {
                    return None;
                }
                let mut notes = Notes::default();
                let items = self.resolve(members.get("items")?, &mut notes)?;
                let choices = self.choices(items).filter(|_| !notes.nullable)?;
                let more = choices.len().checked_sub(1)?;
                self.inputs_left = self.inputs_left.checked_sub(more)?;
                Some(Kind::Several(choices))
            }
            "object" => self.group(members, field, depth),
            _ => None,
        }
    }

    fn group(&mut self, members: &'s Members, field: &Field<'s>, depth: usize) -> Option<Kind<'s>> {
        let closed = match members.get("additionalProperties") {
            None | Some(Value::Bool(true)) => false,
            Some(Value::Bool(false)) => true,
            Some(Value::Object(members)) if members.is_empty() => false,
            Some(_) => return None,
        };
        let properties: Vec<(&String, &Value)> = match members.get("properties") {
            None => Vec::new(),
            Some(properties) => {
                let properties = properties.as_object()?.iter();
                // What may never be there is not asked for.
                properties
                    .filter(|(_, schema)| **schema != Value::Bool(false))
                    .collect()
            }
        };
        let required: Vec<&str> = match members.get("required").and_then(Value::as_array) {
            None => Vec::new(),
            Some(names) => names.iter().filter_map(Value::as_str).collect(),
        };
        let is_known = |name: &&str| properties.iter().any(|(known, _)| known == name);
        // A browser changes line breaks in names, too.
        let is_plain = |name: &str| !name.contains(char::is_control);
        // All of the group are counted before those within them, so what is outermost has a form.
        let inputs_left = self.inputs_left.checked_sub(properties.len())?;
        if depth >= DEPTH_MAX
            || (properties.is_empty() && !closed)
            || required.len() > properties.len()
            || !required.iter().all(is_known)
            || !properties.iter().all(|(name, _)| is_plain(name))
        {
            return None;
        }
        let names = properties.iter().fold(0, |sum, (name, _)| {
            field
                .pointer
                .len()
                .saturating_add(2 * name.len())
                .saturating_add(sum)
        });
        if !self.spend(names) {
            return None;
        }
        self.inputs_left = inputs_left;
        let fields = properties.into_iter().map(|(name, schema)| {
            let place = Place {
                pointer: pointer::push(&field.pointer, name),
                name,
                required: required.contains(&name.as_str()),
                certain: field.certain && field.required && !field.nullable,
                default: field.default.and_then(|default| default.get(name)),
                depth: depth + 1,
            };
            self.field(schema, place)
        });
        Some(Kind::Group(fields.collect()))
    }

    /// Follows what only leads on to another schema. None: to nowhere, in a circle, or there is no
    /// object at its end.
    fn resolve(&self, mut schema: &'s Value, notes: &mut Notes<'s>) -> Option<&'s Members> {
        for _ in 0..REFERENCES_MAX {
            let members = schema.as_object()?;
            let text = |name: &str| members.get(name).and_then(Value::as_str);
            notes.title = notes.title.or(text("title"));
            notes.description = notes.description.or(text("description"));
            notes.default = notes.default.or(members.get("default"));
            let (next, null) = match leads_on(members) {
                LeadsOn::No => return Some(members),
                LeadsOn::Reference(reference) => (self.look_up(reference)?, false),
                LeadsOn::To(next) => (next, false),
                LeadsOn::ToOrNull(next) => (next, true),
            };
            schema = next;
            notes.nullable |= null;
        }
        None
    }

    fn look_up(&self, reference: &str) -> Option<&'s Value> {
        let fragment = reference.strip_prefix('#')?;
        let path = percent_decode(fragment, false)?;
        if path.is_empty() || path.starts_with('/') {
            pointer::get(self.root, &path)
        } else {
            None
        }
    }

    /// The values that are allowed, if they are listed and there is room to list them.
    fn choices(&mut self, members: &'s Members) -> Option<Vec<Choice<'s>>> {
        let listed: Vec<(Option<&str>, &Value)> = if let Some(value) = members.get("const") {
            vec![(None, value)]
        } else if let Some(values) = members.get("enum") {
            values
                .as_array()?
                .iter()
                .map(|value| (None, value))
                .collect()
        } else {
            let branches = members.get("oneOf").or(members.get("anyOf"))?.as_array()?;
            branches.iter().map(titled).collect::<Option<_>>()?
        };
        // In quotes the text "1" can be told from the number 1.
        let plain = listed.iter().all(|(_, value)| match value {
            Value::String(text) => text != "null",
            value => value.is_null(),
        });
        let mut choices = Vec::new();
        for (title, value) in listed {
            let label = match (title, value) {
                (Some(title), _) => title.to_owned(),
                (None, Value::String(text)) if text.is_empty() => "(empty)".to_owned(),
                (None, Value::String(text)) if plain => text.clone(),
                (None, value) => visible(&json::write(value)),
            };
            if label.chars().nth(HINT_CHARS_MAX).is_some() {
                return None;
            }
            if !self.spend(label.len().saturating_add(CHOICE_BYTES)) {
                return None;
            }
            let value = Chosen::Member(value);
            choices.push(Choice { label, value });
        }
        Some(choices)
    }

    /// The text, if the page has room for it.
    fn room_for(&mut self, text: String) -> Option<String> {
        self.spend(text.len()).then_some(text)
    }

    fn spend(&mut self, bytes: usize) -> bool {
        let left = self.bytes_left.checked_sub(bytes);
        self.bytes_left = left.unwrap_or(self.bytes_left);
        left.is_some()
    }
}

/// Keywords that say what a value must be by other schemas: there is no form for them in general.
const COMPOSED: [&str; 10] = [
    "$ref",
    "$dynamicRef",
    "$recursiveRef",
    "allOf",
    "anyOf",
    "oneOf",
    "if",
    "dependentSchemas",
    "dependencies",
    "patternProperties",
];

/// Keywords that ask nothing of a value.
const ASK_NOTHING: [&str; 13] = [
    "$schema",
    "$id",
    "$defs",
    "$comment",
    "$anchor",
    "definitions",
    "title",
    "description",
    "default",
    "examples",
    "deprecated",
    "readOnly",
    "writeOnly",
];

fn asks(keyword: &str) -> bool {
    !ASK_NOTHING.contains(&keyword)
}

/// Whether a schema says nothing itself, and which one does.
enum LeadsOn<'s> {
    No,
    Reference(&'s str),
    To(&'s Value),
    ToOrNull(&'s Value),
}

fn leads_on(members: &Members) -> LeadsOn<'_> {
    if let Some(Value::String(reference)) = only(members, "$ref") {
        return LeadsOn::Reference(reference);
    }
    let branches = |keyword| {
        only(members, keyword)
            .and_then(Value::as_array)
            .map(Vec::as_slice)
    };
    if let Some([one]) = branches("allOf")
        .or(branches("anyOf"))
        .or(branches("oneOf"))
    {
        return LeadsOn::To(one);
    }
    let is_null = |schema: &Value| {
        let members = schema.as_object();
        let name = members.and_then(|members| only(members, "type"));
        name.and_then(Value::as_str) == Some("null")
    };
    match branches("anyOf").or(branches("oneOf")) {
        Some([one, null]) if is_null(null) => LeadsOn::ToOrNull(one),
        Some([null, one]) if is_null(null) => LeadsOn::ToOrNull(one),
        _ => LeadsOn::No,
    }
}

/// The value of `keyword`, if nothing else is asked.
fn only<'s>(members: &'s Members, keyword: &str) -> Option<&'s Value> {
    match members.keys().any(|name| name != keyword && asks(name)) {
        true => None,
        false => members.get(keyword),
    }
}

/// A branch that allows one value, with what it is called.
fn titled(branch: &Value) -> Option<(Option<&str>, &Value)> {
    let members = branch.as_object()?;
    let value = only(members, "const")?;
    Some((members.get("title").and_then(Value::as_str), value))
}

/// The one type that is allowed beside null, if there is one; and whether null is.
fn type_of(members: &Members) -> (Option<&str>, bool) {
    match members.get("type") {
        Some(Value::String(name)) => (Some(name), false),
        Some(Value::Array(names)) => {
            let mut others = names
                .iter()
                .filter_map(Value::as_str)
                .filter(|name| *name != "null");
            let one = others.next().filter(|_| others.next().is_none());
            let null = names.iter().any(|name| name == "null");
            (one, null && one.is_some())
        }
        _ => (members.get("properties").map(|_| "object"), false),
    }
}

/// The rules that the schema has for a value, in words.
fn rules(members: &Members, kind: &Kind<'_>) -> String {
    let number = |name: &str| members.get(name).filter(|value| value.is_number());
    let mut rules: Vec<String> = Vec::new();
    let mut say = |name: &str, before: &str, after: &str| {
        if let Some(value) = number(name).map(ToString::to_string) {
            let one = after.strip_suffix('s').filter(|_| value == "1");
            rules.push(format!("{before} {value}{}", one.unwrap_or(after)));
        }
    };
    match kind {
        Kind::Text { .. } => {
            say("minLength", "at least", " characters");
            say("maxLength", "at most", " characters");
        }
        Kind::Number { .. } => {
            say("minimum", "at least", "");
            say("exclusiveMinimum", "more than", "");
            say("maximum", "at most", "");
            say("exclusiveMaximum", "less than", "");
            say("multipleOf", "a multiple of", "");
        }
        Kind::Several(_) => {
            say("minItems", "at least", " of these");
            say("maxItems", "at most", " of these");
        }
        _ => {}
    }
    match kind {
        Kind::Number { whole: true, .. } => rules.insert(0, "a whole number".to_owned()),
        Kind::Text {
            pattern, format, ..
        } => {
            match *format {
                Some("date") => rules.push("a date, such as 2026-12-01".to_owned()),
                Some("date-time") => rules.push(
                    "a date and time with its offset from UTC, such as 2026-12-01T09:30:00Z"
                        .to_owned(),
                ),
                Some("email") => rules.push("an e-mail address".to_owned()),
                Some("uri") => rules.push("an address such as https://example.com/".to_owned()),
                _ => {}
            }
            if let Some(pattern) = pattern.filter(|pattern| pattern.len() <= HINT_CHARS_MAX) {
                rules.push(format!("of the pattern {pattern}"));
            }
        }
        _ => {}
    }
    let sentence = rules.join(", ");
    let mut characters = sentence.chars();
    match characters.next() {
        None => String::new(),
        Some(first) => format!("{}{}", first.to_uppercase(), characters.as_str()),
    }
}

/// JSON for people to read: all digits, members in their order, a line each. On one line where that
/// would be too long.
pub(super) fn pretty(value: &Value) -> String {
    struct Bounded(Vec<u8>);

    impl std::io::Write for Bounded {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            if self.0.len().saturating_add(bytes.len()) > APPROVAL_PRETTY_BYTES_MAX {
                return Err(std::io::ErrorKind::FileTooLarge.into());
            }
            self.0.extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    let mut written = Bounded(Vec::new());
    match serde_json::to_writer_pretty(&mut written, value) {
        Ok(()) => String::from_utf8(written.0).unwrap_or_else(|_| json::write(value)),
        Err(_) => json::write(value),
    }
}

fn cut(text: &str, chars: usize) -> String {
    match text.char_indices().nth(chars) {
        None => text.to_owned(),
        Some((at, _)) => format!("{}…", text.get(..at).unwrap_or_default()),
    }
}
