//! JSON Schema: the system's own, which are files under `schemas/`, and those that users bring.
//!
//! ```text
//! validate("envelope", value)         own schemas     compiled once per thread, kept
//! check(schema)                       a user's        is it usable here, and bounded?
//! validate_with(schema, value, at)    a user's        compiled, the last few kept
//! openapi()                           own schemas, put into the document that names the routes
//! ```
//!
//! The engine is the crate `jsonschema`, draft 2020-12, with numbers of any size compared exactly
//! and patterns matched in linear time. Nothing is ever fetched. `format` is an annotation.
//!
//! A [`Violation`] points at the place a person mends: the missing member itself, the member that
//! should not be there, and inside the branch of an `anyOf` that was most likely meant.
//!
//! Compiled schemas live in thread locals: a Worker has one thread, and nothing waits for another
//! request's work.

pub mod embedded;
pub mod engine;
mod explain;
mod graph;
mod openapi;
mod usable;

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use jsonschema::Validator;

use crate::json::{self, Value};
use crate::words::sha256;

pub use crate::json::Violation;
pub use openapi::openapi;
pub use usable::check;

use usable::Usable;

/// Violations named in one answer: enough to mend a document, few enough to read.
pub const VIOLATIONS_MAX: usize = 50;
/// Characters of a violation's message; what does not fit is cut and marked with `…`.
pub const MESSAGE_CHARS_MAX: usize = 300;
/// Compiled schemas of users that a thread keeps.
pub const CACHE_ENTRIES_MAX: usize = 64;
/// What the compiled schemas that a thread keeps may weigh together, in estimated bytes: all
/// tenants of an isolate share its 128 MB.
pub const CACHE_BYTES_MAX: usize = 32 * 1024 * 1024;

thread_local! {
    static OWN: RefCell<HashMap<&'static str, Rc<Validator>>> = RefCell::new(HashMap::new());
    static USERS: RefCell<Recent<Usable>> = const { RefCell::new(Recent::new()) };
}

/// Checks `instance` against the embedded schema called `name`; pointers start at the instance.
///
/// A name that is not embedded is a violation of its own, so a caller's slip is an answer and not
/// a panic. Source of the names: [`embedded::ALL`].
pub fn validate(name: &str, instance: &Value) -> Result<(), Vec<Violation>> {
    validate_at(name, instance, "")
}

/// As [`validate`], for an instance that is part of a larger document: every pointer starts with
/// `prefix`, a JSON Pointer such as `/payload`.
pub fn validate_at(name: &str, instance: &Value, prefix: &str) -> Result<(), Vec<Violation>> {
    let validator = own(name).map_err(|message| vec![Violation::new(prefix, message)])?;
    if validator.is_valid(instance) {
        return Ok(());
    }
    Err(explain::own(&validator, instance, prefix))
}

/// Checks `instance` against a user's schema; every pointer starts with `prefix`.
///
/// A schema that cannot be used (see [`check`]) refuses every instance with one violation at
/// `prefix` that says so: definitions are checked when they are stored, so this is a stored
/// definition that this build no longer accepts.
pub fn validate_with(schema: &Value, instance: &Value, prefix: &str) -> Result<(), Vec<Violation>> {
    let usable = users(schema).map_err(|flaws| {
        let flaw = flaws.first().map_or("", |flaw| flaw.message.as_str());
        vec![Violation::new(
            prefix,
            explain::cut(&format!("its schema cannot be used: {flaw}")),
        )]
    })?;
    let work = usable.costs.at(json::depth(instance));
    if work.nested > usable::NESTED_MAX {
        let message = "the value is nested too deep to be checked by its schema";
        return Err(vec![Violation::new(prefix, message)]);
    }
    if usable.validator.is_valid(instance) {
        return Ok(());
    }
    Err(explain::users(&usable, work, instance, prefix))
}

fn own(name: &str) -> Result<Rc<Validator>, String> {
    let Some(entry) = embedded::ALL.iter().find(|entry| entry.name == name) else {
        return Err(format!("there is no schema named {name:?}"));
    };
    if let Some(known) = OWN.with_borrow(|own| own.get(entry.name).cloned()) {
        return Ok(known);
    }
    let validator = Rc::new(engine::compile_own(entry)?);
    OWN.with_borrow_mut(|own| own.insert(entry.name, Rc::clone(&validator)));
    Ok(validator)
}

fn users(schema: &Value) -> Result<Rc<Usable>, Vec<Violation>> {
    let digest = sha256(json::canonical(schema).as_bytes());
    if let Some(known) = USERS.with_borrow_mut(|recent| recent.get(&digest)) {
        return Ok(known);
    }
    let usable = Rc::new(usable::compile(schema, "")?);
    USERS.with_borrow_mut(|recent| recent.put(digest, Rc::clone(&usable), usable.bytes));
    Ok(usable)
}

/// What was used last, the latest at the end, within bounds of number and weight.
struct Recent<T> {
    entries: Vec<([u8; 32], Rc<T>, usize)>,
}

impl<T> Recent<T> {
    const fn new() -> Self {
        Self {
            entries: Vec::new(),
        }
    }

    fn get(&mut self, digest: &[u8; 32]) -> Option<Rc<T>> {
        let at = self
            .entries
            .iter()
            .position(|(known, ..)| known == digest)?;
        let entry = self.entries.remove(at);
        let found = Rc::clone(&entry.1);
        self.entries.push(entry);
        Some(found)
    }

    fn put(&mut self, digest: [u8; 32], one: Rc<T>, bytes: usize) {
        self.entries.push((digest, one, bytes));
        while self.entries.len() > 1
            && (self.entries.len() > CACHE_ENTRIES_MAX || self.bytes() > CACHE_BYTES_MAX)
        {
            self.entries.remove(0);
        }
    }

    fn bytes(&self) -> usize {
        self.entries
            .iter()
            .fold(0, |sum, (.., bytes)| sum.saturating_add(*bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cache_is_bounded_by_number_and_by_weight() {
        let one = Rc::new(());
        let mut recent = Recent::new();
        for n in 0..100_u8 {
            recent.put([n; 32], Rc::clone(&one), 1);
            assert!(recent.get(&[0; 32]).is_some(), "the one in use stays");
        }
        assert_eq!(recent.entries.len(), CACHE_ENTRIES_MAX);
        recent.put([200; 32], Rc::clone(&one), CACHE_BYTES_MAX);
        assert_eq!(recent.entries.len(), 1);
        recent.put([201; 32], one, usize::MAX);
        assert_eq!(
            recent.entries.len(),
            1,
            "one that is too heavy is kept alone"
        );
    }
}
