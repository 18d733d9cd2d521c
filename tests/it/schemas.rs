//! The schemas under `schemas/` and the validator: every example fits, every counter-example is
//! refused at the place it names, users' schemas are bounded, and the engine, set up as it is
//! here, passes the official suite.

#![allow(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test may fail loudly, and measures time"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use dormouse::agent::Agent;
use dormouse::json;
use dormouse::outbox::WorkMessage;
use dormouse::plan::Plan;
use dormouse::run::event::Event;
use dormouse::schema::{self, Violation, embedded, engine};
use dormouse::tool::Tool;
use serde_json::{Value, json};

fn schemas() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("schemas")
}

fn read(path: &Path) -> Value {
    let text = fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    parse(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn parse(text: &str) -> Result<Value, String> {
    serde_json::from_str(text).map_err(|error| error.to_string())
}

/// The JSON files of a folder, in the order of their names.
fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    let mut files: Vec<PathBuf> = entries
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|end| end == "json"))
        .collect();
    files.sort();
    files
}

fn stem(path: &Path) -> String {
    path.file_stem().unwrap().to_string_lossy().into_owned()
}

fn said(violations: &[Violation]) -> String {
    let lines = violations
        .iter()
        .map(|v| format!("  {:?}: {}", v.pointer, v.message));
    lines.collect::<Vec<_>>().join("\n")
}

#[test]
fn every_file_is_in_the_table() {
    let mut on_disk = BTreeSet::new();
    for (folder, is_event) in [(schemas(), false), (schemas().join("events"), true)] {
        for file in files(&folder) {
            on_disk.insert((stem(&file), is_event));
        }
    }
    on_disk.remove(&("openapi".to_owned(), false));
    let table: BTreeSet<(String, bool)> = embedded::ALL
        .iter()
        .map(|entry| (entry.name.to_owned(), entry.is_event))
        .collect();
    assert_eq!(
        on_disk, table,
        "left: the folder; right: src/schema/embedded.rs"
    );
    assert_eq!(table.len(), embedded::ALL.len(), "a name stands once");
}

#[test]
fn every_schema_says_what_it_is() {
    for entry in embedded::ALL {
        let schema = parse(entry.text).unwrap();
        assert_eq!(schema["$id"], format!("/schemas/{}.json", entry.name));
        assert_eq!(
            schema["$schema"],
            "https://json-schema.org/draft/2020-12/schema"
        );
        for member in ["title", "description", "x-version"] {
            assert!(
                schema[member].as_str().is_some_and(|text| !text.is_empty()),
                "{}",
                entry.name
            );
        }
        assert!(
            jsonschema::draft202012::meta::is_valid(&schema),
            "{}",
            entry.name
        );
    }
}

#[test]
fn every_example_fits() {
    for entry in embedded::ALL.iter().filter(|entry| entry.name != "common") {
        for file in files(&schemas().join("examples").join(entry.name)) {
            if let Err(found) = schema::validate(entry.name, &read(&file)) {
                panic!("{} is refused:\n{}", file.display(), said(&found));
            }
        }
    }
}

#[test]
fn every_counter_example_is_refused_where_it_says() {
    for entry in embedded::ALL.iter().filter(|entry| entry.name != "common") {
        for file in files(&schemas().join("counter-examples").join(entry.name)) {
            let case = read(&file);
            let (why, pointer) = (
                case["why"].as_str().unwrap(),
                case["pointer"].as_str().unwrap(),
            );
            let Err(found) = schema::validate(entry.name, &case["instance"]) else {
                panic!("{} is taken, though {why}", file.display());
            };
            assert!(
                found.iter().any(|violation| violation.pointer == pointer),
                "{} is not refused at {pointer:?}:\n{}",
                file.display(),
                said(&found)
            );
            for violation in &found {
                assert!(
                    violation.message.chars().count() <= 300,
                    "{}",
                    violation.message
                );
            }
            // One mistake is told in a few sentences.
            assert!(found.len() <= 3, "{}:\n{}", file.display(), said(&found));
            if std::env::var_os("SHOW").is_some() {
                println!("{}: {}\n{}", entry.name, stem(&file), said(&found));
            }
        }
    }
}

