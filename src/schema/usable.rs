//! Whether a schema that a user brings can be used here: valid, self-contained, and bounded in the
//! work and memory it can cause.

use jsonschema::Validator;
use jsonschema::error::ValidationErrorKind;

use crate::json::{self, Value, pointer};
use crate::words::limits::JSON_STORED_DEPTH_MAX;

use super::graph::{Costs, Graph};
use super::{VIOLATIONS_MAX, Violation, engine, explain};

/// Encoded size of a schema, in bytes.
pub const SCHEMA_BYTES_MAX: usize = 64 * 1024;
/// Nesting of a schema.
pub const SCHEMA_DEPTH_MAX: usize = 64;
/// Subschemas of a schema.
pub const SUBSCHEMAS_MAX: usize = 2_000;
/// Patterns of a schema: each compiles to a machine of up to a quarter of a megabyte.
pub const PATTERNS_MAX: usize = 100;
/// Subschemas that look at one place of an instance, references followed.
pub const AT_ONE_PLACE_MAX: u64 = 10_000;

/// Subschemas within subschemas while a value is looked at: they take the stack of a wasm module,
/// which is one megabyte, and running out of it ends the whole isolate.
pub const NESTED_MAX: u32 = 512;

/// What `$schema` may say. Without it a schema is of draft 2020-12.
const DRAFTS: [&str; 5] = [
    "https://json-schema.org/draft/2020-12/schema",
    "https://json-schema.org/draft/2019-09/schema",
    "http://json-schema.org/draft-07/schema",
    "http://json-schema.org/draft-06/schema",
    "http://json-schema.org/draft-04/schema",
];

/// Checks that `schema` can be used for a tool's parameters or result, an agent's input and the
/// like: valid by its meta-schema, no reference out of it, no pattern that needs more than linear
/// time, and within the bounds of this module.
///
/// Violations point into the schema, after `prefix` (where it stands in its definition, such as
/// `/parameters`).
pub fn check(schema: &Value, prefix: &str) -> Result<(), Vec<Violation>> {
    compile(schema, prefix).map(|_| ())
}

/// A user's schema, ready for use.
pub(super) struct Usable {
    pub validator: Validator,
    pub costs: Costs,
    /// What it weighs in memory, roughly and rather too much.
    pub bytes: usize,
}

