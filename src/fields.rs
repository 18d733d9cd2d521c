//! Reading the members of a definition so that every flaw is named at once.
//!
//! [`Fields`] is one object and where it stands; [`Flaws`] collects what is wrong with it and with
//! everything below. A read that fails leaves a flaw and answers None, so the caller goes on.

use std::fmt::Display;
use std::ops::RangeInclusive;

use serde_json::{Map, Value};

use crate::json::{Violation, pointer};
use crate::words::limits::VIOLATIONS_MAX;
use crate::words::{DurationMs, TimeError};

/// What is wrong with a definition, in the order in which it was found.
#[derive(Debug, Default)]
pub struct Flaws {
    found: Vec<Violation>,
}

impl Flaws {
    /// Notes one flaw.
    pub fn add(&mut self, pointer: impl Into<String>, message: impl Into<String>) {
        self.found.push(Violation::new(pointer, message));
    }

    /// Notes the flaws of a part that stands at `pointer`.
    pub fn add_all(&mut self, pointer: &str, part: Vec<Violation>) {
        for violation in part {
            self.add(format!("{pointer}{}", violation.pointer), violation.message);
        }
    }

    /// The value, if it has no flaw.
    ///
    /// # Errors
    /// The flaws, at least one; of very many the first, and how many more there are.
    pub fn none_in<T>(mut self, value: T) -> Result<T, Vec<Violation>> {
        if self.found.is_empty() {
            return Ok(value);
        }
        if self.found.len() > VIOLATIONS_MAX {
            let more = self.found.len() - (VIOLATIONS_MAX - 1);
            self.found.truncate(VIOLATIONS_MAX - 1);
            self.add("", format!("and {more} more like these"));
        }
        Err(self.found)
    }
}

/// The members of one object, and its pointer.
#[derive(Clone, Debug)]
pub struct Fields<'v> {
    members: &'v Map<String, Value>,
    pointer: String,
}

impl<'v> Fields<'v> {
    /// None, and a flaw, where the value is no object.
    pub fn of(value: &'v Value, pointer: impl Into<String>, flaws: &mut Flaws) -> Option<Self> {
        let pointer = pointer.into();
        match value {
            Value::Object(members) => Some(Self { members, pointer }),
            _ => {
                flaws.add(pointer, "this must be an object");
                None
            }
        }
    }

    /// A flaw for each member that is not named in `known`: a typo is never silently ignored.
    pub fn refuse_unknown(&self, known: &[&str], flaws: &mut Flaws) {
        for name in self.members.keys() {
            if !known.contains(&name.as_str()) {
                flaws.add(
                    self.at(name),
                    format!(
                        "{:?} is not known here; known are {}",
                        shorten(name),
                        known.join(", ")
                    ),
                );
            }
        }
    }