#[test]
fn no_example_is_of_an_unknown_schema() {
    for kind in ["examples", "counter-examples"] {
        for folder in fs::read_dir(schemas().join(kind)).unwrap() {
            let name = folder.unwrap().file_name().to_string_lossy().into_owned();
            assert!(embedded::text(&name).is_some(), "{kind}/{name}");
        }
    }
    assert_eq!(schema::validate("nothing", &json!(1)).unwrap_err().len(), 1);
}

#[test]
fn a_prefix_stands_before_every_pointer() {
    let found = schema::validate_at("tool.requested", &json!({ "tool": "A" }), "/3/payload");
    let pointers: Vec<String> = found.unwrap_err().into_iter().map(|v| v.pointer).collect();
    assert_eq!(pointers, ["/3/payload/arguments", "/3/payload/tool"]);
}

#[test]
fn a_secret_is_not_quoted() {
    let long = "hunter2".repeat(10_000);
    for secret in [
        json!({ "value": long }),
        json!({ "value": ["hunter2"] }),
        json!("hunter2"),
    ] {
        let found = schema::validate("secret-request", &secret).unwrap_err();
        assert!(!said(&found).contains("hunter2"), "{}", said(&found));
    }
}

/// The first violation of a user's schema, as `pointer: message`.
fn first(schema: &Value, instance: &str) -> Option<String> {
    let found = schema::validate_with(schema, &parse(instance).unwrap(), "/payload/arguments");
    found
        .err()
        .map(|found| format!("{}: {}", found[0].pointer, found[0].message))
}

