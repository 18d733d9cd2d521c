//! From outside bytes to a value: the one door, and what it keeps out.

use core::str;

use serde_json::{Map, Number, Value};

use super::scan::{NotJson, Scanner, Text};
use super::{Violation, pointer};
use crate::words::limits::{
    JSON_DEPTH_MAX, JSON_STORED_DEPTH_MAX, POINTER_BYTES_MAX, VIOLATIONS_MAX,
};

/// `serde_json` with arbitrary precision carries a number through serde as an object with the first
/// name, and raw text as one with the second. An object from outside that bears such a name would
/// silently turn into a number, or into unchecked text, the next time it passes through serde.
const PRIVATE_NAMES: [&str; 2] = [
    "$serde_json::private::Number",
    "$serde_json::private::RawValue",
];

/// Reads JSON from outside: the only way for outside bytes to become a [`Value`].
///
/// Beside what is no JSON (RFC 8259) it refuses what could not be carried on exactly: invalid
/// UTF-8, a byte order mark, nesting beyond [`JSON_DEPTH_MAX`], a member name that is used twice,
/// U+0000 and lone surrogates in strings and names, a number that is not finite as a double, and
/// the names that `serde_json` keeps for itself. Numbers keep their spelling, members their order.
///
/// The violations are all that were found, at most [`VIOLATIONS_MAX`]; there is at least one.
/// Reading ends at the first that leaves the rest without meaning.
///
/// The spelling of a number lasts from here to [`write`](super::write). On a way through serde
/// (`serde_json::from_value`, a `Value` in a derived struct) an exponent is respelled, `1E5` as
/// `1e+5`; the canonical form is the same.
pub fn read(bytes: &[u8]) -> Result<Value, Vec<Violation>> {
    read_within(bytes, JSON_DEPTH_MAX)
}

/// Reads JSON that the system itself wrote, such as a stored row or a queue's message. As [`read`],
/// but for the frames that have been put around an outside value of full depth:
/// [`JSON_STORED_DEPTH_MAX`].
pub fn read_stored(bytes: &[u8]) -> Result<Value, Vec<Violation>> {
    read_within(bytes, JSON_STORED_DEPTH_MAX)
}

fn read_within(bytes: &[u8], depth_max: usize) -> Result<Value, Vec<Violation>> {
    let whole = |message: &str| Err(vec![Violation::new("", message)]);
    if bytes.starts_with(b"\xef\xbb\xbf") {
        return whole("The text starts with a byte order mark; JSON is sent without one.");
    }
    let text = match str::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) => {
            let at = error.valid_up_to();
            return whole(&format!("The text is not UTF-8 from byte {at} on."));
        }
    };
    let mut reader = Reader {
        scanner: Scanner::new(text),
        depth_left: depth_max,
        depth_max,
        pointer: String::new(),
        violations: Vec::new(),
    };
    match reader.document() {
        Ok(value) if reader.violations.is_empty() => return Ok(value),
        Ok(_) | Err(Stop::Told) => {}
        Err(Stop::NotJson(error)) => reader.report(error.message(text)),
    }
    Err(reader.violations)
}

/// Why reading ended early.
enum Stop {
    NotJson(NotJson),
    /// What is wrong stands among the violations.
    Told,
}

impl From<NotJson> for Stop {
    fn from(error: NotJson) -> Self {
        Self::NotJson(error)
    }
}

/// One pass by recursive descent, over bytes that are each looked at once. It does not build on
/// `serde_json`'s own reader, because a visitor of that one can tell neither a number from an
/// object with the private name, nor `1E5` from `1e+5`, and raw slices would be scanned again at
/// each level. The tests hold it against that reader.
struct Reader<'t> {
    scanner: Scanner<'t>,
    depth_left: usize,
    depth_max: usize,
    pointer: String,
    violations: Vec<Violation>,
}