    /// The member of that name, of whatever type.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&'v Value> {
        self.members.get(name)
    }

    /// All members, in their order.
    pub fn iter(&self) -> impl Iterator<Item = (&'v str, &'v Value)> {
        self.members
            .iter()
            .map(|(name, value)| (name.as_str(), value))
    }

    /// The pointer of that member, there or not.
    #[must_use]
    pub fn at(&self, name: impl Display) -> String {
        pointer::push(&self.pointer, name)
    }

    /// The pointer of the object.
    #[must_use]
    pub fn pointer(&self) -> &str {
        &self.pointer
    }

    /// The object of that name.
    pub fn object(&self, name: &str, flaws: &mut Flaws) -> Option<Fields<'v>> {
        Fields::of(self.get(name)?, self.at(name), flaws)
    }

    /// The array of that name.
    pub fn array(&self, name: &str, flaws: &mut Flaws) -> Option<&'v [Value]> {
        match self.get(name)? {
            Value::Array(items) => Some(items),
            _ => {
                flaws.add(self.at(name), "this must be an array");
                None
            }
        }
    }

    /// The string of that name.
    pub fn text(&self, name: &str, flaws: &mut Flaws) -> Option<&'v str> {
        let text = self.get(name)?.as_str();
        if text.is_none() {
            flaws.add(self.at(name), "this must be a string");
        }
        text
    }

    /// The string of that name, a flaw where there is none.
    pub fn required_text(&self, name: &str, flaws: &mut Flaws) -> Option<&'v str> {
        if self.get(name).is_none() {
            flaws.add(self.pointer.clone(), format!("\"{name}\" is missing"));
        }
        self.text(name, flaws)
    }

    /// The boolean of that name.
    pub fn boolean(&self, name: &str, flaws: &mut Flaws) -> Option<bool> {
        let boolean = self.get(name)?.as_bool();
        if boolean.is_none() {
            flaws.add(self.at(name), "this must be true or false");
        }
        boolean
    }

    /// The whole number of that name, within `range`.
    pub fn integer(
        &self,
        name: &str,
        range: RangeInclusive<u64>,
        flaws: &mut Flaws,
    ) -> Option<u64> {
        let number = self
            .get(name)?
            .as_u64()
            .filter(|number| range.contains(number));
        if number.is_none() {
            flaws.add(
                self.at(name),
                format!(
                    "this must be a whole number from {} to {}",
                    range.start(),
                    range.end()
                ),
            );
        }
        number
    }

    /// The ISO 8601 duration of that name, at most `max`, in milliseconds.
    pub fn duration_ms(&self, name: &str, max: DurationMs, flaws: &mut Flaws) -> Option<i64> {
        let text = self.text(name, flaws)?;
        match duration_ms(text, max) {
            Ok(ms) => Some(ms),
            Err(message) => {
                flaws.add(self.at(name), message);
                None
            }
        }
    }

    /// The value that the string of that name stands for.
    pub fn choice<T: Copy>(
        &self,
        name: &str,
        choices: &[(&str, T)],
        flaws: &mut Flaws,
    ) -> Option<T> {
        let found = self.get(name)?.as_str();
        let choice = choices
            .iter()
            .find_map(|(word, choice)| (found == Some(*word)).then_some(*choice));
        if choice.is_none() {
            let words: Vec<&str> = choices.iter().map(|(word, _)| *word).collect();
            flaws.add(
                self.at(name),
                format!("this must be one of {}", words.join(", ")),
            );
        }
        choice
    }

    /// The JSON Schema of that name: an object or a boolean. What it says is not looked into here.
    pub fn schema(&self, name: &str, flaws: &mut Flaws) -> Option<Value> {
        match self.get(name)? {
            schema @ (Value::Object(_) | Value::Bool(_)) => Some(schema.clone()),
            _ => {
                flaws.add(
                    self.at(name),
                    "a JSON Schema is an object, or true or false",
                );
                None
            }
        }
    }
}

fn duration_ms(text: &str, max: DurationMs) -> Result<i64, String> {
    match DurationMs::parse(text) {
        Ok(duration) if duration <= max => Ok(duration.ms()),
        Ok(_) | Err(TimeError::TooLong) => Err(format!("this is too long: at most {max}")),
        Err(error) => Err(error.to_string()),
    }
}

/// Enough of a text to know it again in a message.
#[must_use]
pub fn shorten(text: &str) -> String {
    const CHARS_MAX: usize = 80;
    let mut short: String = text.chars().take(CHARS_MAX).collect();
    if short.len() < text.len() {
        short.push('…');
    }
    short
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_flaw_is_named_and_its_place_with_it() {
        let value = json!({ "a/b": 1, "n": 1.5, "t": 1, "d": "5 parsecs", "w": "x" });
        let mut flaws = Flaws::default();
        let fields = Fields::of(&value, "/at", &mut flaws).unwrap();
        fields.refuse_unknown(&["n", "t", "d", "w"], &mut flaws);
        assert_eq!(fields.integer("n", 1..=9, &mut flaws), None);
        assert_eq!(fields.text("t", &mut flaws), None);
        assert_eq!(fields.duration_ms("d", DurationMs::MAX, &mut flaws), None);
        assert_eq!(fields.choice("w", &[("y", 1), ("z", 2)], &mut flaws), None);
        assert_eq!(fields.required_text("gone", &mut flaws), None);
        assert_eq!(fields.text("absent", &mut flaws), None);
        let found = flaws.none_in(()).unwrap_err();
        let pointers: Vec<&str> = found.iter().map(|v| v.pointer.as_str()).collect();
        assert_eq!(
            pointers,
            ["/at/a~1b", "/at/n", "/at/t", "/at/d", "/at/w", "/at"]
        );
    }

    #[test]
    fn a_flood_of_flaws_is_cut_and_counted() {
        let mut flaws = Flaws::default();
        for _ in 0..VIOLATIONS_MAX + 10 {
            flaws.add("/x", "no");
        }
        let found = flaws.none_in(()).unwrap_err();
        assert_eq!(found.len(), VIOLATIONS_MAX);
        assert_eq!(found.last().unwrap().message, "and 11 more like these");
    }
}