/// Checks and compiles.
pub(super) fn compile(schema: &Value, prefix: &str) -> Result<Usable, Vec<Violation>> {
    let refuse = |at: &str, message: String| {
        Err(vec![Violation::new(
            format!("{prefix}{at}"),
            explain::cut(&message),
        )])
    };
    if !matches!(schema, Value::Object(_) | Value::Bool(_)) {
        let found = explain::preview(schema);
        return refuse(
            "",
            format!("expected a JSON Schema (an object, true or false), got {found}"),
        );
    }
    if let Some(at) = too_deep(schema, SCHEMA_DEPTH_MAX) {
        return refuse(
            &at,
            format!("the schema is nested more than {SCHEMA_DEPTH_MAX} deep here"),
        );
    }
    let bytes = json::bytes_len(schema);
    if bytes > SCHEMA_BYTES_MAX {
        return refuse(
            "",
            format!("the schema has {bytes} bytes, of at most {SCHEMA_BYTES_MAX}"),
        );
    }
    if let Some(draft) = schema.get("$schema") {
        let known = draft
            .as_str()
            .is_some_and(|uri| DRAFTS.contains(&uri.trim_end_matches('#')));
        if !known {
            let found = explain::preview(draft);
            return refuse(
                "/$schema",
                format!("expected {}, got {found}", DRAFTS.join(" or ")),
            );
        }
    }
    let flaws = match jsonschema::meta::validator_for(schema) {
        Ok(meta) if meta.is_valid(schema) => Vec::new(),
        Ok(meta) => explain::all(meta.iter_errors(schema), prefix),
        Err(error) => vec![Violation::new(prefix, explain::cut(&error.to_string()))],
    };
    if !flaws.is_empty() {
        return Err(flaws);
    }

    let Ok(graph) = Graph::read(schema, SUBSCHEMAS_MAX) else {
        return refuse(
            "",
            format!("the schema has more than {SUBSCHEMAS_MAX} subschemas"),
        );
    };
    let mut flaws: Vec<Violation> = Vec::new();
    let mut flaw = |at: &str, message: String| {
        if flaws.len() < VIOLATIONS_MAX {
            flaws.push(Violation::new(
                format!("{prefix}{at}"),
                explain::cut(&message),
            ));
        }
    };
    for (at, text) in &graph.foreign {
        let text = explain::preview(&Value::String(text.clone()));
        flaw(
            at,
            format!(
                "refers to {text}, which is not in this schema; schemas are never fetched: put it under $defs and refer to it as #/$defs/…"
            ),
        );
    }
    for at in &graph.inner_ids {
        flaw(
            at,
            "only the whole schema may have an $id; refer to parts of it as #/$defs/…".into(),
        );
    }
    if graph.patterns.len() > PATTERNS_MAX {
        let count = graph.patterns.len();
        flaw(
            "",
            format!("the schema has {count} patterns, of at most {PATTERNS_MAX}"),
        );
    }
    let costs = graph.costs(JSON_STORED_DEPTH_MAX);
    match &costs {
        None => flaw(
            "",
            "the schema refers to itself without going deeper into the value".into(),
        ),
        Some(costs) if costs.at_one_place > AT_ONE_PLACE_MAX => {
            let count = costs.at_one_place;
            flaw(
                "",
                format!(
                    "with its references followed, {count} subschemas look at one place of a value, of at most {AT_ONE_PLACE_MAX}"
                ),
            );
        }
        Some(_) => {}
    }
    let Some(costs) = costs.filter(|_| flaws.is_empty()) else {
        return Err(flaws);
    };

    match engine::options().build(schema) {
        Ok(validator) => Ok(Usable {
            validator,
            costs,
            bytes: weight(bytes, &graph),
        }),
        Err(error) => {
            let mut flaws: Vec<Violation> = graph
                .patterns
                .iter()
                .filter(|(_, pattern)| !compiles(pattern))
                .take(VIOLATIONS_MAX)
                .map(|(at, _)| Violation::new(format!("{prefix}{at}"), UNUSABLE_PATTERN))
                .collect();
            if flaws.is_empty() {
                let at = format!("{prefix}{}", error.instance_path());
                let message = match error.kind() {
                    ValidationErrorKind::Referencing(reason) => reason.to_string(),
                    _ => error.to_string(),
                };
                flaws.push(Violation::new(at, explain::cut(&message)));
            }
            Err(flaws)
        }
    }
}

const UNUSABLE_PATTERN: &str = "this pattern cannot be used: it is no regular expression, it is \
    too large, or it looks around or back; only patterns that match in linear time are taken";

fn compiles(pattern: &str) -> bool {
    let schema = Value::from_iter([("pattern", pattern)]);
    engine::options().build(&schema).is_ok()
}

/// An estimate of the memory a compiled schema takes. Only repetition with a number and classes of
/// Unicode make a pattern much larger than its text.
fn weight(bytes: usize, graph: &Graph) -> usize {
    let patterns = graph.patterns.iter().map(|(_, text)| {
        if text.contains('{') || text.contains("\\p") || text.contains("\\P") {
            engine::PATTERN_BYTES_MAX
        } else {
            text.len().saturating_mul(512)
        }
    });
    let nodes = graph.len().saturating_mul(1024);
    patterns.fold(
        bytes.saturating_mul(8).saturating_add(nodes),
        usize::saturating_add,
    )
}

/// The first place that is nested deeper than `depth`. Recursion ends there.
fn too_deep(value: &Value, depth: usize) -> Option<String> {
    let under = |token: String, inner: &Value| match depth.checked_sub(1) {
        None => Some(pointer::push("", token)),
        Some(left) => too_deep(inner, left).map(|at| pointer::push("", token) + &at),
    };
    match value {
        Value::Object(members) => members
            .iter()
            .find_map(|(name, inner)| under(name.clone(), inner)),
        Value::Array(items) => items
            .iter()
            .enumerate()
            .find_map(|(place, inner)| under(place.to_string(), inner)),
        _ => None,
    }
}