#[test]
fn numbers_of_any_size_are_compared_exactly() {
    let integer = json!({ "type": "integer" });
    for text in [
        "1.0",
        "-0",
        "18446744073709551616",
        "-9223372036854775809",
        "1e2",
        "1e300",
    ] {
        assert_eq!(first(&integer, text), None, "{text}");
    }
    for text in [
        "1.5",
        "18446744073709551616.5",
        "1e-2",
        "\"1\"",
        "0.1000000000000000055511151231257827",
    ] {
        assert!(first(&integer, text).is_some(), "{text}");
    }
    let schema = |text: &str| parse(text).unwrap();
    let most = schema(r#"{ "maximum": 18446744073709551616 }"#);
    assert_eq!(first(&most, "18446744073709551616"), None);
    assert_eq!(
        first(&most, "18446744073709551617").unwrap(),
        "/payload/arguments: expected at most 18446744073709551616, got 18446744073709551617"
    );
    let cents = schema(r#"{ "multipleOf": 0.01 }"#);
    assert_eq!(first(&cents, "19.99"), None);
    assert_eq!(first(&cents, "123456789012345678901234567890.12"), None);
    assert!(first(&cents, "19.999").is_some());
    let sevens = schema(r#"{ "multipleOf": 7 }"#);
    assert_eq!(first(&sevens, "700000000000000000000000000007"), None);
    assert!(first(&sevens, "700000000000000000000000000008").is_some());
    let exact = schema(r#"{ "const": 9007199254740993 }"#);
    assert_eq!(first(&exact, "9007199254740993"), None);
    assert!(first(&exact, "9007199254740992").is_some());
    let below = schema(r#"{ "exclusiveMinimum": 0.1 }"#);
    assert!(first(&below, "0.1").is_some());
    assert_eq!(first(&below, "0.10000000000000000000000000001"), None);
}

#[test]
fn a_violation_points_at_the_place_to_mend_in_plain_words() {
    let schema = json!({
        "type": "object",
        "required": ["amount"],
        "additionalProperties": false,
        "properties": {
            "amount": { "type": "integer", "minimum": 1 },
            "currency": { "enum": ["EUR", "USD"] },
            "to": { "oneOf": [
                { "type": "object", "required": ["iban"], "properties": { "kind": { "const": "bank" }, "iban": { "type": "string", "minLength": 15 } } },
                { "type": "object", "required": ["card"], "properties": { "kind": { "const": "card" }, "card": { "type": "string", "pattern": "^[0-9]{16}$" } } },
                { "type": "string" }
            ] },
            "either": { "anyOf": [{ "required": ["a"] }, { "required": ["b", "c"] }] },
            "kinds": { "anyOf": [{ "type": "string" }, { "type": "array", "items": { "type": "string" } }] },
            "a/b~c": { "type": "null" },
            "names": { "propertyNames": { "maxLength": 3 } }
        }
    });
    for (instance, expected) in [
        ("{}", "/amount: is required and missing"),
        (
            r#"{"amount":"5"}"#,
            "/amount: expected a whole number, got \"5\"",
        ),
        (r#"{"amount":0}"#, "/amount: expected at least 1, got 0"),
        (
            r#"{"amount":1,"amuont":2}"#,
            "/amuont: is not a member that may stand here",
        ),
        (
            r#"{"amount":1,"currency":"eur"}"#,
            "/currency: expected one of \"EUR\" or \"USD\", got \"eur\"",
        ),
        (
            r#"{"amount":1,"to":{"kind":"card","card":"12"}}"#,
            "/to/card: expected text that matches the pattern ^[0-9]{16}$, got \"12\"",
        ),
        (
            r#"{"amount":1,"to":{"kind":"bank"}}"#,
            "/to/iban: is required and missing",
        ),
        (
            r#"{"amount":1,"either":{}}"#,
            "/either: needs one of a or b with c",
        ),
        (
            r#"{"amount":1,"kinds":["a",1]}"#,
            "/kinds/1: expected a string, got 1",
        ),
        (
            r#"{"amount":1,"a/b~c":0}"#,
            "/a~1b~0c: expected null, got 0",
        ),
        (
            r#"{"amount":1,"names":{"long":0}}"#,
            "/names/long: the name: expected at most 3 characters, got \"long\"",
        ),
        ("[1,2]", ": expected an object, got an array of 2 items"),
    ] {
        assert_eq!(
            first(&schema, instance).unwrap(),
            format!("/payload/arguments{expected}")
        );
    }
}

#[test]
fn an_answer_is_bounded() {
    let long = json!("x".repeat(500 * 1024));
    let found = schema::validate_with(&json!({ "type": "integer" }), &long, "").unwrap_err();
    assert!(
        found[0].message.chars().count() <= 120,
        "{}",
        found[0].message
    );

    let many = json!(vec!["x"; 1_000]);
    let schema = json!({ "items": { "type": "integer" } });
    assert_eq!(
        schema::validate_with(&schema, &many, "").unwrap_err().len(),
        50
    );
    // Beyond twenty thousand values the first flaw stands for all.
    let many = json!(vec!["x"; 100_000]);
    assert_eq!(
        schema::validate_with(&schema, &many, "").unwrap_err().len(),
        1
    );

    // A thousand branches would each hold a copy of the value.
    let branches = json!({ "anyOf": vec![json!({ "type": "integer" }); 1_000] });
    let found = schema::validate_with(&branches, &long, "/p").unwrap_err();
    assert_eq!(found.len(), 1);
    assert!(
        found[0].message.contains("too large"),
        "{}",
        found[0].message
    );
    assert_eq!(found[0].pointer, "/p");
}

fn refused(schema: &Value) -> String {
    let found = schema::check(schema, "/parameters").expect_err("it is taken");
    assert!(
        found.iter().all(|v| v.pointer.starts_with("/parameters")),
        "{}",
        said(&found)
    );
    assert!(found.iter().all(|v| v.message.chars().count() <= 300));
    format!("{}: {}", found[0].pointer, found[0].message)
}

#[test]
fn a_usable_schema_is_taken() {
    for schema in [
        json!(true),
        json!({}),
        json!({ "$schema": "https://json-schema.org/draft/2020-12/schema", "type": "object" }),
        json!({ "$schema": "http://json-schema.org/draft-07/schema#", "definitions": { "a": { "type": "string" } }, "items": { "$ref": "#/definitions/a" } }),
        json!({ "$id": "https://shop.example/order", "$defs": { "a": true }, "items": { "$ref": "https://shop.example/order#/$defs/a" } }),
        json!({ "$defs": { "tree": { "type": "object", "properties": { "kids": { "items": { "$ref": "#/$defs/tree" } } } } }, "$ref": "#/$defs/tree" }),
        json!({ "$defs": { "n": { "$anchor": "node", "properties": { "next": { "$ref": "#node" } } } }, "$ref": "#node" }),
        json!({ "properties": { "$ref": { "type": "string" }, "pattern": { "type": "string" } } }),
        json!({ "const": { "$ref": "https://nowhere.example", "pattern": "(" } }),
        json!({ "pattern": "^\\d{3}-\\w+$", "format": "date-time", "x-anything": 1 }),
        json!({ "$ref": "https://json-schema.org/draft/2020-12/schema" }),
    ] {
        if let Err(found) = schema::check(&schema, "") {
            panic!("{schema} is refused:\n{}", said(&found));
        }
    }
}

#[test]
fn an_unusable_schema_is_refused_where_it_is_wrong() {
    for (schema, expected) in [
        (json!("object"), ": expected a JSON Schema"),
        (json!(null), ": expected a JSON Schema"),
        (json!({ "type": "objekt" }), "/type: "),
        (
            json!({ "properties": { "a": { "minLength": -1 } } }),
            "/properties/a/minLength: expected at least 0, got -1",
        ),
        (
            json!({ "properties": { "a": { "required": "b" } } }),
            "/properties/a/required: expected an array",
        ),
        (
            json!({ "$schema": "https://example.com/mine" }),
            "/$schema: expected https://json-schema.org",
        ),
        (
            json!({ "items": { "$ref": "https://example.com/a.json" } }),
            "/items/$ref: refers to \"https://example.com/a.json\", which is not in this schema; schemas are never fetched",
        ),
        (
            json!({ "items": { "$ref": "other.json" } }),
            "/items/$ref: refers to",
        ),
        (
            json!({ "items": { "$ref": "/schemas/tool.json" } }),
            "/items/$ref: refers to",
        ),
        (
            json!({ "items": { "$ref": "https://dormouse.invalid/schemas/tool.json" } }),
            "/items/$ref: refers to",
        ),
        (
            json!({ "items": { "$ref": "file:///etc/passwd" } }),
            "/items/$ref: refers to",
        ),
        (
            json!({ "items": { "$ref": "#/$defs/missing" } }),
            "/items/$ref: refers to",
        ),
        (
            json!({ "items": { "$ref": "#missing" } }),
            "/items/$ref: refers to",
        ),
        (
            json!({ "$defs": { "a": { "$id": "https://example.com/inner" } } }),
            "/$defs/a/$id: only the whole schema",
        ),
        (
            json!({ "properties": { "a": { "pattern": "(" } } }),
            "/properties/a/pattern: ",
        ),
        (
            json!({ "pattern": "(?=a)b" }),
            "/pattern: this pattern cannot be used",
        ),
        (
            json!({ "pattern": "(a)\\1" }),
            "/pattern: this pattern cannot be used",
        ),
        (
            json!({ "pattern": "(((a{100}){100}){100})" }),
            "/pattern: this pattern cannot be used",
        ),
        (
            json!({ "patternProperties": { "(?<!a)b": true } }),
            "/patternProperties/(?<!a)b: this pattern cannot be used",
        ),
        (json!({ "$ref": "#" }), ": the schema refers to itself"),
        (
            json!({ "allOf": [{ "not": { "$ref": "#" } }] }),
            ": the schema refers to itself",
        ),
        (
            json!({ "$defs": { "a": { "$ref": "#/$defs/b" }, "b": { "$ref": "#/$defs/a" } } }),
            ": the schema refers to itself",
        ),
    ] {
        let found = refused(&schema);
        assert!(
            found.starts_with(&format!("/parameters{expected}")),
            "{schema}\n  {found}"
        );
    }
}

#[test]
fn a_schema_is_bounded() {
    let mut deep = json!({});
    for _ in 0..70 {
        deep = json!({ "items": deep });
    }
    assert!(refused(&deep).contains("more than 64 deep"));
    let many: serde_json::Map<String, Value> =
        (0..2_001).map(|n| (format!("p{n}"), json!({}))).collect();
    assert!(refused(&json!({ "properties": many })).contains("more than 2000 subschemas"));
    assert!(refused(&json!({ "description": "x".repeat(70_000) })).contains("of at most 65536"));
    let patterns = vec![json!({ "pattern": "a" }); 101];
    assert!(refused(&json!({ "anyOf": patterns })).contains("101 patterns"));

    // Thirty doublings in two kilobytes.
    let mut defs = serde_json::Map::new();
    for n in 0..30 {
        let next = json!({ "$ref": format!("#/$defs/d{}", n + 1) });
        defs.insert(format!("d{n}"), json!({ "anyOf": [next, next] }));
    }
    defs.insert("d30".into(), json!({ "type": "integer" }));
    assert!(refused(&json!({ "$defs": defs, "$ref": "#/$defs/d0" })).contains("look at one place"));

    // A doubling at each level of the value costs nothing until a value of that depth comes.
    let twice = json!({ "allOf": [
        { "properties": { "a": { "$ref": "#" } } }, { "properties": { "a": { "$ref": "#" } } }
    ], "type": "object" });
    schema::check(&twice, "").unwrap();
    let mut deep = json!(1);
    for _ in 0..100 {
        deep = json!({ "a": deep });
    }
    let started = Instant::now();
    let found = schema::validate_with(&twice, &deep, "").unwrap_err();
    assert!(
        started.elapsed() < Duration::from_secs(2),
        "{:?}",
        started.elapsed()
    );
    assert_eq!(found.len(), 1);
    assert!(
        found[0].message.contains("too large"),
        "{}",
        found[0].message
    );
}

#[test]
fn what_a_schema_nests_fits_a_small_stack() {
    // As large as the stack of a wasm module, with frames of a debug build.
    let thread = std::thread::Builder::new().stack_size(1024 * 1024);
    let work = thread.spawn(|| {
        let nested = |levels: usize| (0..levels).fold(json!("x"), |inner, _| json!({ "a": inner }));
        for (kind, chain) in [("$ref", 3), ("allOf", 2), ("anyOf", 2), ("not", 2), ("$ref", 1_900)] {
            let mut defs = serde_json::Map::new();
            for n in 0..chain {
                let next = json!({ "$ref": format!("#/$defs/d{}", n + 1) });
                let schema = match kind {
                    "$ref" => next,
                    "not" => json!({ "not": { "not": next } }),
                    _ => json!({ kind: [{ "minimum": 1, "type": "number" }, next] }),
                };
                defs.insert(format!("d{n}"), schema);
            }
            let last = json!({ "type": "object", "properties": { "a": { "$ref": "#/$defs/d0" } } });
            defs.insert(format!("d{chain}"), last);
            let schema = json!({ "$defs": defs, "$ref": "#/$defs/d0" });
            schema::check(&schema, "").unwrap();
            let refusals = [1, 8, 16, 32, 64, 96, 127].iter().filter(|levels| {
                let found = schema::validate_with(&schema, &nested(**levels), "").unwrap_err();
                found[0].message.contains("nested too deep")
            });
            assert!(refusals.count() > 0, "{kind}");
        }
        // A tree as deep as JSON may be is still looked at.
        let tree = json!({
            "$defs": { "node": { "type": "object", "properties": { "a": { "$ref": "#/$defs/node" }, "x": {} } } },
            "$ref": "#/$defs/node"
        });
        let found = schema::validate_with(&tree, &nested(127), "").unwrap_err();
        assert_eq!(found[0].pointer, "/a".repeat(127));
        let deep = (0..60).fold(json!(true), |inner, _| json!({ "not": inner }));
        schema::check(&deep, "").unwrap();
        let meta = json!({ "$ref": "https://json-schema.org/draft/2020-12/schema" });
        assert!(schema::validate_with(&meta, &deep, "").is_ok());
    });
    work.unwrap().join().unwrap();
}

#[test]
fn a_pattern_takes_linear_time() {
    let schema = json!({ "pattern": "^(a+)+$" });
    let text = json!("a".repeat(200_000) + "b");
    let started = Instant::now();
    assert!(schema::validate_with(&schema, &text, "").is_err());
    assert!(
        started.elapsed() < Duration::from_secs(2),
        "{:?}",
        started.elapsed()
    );
}

#[test]
fn large_values_and_lists_are_compared_in_reasonable_time() {
    let numbers = |range: std::ops::Range<u32>| Value::from_iter(range);
    let texts = |range: std::ops::Range<u32>| Value::from_iter(range.map(|n| format!("t{n}")));
    let objects = |range: std::ops::Range<u32>| Value::from_iter(range.map(|n| json!({ "a": n })));
    for (what, schema, value) in [
        (
            "unique numbers",
            json!({ "uniqueItems": true }),
            numbers(0..80_000),
        ),
        (
            "unique texts",
            json!({ "uniqueItems": true }),
            texts(0..60_000),
        ),
        (
            "unique objects",
            json!({ "uniqueItems": true }),
            objects(0..40_000),
        ),
        (
            "enum of numbers",
            json!({ "items": { "enum": numbers(0..10_000) } }),
            numbers(100_000..170_000),
        ),
        (
            "enum of texts",
            json!({ "items": { "enum": texts(0..7_000) } }),
            texts(100_000..150_000),
        ),
        (
            "enum of objects",
            json!({ "items": { "enum": objects(0..4_000) } }),
            objects(100_000..130_000),
        ),
    ] {
        schema::check(&schema, "").unwrap();
        let started = Instant::now();
        let _ = schema::validate_with(&schema, &value, "");
        assert!(
            started.elapsed() < Duration::from_secs(5),
            "{what}: {:?}",
            started.elapsed()
        );
    }
}

#[test]
fn a_schema_that_cannot_be_used_refuses_and_says_why() {
    let found = schema::validate_with(&json!({ "type": "objekt" }), &json!(1), "/result");
    let found = found.unwrap_err();
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].pointer, "/result");
    assert!(
        found[0].message.starts_with("its schema cannot be used: "),
        "{}",
        found[0].message
    );
}

// ---- the schemas and the types that read the same documents ----

#[test]
fn the_log_s_types_and_the_events_schemas_are_the_same() {
    // serde names the variants it knows when it meets one that it does not.
    let error = serde_json::from_str::<Event>(r#"{"no.such":{}}"#)
        .unwrap_err()
        .to_string();
    let known: BTreeSet<&str> = error.split('`').skip(3).step_by(2).collect();
    let described: BTreeSet<&str> = embedded::event_types().collect();
    assert_eq!(
        described, known,
        "left: schemas/events; right: run::event::Event"
    );

    for name in embedded::event_types() {
        for file in files(&schemas().join("examples").join(name)) {
            let example = read(&file);
            let text = json!({ name: example }).to_string();
            let event: Event = serde_json::from_str(&text)
                .unwrap_or_else(|error| panic!("{}: {error}", file.display()));
            let (event_type, payload) = event.parts().unwrap();
            assert_eq!(event_type, name);
            assert!(
                json::same(&payload, &example),
                "{}:\n{payload}",
                file.display()
            );
        }
    }
}

#[test]
fn what_a_schema_takes_is_parsed_and_what_it_refuses_is_not() {
    type Parse = fn(&Value) -> Result<(), Vec<Violation>>;
    let parsers: [(&str, Parse); 3] = [
        ("tool", |value| Tool::parse(value).map(drop)),
        ("plan", |value| Plan::parse(value).map(drop)),
        ("agent", |value| Agent::parse(value).map(drop)),
    ];
    for (name, parse) in parsers {
        for file in files(&schemas().join("examples").join(name)) {
            let example = read(&file);
            let parsed = parse(&example);
            assert!(parsed.is_ok(), "{}: {parsed:?}", file.display());
        }
        for file in files(&schemas().join("counter-examples").join(name)) {
            let case = read(&file);
            // A null member counts as left out there, and the schema comes first.
            if stem(&file) != "attempts-null" {
                assert!(parse(&case["instance"]).is_err(), "{}", file.display());
            }
        }
    }
}

#[test]
fn envelopes_are_read_by_their_types() {
    for file in files(&schemas().join("examples/message")) {
        let text = fs::read_to_string(&file).unwrap();
        let message = serde_json::from_str::<WorkMessage>(&text);
        assert!(message.is_ok(), "{}: {message:?}", file.display());
    }
}

// ---- the OpenAPI document ----

/// Every route of this release: the document describes these and no others.
const ROUTES: &[&str] = &[
    "DELETE /v1/agents/{name}",
    "DELETE /v1/tenants/{tenant_id}/keys/{key_id}",
    "DELETE /v1/tools/{name}",
    "GET /approvals/{token}",
    "GET /healthz",
    "GET /openapi.json",
    "GET /problems/{name}",
    "GET /schemas/{name}.json",
    "GET /v1/agents",
    "GET /v1/agents/{name}",
    "GET /v1/approvals",
    "GET /v1/approvals/{approval_id}",
    "GET /v1/dead-letters",
    "GET /v1/dead-letters/{dead_letter_id}",
    "GET /v1/runs",
    "GET /v1/runs/{run_id}",
    "GET /v1/runs/{run_id}/diagnosis",
    "GET /v1/runs/{run_id}/events",
    "GET /v1/tools",
    "GET /v1/tools/{name}",
    "POST /approvals/{token}",
    "POST /v1/approvals/{approval_id}",
    "POST /v1/approvals/{approval_id}/links",
    "POST /v1/callbacks/{token}",
    "POST /v1/dead-letters/{dead_letter_id}/discard",
    "POST /v1/dead-letters/{dead_letter_id}/redeliver",
    "POST /v1/dead-letters/{dead_letter_id}/resolve",
    "POST /v1/envelopes",
    "POST /v1/runs",
    "POST /v1/runs/{run_id}/cancel",
    "POST /v1/runs/{run_id}/limits",
    "POST /v1/runs/{run_id}/pause",
    "POST /v1/runs/{run_id}/resume",
    "POST /v1/runs/{run_id}/retry",
    "POST /v1/runs/{run_id}/signals/{name}",
    "POST /v1/tenants",
    "POST /v1/tenants/{tenant_id}/keys",
    "PUT /v1/agents/{name}",
    "PUT /v1/tools/{name}",
];

fn openapi() -> Value {
    parse(&schema::openapi()).unwrap()
}

/// The document's operations as (`GET /path`, operation).
fn operations(document: &Value) -> Vec<(String, &Value)> {
    let mut found = Vec::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            if method != "parameters" {
                found.push((format!("{} {path}", method.to_uppercase()), operation));
            }
        }
    }
    found.sort_by(|a, b| a.0.cmp(&b.0));
    found
}

/// Every value in a document, with its pointer.
fn walk<'v>(value: &'v Value, at: &str, see: &mut impl FnMut(&str, &'v Value)) {
    see(at, value);
    match value {
        Value::Object(members) => members.iter().for_each(|(name, inner)| {
            let token = name.replace('~', "~0").replace('/', "~1");
            walk(inner, &format!("{at}/{token}"), see);
        }),
        Value::Array(items) => {
            items
                .iter()
                .enumerate()
                .for_each(|(n, inner)| walk(inner, &format!("{at}/{n}"), see));
        }
        _ => {}
    }
}

#[test]
fn the_document_names_every_route_and_stands_alone() {
    let document = openapi();
    let routes: Vec<String> = operations(&document)
        .into_iter()
        .map(|(route, _)| route)
        .collect();
    assert_eq!(routes, ROUTES);

    let mut references = BTreeSet::new();
    walk(&document, "", &mut |at, value| {
        if let (true, Some(text)) = (at.ends_with("/$ref"), value.as_str()) {
            references.insert(text.to_owned());
        }
    });
    assert!(references.len() > 50);
    for reference in &references {
        let target = reference
            .strip_prefix('#')
            .and_then(|at| document.pointer(at));
        assert!(
            target.is_some_and(|target| !target.is_null()),
            "{reference} leads nowhere"
        );
    }
    // Nothing is kept that nothing quotes.
    for name in document["components"]["schemas"]
        .as_object()
        .unwrap()
        .keys()
    {
        assert!(
            references.contains(&format!("#/components/schemas/{name}")),
            "{name}"
        );
    }
    // A component has the name of one thing only.
    let common = parse(embedded::text("common").unwrap()).unwrap();
    let mut names: Vec<String> = common["$defs"]
        .as_object()
        .unwrap()
        .keys()
        .cloned()
        .collect();
    for entry in embedded::ALL {
        names.push(entry.name.to_owned());
        if let (true, Some(own)) = (
            entry.name != "common",
            parse(entry.text).unwrap()["$defs"].as_object(),
        ) {
            names.extend(own.keys().map(|name| format!("{}.{name}", entry.name)));
        }
    }
    let distinct: BTreeSet<&String> = names.iter().collect();
    assert_eq!(distinct.len(), names.len());
}

#[test]
fn every_operation_is_described_and_its_examples_fit() {
    let document = openapi();
    let mut ids = BTreeSet::new();
    for (route, operation) in operations(&document) {
        assert!(
            ids.insert(operation["operationId"].as_str().unwrap()),
            "{route}"
        );
        assert!(
            operation["summary"].is_string() && operation["tags"].is_array(),
            "{route}"
        );
        for status in ["429", "500", "503"] {
            assert!(
                operation["responses"][status].is_object(),
                "{route} {status}"
            );
        }
        for status in operation["requestBody"]
            .as_object()
            .iter()
            .flat_map(|_| ["400", "413", "415", "422"])
        {
            assert!(
                operation["responses"][status].is_object(),
                "{route} {status}"
            );
        }
        let open = operation["security"].as_array().is_some_and(Vec::is_empty);
        assert_eq!(operation["responses"]["401"].is_object(), !open, "{route}");
        // A token in the path is an authority of its own.
        let needs_key = route.contains("/v1/") && !route.contains("{token}");
        assert_eq!(open, !needs_key, "{route}");
    }
    let mut count = 0;
    walk(&document["paths"], "", &mut |at, value| {
        let Some(media) = value
            .as_object()
            .filter(|media| media.contains_key("schema"))
        else {
            return;
        };
        let one = media.get("example");
        let several = media.get("examples").and_then(Value::as_object).into_iter();
        let several = several.flat_map(|named| named.values().map(|example| &example["value"]));
        for example in one.into_iter().chain(several) {
            // The component schemas travel along, so that the references lead somewhere.
            let mut schema = json!({ "components": document["components"] });
            schema["allOf"] = json!([media["schema"]]);
            let validator = engine::options()
                .build(&schema)
                .unwrap_or_else(|e| panic!("{at}: {e}"));
            if let Some(error) = validator.iter_errors(example).next() {
                panic!("{at}: {} at {}", error, error.instance_path());
            }
            count += 1;
        }
    });
    assert!(count >= 40, "{count} examples");
}

// ---- the official suite ----

/// Tests of the suite that fail here, with the reason. The list is exact: one that starts to pass
/// fails this test until it is taken out.
const UNSUPPORTED: &[(&str, &str)] = &[];

/// Where `schemas/get-suite.sh` puts it, unless the environment says otherwise.
fn suite() -> PathBuf {
    let folder = std::env::var_os("JSON_SCHEMA_TEST_SUITE").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/json-schema-suite"),
        PathBuf::from,
    );
    assert!(
        folder.join("tests/draft2020-12/type.json").is_file(),
        "the JSON-Schema-Test-Suite is not at {}: \
         set JSON_SCHEMA_TEST_SUITE to a folder that holds its tests/ and remotes/",
        folder.display()
    );
    folder
}

#[test]
fn the_official_suite_passes() {
    let suite = suite();
    let remotes = remotes(&suite.join("remotes"));
    let mut registry = jsonschema::Registry::new();
    for (uri, contents) in &remotes {
        registry = registry
            .add(
                uri,
                jsonschema::Draft::Draft202012.create_resource(contents.clone()),
            )
            .unwrap_or_else(|error| panic!("{uri}: {error}"));
    }
    let registry = registry.prepare().unwrap();

    let (mut count, mut failed) = (0, BTreeSet::new());
    for file in files(&suite.join("tests/draft2020-12")) {
        for group in read(&file).as_array().unwrap() {
            let options = engine::options().with_draft(jsonschema::Draft::Draft202012);
            let validator = options.with_registry(&registry).build(&group["schema"]);
            for case in group["tests"].as_array().unwrap() {
                count += 1;
                let valid = validator.as_ref().is_ok_and(|v| v.is_valid(&case["data"]));
                if validator.is_err() || valid != case["valid"].as_bool().unwrap() {
                    let (group, case) = (&group["description"], &case["description"]);
                    let text = |value: &Value| value.as_str().unwrap().to_owned();
                    failed.insert(format!("{}: {}: {}", stem(&file), text(group), text(case)));
                }
            }
        }
    }
    let known: BTreeSet<String> = UNSUPPORTED
        .iter()
        .map(|(name, _)| (*name).to_owned())
        .collect();
    assert_eq!(failed, known, "left: what fails; right: what is known to");
    assert!(count >= 1_257, "the suite has only {count} tests");
    println!(
        "{count} tests of the suite, {} known not to pass",
        known.len()
    );
}

/// The suite's remote documents by the address its tests use, for the draft in question.
fn remotes(folder: &Path) -> BTreeMap<String, Value> {
    const OTHER_DRAFTS: [&str; 8] = [
        "draft3",
        "draft4",
        "draft6",
        "draft7",
        "draft2019-09",
        "draft-next",
        "v1",
        "draft5",
    ];
    let mut found = BTreeMap::new();
    let mut open = vec![folder.to_owned()];
    while let Some(folder_now) = open.pop() {
        for entry in fs::read_dir(&folder_now).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                if !OTHER_DRAFTS.contains(&stem_of_folder(&path).as_str()) {
                    open.push(path);
                }
            } else if path.extension().is_some_and(|end| end == "json") {
                let place = path
                    .strip_prefix(folder)
                    .unwrap()
                    .to_string_lossy()
                    .replace('\\', "/");
                found.insert(format!("http://localhost:1234/{place}"), read(&path));
            }
        }
    }
    found
}

fn stem_of_folder(path: &Path) -> String {
    path.file_name().unwrap().to_string_lossy().into_owned()
}