impl Reader<'_> {
    fn document(&mut self) -> Result<Value, Stop> {
        let value = self.value()?;
        self.scanner.skip_space();
        if self.scanner.peek().is_some() {
            Err(self.scanner.expected("nothing after the value"))?;
        }
        Ok(value)
    }

    fn value(&mut self) -> Result<Value, Stop> {
        self.scanner.skip_space();
        match self.scanner.peek() {
            Some(b'{') => self.nested(Self::object),
            Some(b'[') => self.nested(Self::array),
            Some(b'"') => {
                let Text { text, flaw } = self.scanner.string()?;
                if let Some(flaw) = flaw {
                    self.note(format!("This string {flaw}."))?;
                }
                Ok(Value::String(text))
            }
            Some(b'-' | b'0'..=b'9') => self.number(),
            _ if self.scanner.eat_word("true") => Ok(Value::Bool(true)),
            _ if self.scanner.eat_word("false") => Ok(Value::Bool(false)),
            _ if self.scanner.eat_word("null") => Ok(Value::Null),
            _ => Err(self.scanner.expected("a value"))?,
        }
    }

    fn number(&mut self) -> Result<Value, Stop> {
        let digits = self.scanner.number()?;
        if !digits.parse::<f64>().is_ok_and(f64::is_finite) {
            self.note("This number is beyond the range of a double.".to_owned())?;
        }
        // The public ways to make a `Number` of a text respell its exponent. The text has just been
        // found to be a JSON number, which is all that this one leaves unchecked.
        Ok(Value::Number(Number::from_string_unchecked(
            digits.to_owned(),
        )))
    }

    /// Guards the stack: recursion goes no deeper than the permitted nesting.
    fn nested(&mut self, read: fn(&mut Self) -> Result<Value, Stop>) -> Result<Value, Stop> {
        let Some(left) = self.depth_left.checked_sub(1) else {
            let most = self.depth_max;
            self.report(format!(
                "Arrays and objects are nested here more than {most} deep."
            ));
            return Err(Stop::Told);
        };
        self.depth_left = left;
        let value = read(self);
        self.depth_left += 1;
        value
    }

    fn array(&mut self) -> Result<Value, Stop> {
        self.scanner.eat(b'[');
        let mut items = Vec::new();
        self.scanner.skip_space();
        if self.scanner.eat(b']') {
            return Ok(Value::Array(items));
        }
        let here = self.pointer.len();
        loop {
            pointer::append(&mut self.pointer, &items.len().to_string());
            items.push(self.value()?);
            self.pointer.truncate(here);
            self.scanner.skip_space();
            if self.scanner.eat(b']') {
                // A vector starts with room for four, which a body of many `[1]` cannot afford.
                items.shrink_to_fit();
                return Ok(Value::Array(items));
            }
            if !self.scanner.eat(b',') {
                Err(self.scanner.expected("`,` or `]`"))?;
            }
        }
    }

    fn object(&mut self) -> Result<Value, Stop> {
        self.scanner.eat(b'{');
        let mut members = Map::new();
        self.scanner.skip_space();
        if self.scanner.eat(b'}') {
            return Ok(Value::Object(members));
        }
        let here = self.pointer.len();
        loop {
            self.scanner.skip_space();
            if self.scanner.peek() != Some(b'"') {
                Err(self.scanner.expected("a member name in double quotes"))?;
            }
            let name = self.name(&members)?;
            self.scanner.skip_space();
            if !self.scanner.eat(b':') {
                Err(self.scanner.expected("`:` after a member name"))?;
            }
            let value = self.value()?;
            members.insert(name, value);
            self.pointer.truncate(here);
            self.scanner.skip_space();
            if self.scanner.eat(b'}') {
                return Ok(Value::Object(members));
            }
            if !self.scanner.eat(b',') {
                Err(self.scanner.expected("`,` or `}`"))?;
            }
        }
    }

    /// Takes a member name and leads the pointer to it. A flaw of the name itself is reported at
    /// the object: a pointer cannot hold such a name.
    fn name(&mut self, members: &Map<String, Value>) -> Result<String, Stop> {
        let Text { text: name, flaw } = self.scanner.string()?;
        if let Some(flaw) = flaw {
            self.note(format!("A member name of this object {flaw}."))?;
        }
        pointer::append(&mut self.pointer, &name);
        if PRIVATE_NAMES.contains(&name.as_str()) {
            self.note("This member name is reserved and cannot be carried.".to_owned())?;
        } else if flaw.is_none() && members.contains_key(&name) {
            self.note("This member name is used more than once in its object.".to_owned())?;
        }
        Ok(name)
    }

    /// Records a flaw that leaves the rest readable, and stops when there are enough of them.
    fn note(&mut self, message: String) -> Result<(), Stop> {
        self.report(message);
        if self.violations.len() < VIOLATIONS_MAX {
            Ok(())
        } else {
            Err(Stop::Told)
        }
    }

    fn report(&mut self, message: String) {
        if self.pointer.len() <= POINTER_BYTES_MAX {
            self.violations
                .push(Violation::new(self.pointer.as_str(), message));
            return;
        }
        // A long pointer is as large as the document, once for each flaw. A piece of a pointer would
        // name another place, so the nearest one above is named.
        let end = self.pointer.floor_char_boundary(POINTER_BYTES_MAX + 1);
        let within = self.pointer.get(..end).unwrap_or_default();
        let above = within.rfind('/').and_then(|at| within.get(..at));
        let message = format!("{message} (Somewhere within this place.)");
        self.violations
            .push(Violation::new(above.unwrap_or_default(), message));
    }
}

#[cfg(test)]
#[path = "read_tests.rs"]
mod tests;
