//! How `jsonschema` is set up: one place, so that the conformance suite tests what is used.

use std::error::Error;
use std::fmt;

use jsonschema::{Draft, PatternOptions, Retrieve, Uri, ValidationOptions, Validator};

use crate::json::Value;

use super::embedded::{self, Embedded};

/// Where the embedded schemas are said to be while they are compiled. Their `$id` is an absolute
/// path, so that it names the server they came from; the top-level domain can never exist.
pub(super) const BASE: &str = "https://dormouse.invalid";

/// The compiled size of one pattern, in bytes.
pub(super) const PATTERN_BYTES_MAX: usize = 256 * 1024;

/// The settings every schema is compiled with: draft 2020-12 unless `$schema` names another,
/// patterns in linear time, and no reference leaves the process.
pub fn options<'i>() -> ValidationOptions<'i> {
    jsonschema::options()
        .with_pattern_options(
            PatternOptions::regex()
                .size_limit(PATTERN_BYTES_MAX)
                .dfa_size_limit(PATTERN_BYTES_MAX),
        )
        .should_validate_formats(false)
        .with_retriever(Own)
}

/// Compiles an embedded schema. The error is a sentence; a test compiles every one of them.
pub(super) fn compile_own(entry: &Embedded) -> Result<Validator, String> {
    let schema: Value = serde_json::from_str(entry.text)
        .map_err(|error| format!("the schema {:?} is not JSON: {error}", entry.name))?;
    options()
        .with_draft(Draft::Draft202012)
        .with_base_uri(format!("{BASE}/schemas/{}.json", entry.name))
        .build(&schema)
        .map_err(|error| format!("the schema {:?} does not compile: {error}", entry.name))
}

/// Hands out embedded schemas and refuses everything else.
struct Own;

impl Retrieve for Own {
    fn retrieve(&self, uri: &Uri<String>) -> Result<Value, Box<dyn Error + Send + Sync>> {
        let name = uri
            .as_str()
            .strip_prefix(BASE)
            .and_then(|path| path.strip_prefix("/schemas/"))
            .and_then(|file| file.strip_suffix(".json"));
        let text = name.and_then(embedded::text).ok_or(NeverFetched)?;
        Ok(serde_json::from_str(text)?)
    }
}

#[derive(Debug)]
struct NeverFetched;

impl fmt::Display for NeverFetched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a schema is never fetched; put it under $defs and refer to it as #/$defs/…")
    }
}

impl Error for NeverFetched {}
