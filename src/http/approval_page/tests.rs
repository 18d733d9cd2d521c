use super::browser::{Seen, see};
use super::page::STYLE;
use super::*;
use crate::json::{self, Violation};
use crate::schema;
use crate::words::limits::{
    APPROVAL_COMMENT_CHARS_MAX, APPROVAL_INPUTS_MAX, APPROVAL_NAME_CHARS_MAX,
};
use crate::words::sha256;

fn value(text: &str) -> Value {
    json::read(text.as_bytes()).unwrap()
}

fn shown(schema: Option<&Value>) -> Shown<'_> {
    Shown {
        prompt: "Pay the invoice?",
        tool: None,
        arguments: None,
        arguments_digest: None,
        schema,
        until: None,
        run_id: "run_1",
        step_id: "ask",
        decided_by: None,
    }
}

fn form(schema: &Value, filled: &Filled, errors: &[Violation]) -> Seen {
    schema::check(schema, "").unwrap();
    see(&ask(&shown(Some(schema)), "/approvals/t", filled, errors))
}

/// The form of `schema` filled in and sent, as the route will do it; and the form that shows the
/// flaws, which sends the same again.
fn send(schema: &str, given: &[(&str, &[&str])]) -> Result<Value, Vec<Violation>> {
    let schema = value(schema);
    let mut seen = form(&schema, &Filled::default(), &[]);
    for (name, given) in given {
        seen.fill(name, given);
    }
    let body = seen.press("approved");
    let sent = read_form(body.as_bytes(), Some(&schema), None).unwrap();
    let result = sent.answer.clone().and_then(|answer| {
        let data = answer.data.unwrap();
        schema::validate_with(&schema, &data, "/data").map(|()| data)
    });
    let errors = result.as_ref().err().cloned().unwrap_or_default();
    let again = form(&schema, &sent.filled, &errors);
    assert_eq!(again.focus.is_some(), !errors.is_empty());
    let resent = read_form(again.press("approved").as_bytes(), Some(&schema), None).unwrap();
    assert_eq!(resent, sent, "the form shows again what was sent");
    result
}

type Given<'g> = &'g [(&'g str, &'g [&'g str])];

#[test]
fn each_kind_of_field_comes_back_as_a_value() {
    let cases: &[(&str, Given<'_>, &str)] = &[
        (
            r#"{"type":"string"}"#,
            &[("/data", &["a\nb & <c>\n"])],
            r#""a\nb & <c>\n""#,
        ),
        (
            r#"{"type":"string"}"#,
            &[("/data", &["\n\n first"])],
            r#""\n\n first""#,
        ),
        (r#"{"type":"string"}"#, &[], r#""""#),
        (
            r#"{"type":"string","maxLength":20,"default":"x\"y"}"#,
            &[],
            r#""x\"y""#,
        ),
        (r#"{"type":"string","default":"a\nb"}"#, &[], r#""a\nb""#),
        (
            r#"{"type":"string","format":"date"}"#,
            &[("/data", &["2028-02-29"])],
            r#""2028-02-29""#,
        ),
        (
            r#"{"type":"string","format":"date-time"}"#,
            &[("/data", &[" 2026-12-01T09:30:00.5+02:00 "])],
            r#""2026-12-01T09:30:00.5+02:00""#,
        ),
        (
            r#"{"type":"string","format":"email"}"#,
            &[("/data", &["a@b.example"])],
            r#""a@b.example""#,
        ),
        (
            r#"{"type":"string","format":"uri"}"#,
            &[("/data", &["urn:x:y"])],
            r#""urn:x:y""#,
        ),
        (
            r#"{"type":"integer"}"#,
            &[("/data", &[" 9007199254740993 "])],
            "9007199254740993",
        ),
        (
            r#"{"type":"integer","default":9007199254740993}"#,
            &[],
            "9007199254740993",
        ),
        (r#"{"type":"integer"}"#, &[("/data", &["-5.0"])], "-5.0"),
        (
            r#"{"type":"number"}"#,
            &[("/data", &["0.10000000000000000001"])],
            "0.10000000000000000001",
        ),
        (r#"{"type":"number"}"#, &[("/data", &["1E5"])], "1E5"),
        (r#"{"type":"number","default":1.50}"#, &[], "1.50"),
        (r#"{"type":"boolean"}"#, &[("/data", &["No"])], "false"),
        (r#"{"type":"boolean"}"#, &[("/data", &["Yes"])], "true"),
        (r#"{"type":"boolean","default":false}"#, &[], "false"),
        (r#"{"type":"boolean","default":true}"#, &[], "true"),
        (
            r#"{"enum":["red","green"]}"#,
            &[("/data", &["green"])],
            r#""green""#,
        ),
        (
            r#"{"enum":["red","green"],"default":"green"}"#,
            &[],
            r#""green""#,
        ),
        (
            r#"{"enum":["1",1,null,{"a":[1.0]}]}"#,
            &[("/data", &["1"])],
            "1",
        ),
        (
            r#"{"enum":["1",1,null,{"a":[1.0]}]}"#,
            &[("/data", &["\"1\""])],
            r#""1""#,
        ),
        (
            r#"{"enum":["1",1,null,{"a":[1.0]}]}"#,
            &[("/data", &["null"])],
            "null",
        ),
        (
            r#"{"enum":["1",1,null,{"a":[1.0]}]}"#,
            &[("/data", &[r#"{"a":[1.0]}"#])],
            r#"{"a":[1.0]}"#,
        ),
        (
            r#"{"enum":["null",null]}"#,
            &[("/data", &["\"null\""])],
            r#""null""#,
        ),
        (
            r#"{"enum":["",9007199254740993]}"#,
            &[("/data", &["(empty)"])],
            r#""""#,
        ),
        (
            r#"{"enum":[9007199254740992,9007199254740993]}"#,
            &[("/data", &["9007199254740993"])],
            "9007199254740993",
        ),
        (
            r#"{"oneOf":[{"const":1,"title":"Low"},{"const":2,"title":"High"}]}"#,
            &[("/data", &["High"])],
            "2",
        ),
        (
            r#"{"const":"exactly"}"#,
            &[("/data", &["exactly"])],
            r#""exactly""#,
        ),
        (
            r#"{"type":"array","items":{"enum":["a","b","c"]},"default":["c"]}"#,
            &[],
            r#"["c"]"#,
        ),
        (
            r#"{"type":"array","items":{"enum":["a","b","c"]}}"#,
            &[("/data", &["c", "a"])],
            r#"["a","c"]"#,
        ),
        (r#"{"type":"array","items":{"enum":["a"]}}"#, &[], "[]"),
        (r#"{"type":["string","null"]}"#, &[], "null"),
        (r#"{"type":["integer","null"]}"#, &[("/data", &["7"])], "7"),
        (
            r#"{"anyOf":[{"type":"number"},{"type":"null"}]}"#,
            &[],
            "null",
        ),
        (
            r##"{"allOf":[{"$ref":"#/$defs/n"}],"$defs":{"n":{"type":"integer"}}}"##,
            &[("/data", &["1"])],
            "1",
        ),
        (
            r##"{"$ref":"#/$defs/a%20b~1c","$defs":{"a b/c":{"type":"integer"}}}"##,
            &[("/data", &["1"])],
            "1",
        ),
        (
            "{}",
            &[("/data", &[r#"{"n":9007199254740993,"e":1E5}"#])],
            r#"{"n":9007199254740993,"e":1E5}"#,
        ),
        ("{}", &[], "null"),
        ("true", &[("/data", &["[1]"])], "[1]"),
        (r#"{"default":{"a":1.0}}"#, &[], r#"{"a":1.0}"#),
        (
            r#"{"type":"object","additionalProperties":false}"#,
            &[],
            "{}",
        ),
    ];
    for (schema, given, expected) in cases {
        let data = send(schema, given).unwrap_or_else(|flaws| panic!("{schema}: {flaws:?}"));
        assert_eq!(json::write(&data), *expected, "{schema}");
    }
}

#[test]
fn groups_hold_what_was_filled_in() {
    let schema = r#"{
        "type": "object",
        "required": ["amount", "payee", "agreed"],
        "properties": {
            "amount": { "type": "number" },
            "payee": { "type": "object", "required": ["name"], "properties": {
                "name": { "type": "string" }, "a/b~c": { "type": "integer" } } },
            "agreed": { "const": true },
            "note": { "type": "string" },
            "urgent": { "type": "boolean", "default": true },
            "address": { "type": "object", "required": ["street", "safe"], "properties": {
                "street": { "type": "string", "minLength": 1 },
                "country": { "type": "string", "default": "CH" },
                "safe": { "type": "boolean", "default": false } } },
            "more": { "type": "object" }
        }
    }"#;
    let all: Given<'_> = &[
        ("/data/amount", &["12.50"]),
        ("/data/payee/name", &["Eve"]),
        ("/data/payee/a~1b~0c", &["3"]),
        ("/data/agreed", &[""]),
        ("/data/note", &["soon"]),
        ("/data/urgent", &["(none)"]),
        ("/data/address/street", &["Main"]),
        ("/data/address/safe", &["No"]),
        ("/data/more", &["{\"x\":[1]}"]),
    ];
    let agreed = |given: Given<'_>| {
        // The label of a single box stands after it.
        let schema = value(schema);
        let mut seen = form(&schema, &Filled::default(), &[]);
        for (name, given) in given.iter().filter(|(name, _)| *name != "/data/agreed") {
            seen.fill(name, given);
        }
        seen.fill("/data/agreed", &["agreed"]);
        let body = seen.press("approved");
        let answer = read_form(body.as_bytes(), Some(&schema), None)
            .unwrap()
            .answer
            .unwrap();
        let data = answer.data.unwrap();
        schema::validate_with(&schema, &data, "/data").unwrap();
        json::write(&data)
    };
    assert_eq!(
        agreed(all),
        r#"{"amount":12.50,"payee":{"name":"Eve","a/b~c":3},"agreed":true,"note":"soon","address":{"street":"Main","safe":false},"more":{"x":[1]}}"#
    );
    // What is optional and empty is absent, and the address with all that is in it.
    assert_eq!(
        agreed(&[("/data/amount", &["1"])]),
        r#"{"amount":1,"payee":{"name":""},"agreed":true,"urgent":true}"#
    );
    let flaws = send(schema, &[("/data/address/country", &["DE"])]).unwrap_err();
    let places: Vec<&str> = flaws.iter().map(|flaw| flaw.pointer.as_str()).collect();
    assert_eq!(
        places,
        [
            "/data/address/street",
            "/data/address/safe",
            "/data/amount",
            "/data/agreed"
        ]
    );
}

#[test]
fn what_means_nothing_is_refused_at_its_place() {
    let cases: &[(&str, Given<'_>, &str, &str)] = &[
        (
            r#"{"type":"number"}"#,
            &[("/data", &["1,5"])],
            "/data",
            "written like",
        ),
        (
            r#"{"type":"number"}"#,
            &[("/data", &["007"])],
            "/data",
            "written like",
        ),
        (
            r#"{"type":"number"}"#,
            &[("/data", &["+1"])],
            "/data",
            "written like",
        ),
        (
            r#"{"type":"number"}"#,
            &[("/data", &["true"])],
            "/data",
            "written like",
        ),
        (
            r#"{"type":"number"}"#,
            &[("/data", &["NaN"])],
            "/data",
            "written like",
        ),
        (
            r#"{"type":"number"}"#,
            &[("/data", &["1e999"])],
            "/data",
            "range of a double",
        ),
        (
            r#"{"type":"number"}"#,
            &[],
            "/data",
            "is required and missing",
        ),
        (
            r#"{"type":"integer"}"#,
            &[("/data", &["1.5"])],
            "/data",
            "a whole number",
        ),
        (
            r#"{"type":"number","maximum":10}"#,
            &[("/data", &["10.00000000000000000001"])],
            "/data",
            "at most 10",
        ),
        (
            r#"{"type":"string","format":"date"}"#,
            &[("/data", &["tomorrow"])],
            "/data",
            "a date",
        ),
        (
            r#"{"type":"string","format":"date"}"#,
            &[("/data", &["2027-02-29"])],
            "/data",
            "a date",
        ),
        (
            r#"{"type":"string","format":"date-time"}"#,
            &[("/data", &["2026-12-01 09:30"])],
            "/data",
            "offset",
        ),
        (
            r#"{"type":"string","minLength":3}"#,
            &[("/data", &["ab"])],
            "/data",
            "at least 3",
        ),
        (
            r#"{"type":"string","minLength":3}"#,
            &[],
            "/data",
            "is required and missing",
        ),
        (
            r#"{"enum":["a","b"]}"#,
            &[],
            "/data",
            "is required and missing",
        ),
        (r#"{"const":true}"#, &[], "/data", "is required and missing"),
        (
            r#"{"type":"object"}"#,
            &[("/data", &["{\"a\":}"])],
            "/data/a",
            "not JSON",
        ),
        (
            r#"{"type":"object"}"#,
            &[("/data", &["{\"a\":1,\"a\":2}"])],
            "/data/a",
            "more than once",
        ),
        (
            r#"{"type":"object"}"#,
            &[("/data", &["[]"])],
            "/data",
            "an object",
        ),
        (
            r#"{"type":"array","minItems":1,"items":{"enum":["a","b"]}}"#,
            &[],
            "/data",
            "at least 1 item",
        ),
    ];
    for (schema, given, pointer, message) in cases {
        let flaws = send(schema, given).unwrap_err();
        let [flaw] = flaws.as_slice() else {
            panic!("{schema}: {flaws:?}")
        };
        assert!(
            flaw.pointer == *pointer && flaw.message.contains(message),
            "{schema}: {flaw:?}"
        );
    }
    // A box of JSON within groups is not deeper than JSON may be.
    let schema = r#"{"properties":{"a":{"properties":{"b":{}}}}}"#;
    let deep = "[".repeat(127) + &"]".repeat(127);
    let flaws = send(schema, &[("/data/a/b", &[&deep])]).unwrap_err();
    assert_eq!(
        flaws,
        [Violation::new(
            "/data",
            "arrays and objects are nested more than 128 deep"
        )]
    );
}

#[test]
fn what_has_no_form_is_asked_for_as_json() {
    for schema in [
        "{}",
        r#"{"type":"array","items":{"type":"object"}}"#,
        r#"{"type":"array","items":{"type":"string"}}"#,
        r#"{"type":"array","prefixItems":[{"type":"string"}],"items":{"enum":["a"]}}"#,
        r#"{"oneOf":[{"type":"string"},{"type":"number"}]}"#,
        r#"{"type":["string","number"]}"#,
        r#"{"allOf":[{"type":"string"},{"minLength":1}]}"#,
        r##"{"$ref":"#/$defs/a","minLength":1,"$defs":{"a":{"type":"string"}}}"##,
        r#"{"type":"object","additionalProperties":{"type":"integer"}}"#,
        r#"{"type":"object","properties":{"a":{}},"patternProperties":{"^x":{}}}"#,
        r#"{"type":"object","properties":{"a":{}},"required":["b"]}"#,
        r#"{"type":"object","properties":{"a\nb":{}}}"#,
        r#"{"type":"object","if":{},"then":{},"properties":{"a":{}}}"#,
        r#"{"type":"null"}"#,
    ] {
        let parsed = value(&format!(r#"{{"type":"object","properties":{{"part":{schema},"other":{{"type":"integer"}}}}}}"#)
            .replace("#/$defs", "#/properties/part/$defs"));
        let seen = form(&parsed, &Filled::default(), &[]);
        let part = seen.control("/data/part");
        assert_eq!(
            (part.tag.as_str(), part.has("required")),
            ("textarea", false),
            "{schema}"
        );
        assert!(
            seen.told("/data/part").contains("Written as JSON."),
            "{schema}"
        );
        assert_eq!(seen.control("/data/other").tag, "input", "{schema}");
    }
}

#[test]
fn a_schema_cannot_make_the_form_large() {
    // One that refers to itself.
    let circle = value(
        r##"{"type":"object","properties":{"a":{"$ref":"#"},"b":{"$ref":"#"},"n":{"type":"integer"}}}"##,
    );
    let seen = form(&circle, &Filled::default(), &[]);
    assert!(seen.controls.len() <= APPROVAL_INPUTS_MAX + 2);
    // One that doubles at each level, with a long text in each place.
    let long = "\"&".repeat(5_000).replace('"', "\\\"");
    let mut defs = vec![format!(
        r#""d0":{{"enum":["{long}","b"],"default":"{long}","description":"{long}"}}"#
    )];
    for level in 1..12 {
        let below = format!(r##"{{"$ref":"#/$defs/d{}"}}"##, level - 1);
        defs.push(format!(
            r#""d{level}":{{"type":"object","properties":{{"x":{below},"y":{below},"z":{below}}}}}"#
        ));
    }
    let wide = value(&format!(
        r##"{{"$ref":"#/$defs/d5","$defs":{{{}}}}}"##,
        defs.join(",")
    ));
    let html = ask(&shown(Some(&wide)), "/", &Filled::default(), &[]);
    assert!(see(&html).controls.len() <= APPROVAL_INPUTS_MAX + 2);
    assert!(html.len() < 3 * 1024 * 1024, "{}", html.len());
    // As many boxes as there may be, and one more.
    for (count, tag) in [
        (APPROVAL_INPUTS_MAX, "input"),
        (APPROVAL_INPUTS_MAX + 1, "textarea"),
    ] {
        let members: Vec<String> = (0..count).map(|n| n.to_string()).collect();
        let schema = value(&format!(
            r#"{{"type":"array","items":{{"enum":[{}]}}}}"#,
            members.join(",")
        ));
        let mut seen = form(&schema, &Filled::default(), &[]);
        assert_eq!(seen.control("/data").tag, tag);
        if tag == "input" {
            seen.fill(
                "/data",
                &members.iter().map(String::as_str).collect::<Vec<_>>(),
            );
            let body = seen.press("approved");
            let sent = read_form(body.as_bytes(), Some(&schema), None).unwrap();
            let data = sent.answer.unwrap().data.unwrap();
            assert_eq!(data.as_array().unwrap().len(), count);
        }
    }
    // More than a person can go through.
    let many: Vec<String> = (0..=APPROVAL_INPUTS_MAX)
        .map(|n| format!(r#""p{n}":{{}}"#))
        .collect();
    let many = value(&format!(
        r#"{{"type":"object","properties":{{{}}}}}"#,
        many.join(",")
    ));
    assert_eq!(
        form(&many, &Filled::default(), &[]).control("/data").tag,
        "textarea"
    );
}

#[test]
fn attributes_say_only_what_the_schema_says() {
    let schema = value(
        r#"{
        "type": "object",
        "required": ["text", "code", "count", "day"],
        "properties": {
            "text": { "type": "string", "maxLength": 10, "title": "A text" },
            "code": { "type": "string", "minLength": 3, "pattern": "^[A-Z]{3}$", "description": "Three\nletters" },
            "hard": { "type": "string", "pattern": "^\\p{L}+$" },
            "count": { "type": "integer", "minimum": 0, "maximum": 99, "multipleOf": 3 },
            "debt": { "type": "number", "exclusiveMinimum": -5 },
            "day": { "type": "string", "format": "date" },
            "mail": { "type": "string", "format": "email" },
            "site": { "type": "string", "format": "uri" },
            "group": { "type": "object", "required": ["inner"], "properties": { "inner": { "type": "integer" } } }
        }
    }"#,
    );
    let seen = form(&schema, &Filled::default(), &[]);
    let attribute = |name: &str, attribute: &str| {
        let control = seen.control(&format!("/data/{name}"));
        control
            .attributes
            .get(attribute)
            .cloned()
            .unwrap_or_default()
    };
    let required: Vec<&str> = seen
        .controls
        .iter()
        .filter(|control| control.has("required"))
        .map(|control| control.name())
        .collect();
    assert_eq!(
        required,
        ["/data/code", "/data/count", "/data/day"],
        "an empty text is a text"
    );
    assert_eq!(attribute("code", "minlength"), "3");
    assert_eq!(attribute("code", "pattern"), ".*(?:^[A-Z]{3}$).*");
    assert_eq!(attribute("hard", "pattern"), "");
    assert_eq!(
        (
            attribute("count", "inputmode"),
            attribute("debt", "inputmode")
        ),
        ("numeric".into(), String::new())
    );
    assert_eq!(
        ["day", "mail", "site", "count"].map(|name| attribute(name, "type")),
        ["date", "email", "url", "text"]
    );
    assert_eq!(
        seen.told("/data/count"),
        "A whole number, at least 0, at most 99, a multiple of 3"
    );
    assert_eq!(
        seen.told("/data/code"),
        "Three\nletters\nAt least 3 characters, of the pattern ^[A-Z]{3}$"
    );
    assert!(seen.text.contains("A text") && seen.text.contains("group (optional)"));
}

#[test]
fn patterns_go_to_the_browser_only_if_it_reads_them_alike() {
    for (pattern, goes) in [
        ("^[A-Z0-9_-]+$", true),
        (r"^\d{3}-\w+\.(com|org)$", true),
        ("[[a]]", false),
        ("[a&&b]", false),
        ("[a--b]", false),
        ("(?i)a", false),
        (r"^\S+$", false),
        (r"\bword\b", false),
        ("^é+$", false),
    ] {
        let schema = Value::from_iter([("type", "string"), ("pattern", pattern)]);
        let html = ask(&shown(Some(&schema)), "/", &Filled::default(), &[]);
        assert_eq!(
            see(&html).control("/data").has("pattern"),
            goes,
            "{pattern}"
        );
    }
    // What the server takes for a letter is what a browser takes for one.
    let word = value(r#"{"pattern":"^\\w\\d$"}"#);
    assert!(schema::validate_with(&word, &"a1".into(), "").is_ok());
    assert!(schema::validate_with(&word, &"é1".into(), "").is_err());
    assert!(schema::validate_with(&word, &"a٣".into(), "").is_err());
}

#[test]
fn a_flaw_stands_beside_its_field_and_on_top() {
    let schema = value(
        r#"{"type":"object","properties":{
            "amount":{"type":"number","title":"Amount"},
            "amounts":{"type":"number"},
            "tags":{"type":"array","items":{"enum":["a","b"]}},
            "box":{"title":"Box"},
            "in":{"type":"object","title":"Inside","properties":{"x":{"type":"string"}}}}}"#,
    );
    let flaws = [
        Violation::new("/elsewhere", "of nothing"),
        Violation::new("/data/in", "of the group"),
        Violation::new("/data/box/a/0", "deep in the box"),
        Violation::new("/data/amount", "too much"),
        Violation::new("/data/amount", "and odd"),
        Violation::new("/data/tags/1", "no such tag"),
        Violation::new("/comment", "too long"),
        Violation::new("/decision", "press one"),
    ];
    let seen = form(&schema, &Filled::default(), &flaws);
    assert_eq!(seen.told("/data/amount"), "too much\nand odd");
    assert_eq!(seen.told("/data/amounts"), "");
    assert_eq!(
        seen.told("/data/box"),
        "Written as JSON.\n/a/0: deep in the box"
    );
    assert_eq!(seen.told("comment"), "too long");
    assert_eq!(
        seen.control("/data/amount").attributes["aria-invalid"],
        "true"
    );
    assert_eq!(
        seen.focus.as_deref(),
        seen.control("/data/amount")
            .attributes
            .get("id")
            .map(String::as_str)
    );
    let summary = &seen.by_id["summary"];
    let mut rest = summary.as_str();
    // In the order of the page.
    for part in [
        "/elsewhere: of nothing",
        "Amount: too much",
        "Amount: and odd",
        "tags: /1: no such tag",
        "Box: /a/0: deep",
        "Inside: of the group",
        "Comment: too long",
        "Decision: press one",
    ] {
        let at = rest
            .find(part)
            .unwrap_or_else(|| panic!("{part} in {summary}"));
        rest = &rest[at..];
    }
    assert!(seen.title.starts_with("Error"));
    assert!(
        seen.by_id
            .iter()
            .any(|(id, text)| id.ends_with("-error") && text == "of the group")
    );

    // Without a field to go to, the summary has the focus; without a flaw nothing has.
    let seen = form(&schema, &Filled::default(), &flaws[..2]);
    assert_eq!(seen.focus.as_deref(), Some("summary"));
    let seen = form(&schema, &Filled::default(), &flaws[5..6]);
    assert!(seen.control("/data/tags").has("autofocus"));
    assert_eq!(form(&schema, &Filled::default(), &[]).focus, None);
}

const EVIL: &str = "\"'></textarea></pre></title></style></select><script>alert(1)</script><img src=x onerror=alert(1)>&lt;b&amp;";

#[test]
fn nothing_from_outside_becomes_markup() {
    let evil = Value::from(EVIL);
    let text = json::write(&evil);
    let schema = value(&format!(
        r#"{{"type":"object","title":{text},"description":{text},"properties":{{
            {text}: {{"type":"string","title":{text},"description":{text},"default":{text},"pattern":{text},"format":{text}}},
            "area": {{"type":"string","default":{text}}},
            "choice": {{"enum":[{text},{{{text}:1}}],"title":{text},"default":{text}}},
            "several": {{"type":"array","items":{{"enum":[{text},"b"]}}}},
            "titled": {{"oneOf":[{{"const":1,"title":{text}}}]}},
            "check": {{"const":true,"title":{text}}},
            "group": {{"type":"object","title":{text},"properties":{{"x":{{"type":"number","title":{text}}}}}}},
            "json": {{"title":{text},"default":{{{text}:{text}}},"examples":[{text}]}}
        }}}}"#
    ));
    let arguments = value(&format!("{{{text}:[{text},9007199254740993]}}"));
    let shown = Shown {
        prompt: EVIL,
        tool: Some(EVIL),
        arguments: Some(&arguments),
        arguments_digest: Some(EVIL),
        schema: Some(&schema),
        until: Some(Timestamp::EPOCH),
        run_id: EVIL,
        step_id: EVIL,
        decided_by: None,
    };
    let action = format!("/approvals/{EVIL}");
    let mut seen = see(&ask(&shown, &action, &Filled::default(), &[]));
    assert_eq!(seen.action.as_deref(), Some(action.as_str()));
    assert!(seen.text.contains(EVIL) && seen.text.contains(&json::write(&evil)));
    assert_eq!(seen.control("/data/area").value, EVIL);
    assert_eq!(
        seen.control("/data/choice").options[1],
        ("0".into(), text.clone(), true)
    );

    let name = json::pointer::push("/data", EVIL);
    for name in [
        &name,
        "/data/area",
        "/data/group/x",
        "/data/json",
        "comment",
        "decided_by",
    ] {
        seen.fill(name, &[EVIL]);
    }
    let sent = read_form(seen.press("approved").as_bytes(), Some(&schema), None).unwrap();
    let mut flaws = sent.answer.unwrap_err();
    flaws.extend([
        Violation::new(format!("{name}/{EVIL}"), EVIL),
        Violation::new(EVIL, EVIL),
        Violation::new("/decision", EVIL),
    ]);
    let seen = see(&ask(&shown, &action, &sent.filled, &flaws));
    for name in [
        &name,
        "/data/area",
        "/data/group/x",
        "/data/json",
        "comment",
        "decided_by",
    ] {
        assert_eq!(seen.control(name).value, EVIL);
    }
    see(&ask(
        &Shown {
            decided_by: Some(EVIL),
            ..shown
        },
        &action,
        &sent.filled,
        &flaws,
    ));

    for outcome in [
        Outcome::Approved,
        Outcome::Rejected,
        Outcome::Expired,
        Outcome::Cancelled,
    ] {
        let page = decided(&Decided {
            outcome,
            by: Some(EVIL),
            at: Timestamp::EPOCH,
            comment: Some(EVIL),
            prompt: EVIL,
            tool: Some(EVIL),
            run_id: EVIL,
            step_id: EVIL,
            too_late: true,
        });
        assert!(see(&page).text.contains("1970-01-01 00:00 UTC"));
    }
    for reason in [
        Unusable::Forged,
        Unusable::Expired,
        Malformed::Unknown(EVIL.repeat(20)).into(),
    ] {
        see(&unusable(&reason));
    }
}

#[test]
fn the_call_is_shown_to_the_last_digit() {
    let arguments = value("{\"amount\":9007199254740993.10,\"to\":\"a\\u202eb\",\"list\":[1E5]}");
    let shown = Shown {
        prompt: "Two\n  lines \u{202e}",
        tool: Some("pay"),
        arguments: Some(&arguments),
        arguments_digest: Some("00ff"),
        until: Some(Timestamp::parse("2026-12-01T09:30:00Z").unwrap()),
        decided_by: Some("Ann"),
        ..shown(None)
    };
    let seen = see(&ask(&shown, "/", &Filled::default(), &[]));
    for part in [
        "Two\n  lines \u{fffd}",
        "The tool pay, with exactly these arguments:",
        "\n{\n  \"amount\": 9007199254740993.10,\n  \"to\": \"a\\u202eb\",\n  \"list\": [\n    1E5\n  ]\n}",
        "SHA-256 of the arguments: 00ff",
        "2026-12-01 09:30 UTC",
        "You answer as Ann.",
    ] {
        assert!(seen.text.contains(part), "{part} in {}", seen.text);
    }
    // Deep and broad: on one line rather than mostly of indentation.
    let deep = format!(
        "{}{}{}",
        "[".repeat(100),
        "1,".repeat(100_000) + "1",
        "]".repeat(100)
    );
    let deep = value(&deep);
    let html = ask(
        &Shown {
            arguments: Some(&deep),
            ..shown
        },
        "/",
        &Filled::default(),
        &[],
    );
    assert!(html.len() < 1024 * 1024);
    see(&html);
}

#[test]
fn a_form_says_who_decides_what() {
    let read = |body: &str, bound| read_form(body.as_bytes(), None, bound);
    let answer = |body: &str, bound| read(body, bound).unwrap().answer;
    assert_eq!(
        answer(
            "decision=approved&comment=+fine%0D%0Aso+&decided_by=Ann+B",
            None
        ),
        Ok(Answer {
            decision: Decision::Approved,
            comment: Some("fine\nso".into()),
            decided_by: Some("Ann B".into()),
            data: None
        })
    );
    assert_eq!(
        answer("decision=rejected&comment=+&", Some("Eve")),
        Ok(Answer {
            decision: Decision::Rejected,
            comment: None,
            decided_by: Some("Eve".into()),
            data: None
        })
    );
    assert_eq!(
        read("decision=approved&decided_by=Mallory", Some("Eve")),
        Err(Malformed::Unknown("decided_by".into())),
        "a link that is bound to a name takes no other"
    );
    for (body, pointer) in [
        ("", "/decision"),
        ("decision=maybe", "/decision"),
        (
            &format!(
                "decision=approved&comment={}",
                "é".repeat(APPROVAL_COMMENT_CHARS_MAX + 1)
            ),
            "/comment",
        ),
        (
            &format!(
                "decision=approved&decided_by={}",
                "é".repeat(APPROVAL_NAME_CHARS_MAX + 1)
            ),
            "/decided_by",
        ),
        ("decision=approved&decided_by=a%0Ab", "/decided_by"),
    ] {
        let flaws = answer(body, None).unwrap_err();
        assert_eq!(flaws[0].pointer, pointer);
    }
}

#[test]
fn nobody_has_to_fill_in_a_form_to_refuse() {
    let schema =
        value(r#"{"type":"object","required":["n"],"properties":{"n":{"type":"integer"}}}"#);
    let mut seen = form(&schema, &Filled::default(), &[]);
    seen.fill("/data/n", &["nonsense"]);
    let answer = read_form(seen.press("rejected").as_bytes(), Some(&schema), None)
        .unwrap()
        .answer
        .unwrap();
    assert_eq!((answer.decision, answer.data), (Decision::Rejected, None));
}

#[test]
fn a_body_that_no_form_sends_is_refused() {
    let schema = value(
        r#"{"type":"object","properties":{"n":{"type":"integer"},"c":{"enum":["a","b"]},"t":{"type":"array","items":{"enum":["a","b"]}},"b":{"const":true}}}"#,
    );
    let read = |body: &[u8]| read_form(body, Some(&schema), None);
    let twice = |name: &str| Malformed::Twice(name.into());
    let unknown = |name: &str| Malformed::Unknown(name.into());
    let many = "decision=approved&".repeat(APPROVAL_INPUTS_MAX + 4);
    let large = "x".repeat(1024 * 1024);
    for (body, expected) in [
        (&b"decision=%zz"[..], Malformed::NotEncoded),
        (b"decision=%", Malformed::NotEncoded),
        (b"decision=%4", Malformed::NotEncoded),
        (b"decision=%FF", Malformed::NotEncoded),
        (b"%C3=1", Malformed::NotEncoded),
        (b"decision=\xff", Malformed::NotEncoded),
        (b"comment=a%00b", Malformed::Nul("comment".into())),
        (b"decision=approved&decision=rejected", twice("decision")),
        (b"comment=&comment=", twice("comment")),
        (b"%2Fdata%2Fn=1&/data/n=2", twice("/data/n")),
        (b"/data/c=0&/data/c=1", twice("/data/c")),
        (b"/data/x=1", unknown("/data/x")),
        (b"/data=1", unknown("/data")),
        (b"=1", unknown("")),
        (
            b"{\"decision\":\"approved\"}",
            unknown("{\"decision\":\"approved\"}"),
        ),
        (many.as_bytes(), Malformed::TooMany),
        (large.as_bytes(), Malformed::TooLarge),
    ] {
        let error = read(body).unwrap_err();
        assert_eq!(error, expected);
        let reason = Unusable::from(error);
        assert!(see(&unusable(&reason)).text.contains("Nothing was decided"));
        assert!((400..=413).contains(&reason.status()));
    }
    for (body, pointer) in [
        ("/data/c=2", "/data/c"),
        ("/data/c=-1", "/data/c"),
        ("/data/t=0&/data/t=9", "/data/t"),
        ("/data/t=99999999999999999999", "/data/t"),
        ("/data/b=on", "/data/b"),
    ] {
        let sent = read(format!("decision=approved&{body}").as_bytes()).unwrap();
        assert_eq!(sent.answer.clone().unwrap_err()[0].pointer, pointer);
        form(&schema, &sent.filled, &sent.answer.unwrap_err());
    }
    let data = read(b"decision=approved&/data/t=1&/data/t=0&/data/t=1")
        .unwrap()
        .answer
        .unwrap()
        .data;
    assert_eq!(data, Some(value(r#"{"t":["a","b"]}"#)));
    assert!(read(&[b'&'; 1000]).is_ok());
}

#[test]
fn the_enter_key_presses_no_button() {
    let html = ask(&shown(None), "/", &Filled::default(), &[]);
    let first = html.find("<button").unwrap();
    assert!(html[first..].starts_with("<button type=\"submit\" disabled hidden>"));
    assert!(html.contains("value=\"rejected\" formnovalidate"));
}

#[test]
fn the_policy_permits_this_style_and_nothing_else() {
    let header = |wanted: &str| HEADERS.iter().find(|(name, _)| *name == wanted).unwrap().1;
    let hash = format!("style-src 'sha256-{}'", base64(&sha256(STYLE.as_bytes())));
    let policy = header("content-security-policy");
    assert!(policy.contains(&hash), "the style is now {hash}");
    for part in [
        "default-src 'none'",
        "form-action 'self'",
        "frame-ancestors 'none'",
        "base-uri 'none'",
    ] {
        assert!(policy.contains(part));
    }
    assert!(!policy.contains("unsafe") && !policy.contains("script"));
    assert_eq!(header("cache-control"), "no-store");
    assert!(
        STYLE.lines().count() < 60
            && !STYLE.contains("url(")
            && !STYLE.contains("@import")
            && !STYLE.contains('<')
    );
}

/// The official suite is a collection of schemas and values that nobody thought of with forms in
/// mind.
#[test]
fn any_schema_has_a_sound_page_and_loses_no_digit_of_what_is_typed() {
    let suite = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/json-schema-suite/tests/draft2020-12"
    );
    let (mut whole, mut total) = (0, 0);
    for entry in std::fs::read_dir(suite).unwrap() {
        let path = entry.unwrap().path();
        let Ok(text) = std::fs::read(&path) else {
            continue;
        };
        let Ok(Value::Array(groups)) = json::read(&text) else {
            continue;
        };
        for group in groups {
            let mut schema = group["schema"].clone();
            if schema::check(&schema, "").is_err() {
                continue;
            }
            for test in group["tests"].as_array().unwrap() {
                let Some(members) = schema.as_object_mut() else {
                    break;
                };
                let data = &test["data"];
                members.insert("default".to_owned(), data.clone());
                let seen = form(&schema, &Filled::default(), &[]);
                let body = seen.press("approved");
                let sent = read_form(body.as_bytes(), Some(&schema), None).unwrap();
                let checked = sent.answer.clone().and_then(|answer| {
                    let given = answer.data.unwrap();
                    schema::validate_with(&schema, &given, "/data").map(|()| given)
                });
                let errors = checked.as_ref().err().cloned().unwrap_or_default();
                form(&schema, &sent.filled, &errors);
                let is_json = seen.controls[0]
                    .attributes
                    .get("class")
                    .is_some_and(|class| class == "code");
                if is_json && seen.controls[0].name() == "/data" {
                    assert_eq!(
                        sent.answer.as_ref().unwrap().data.as_ref(),
                        Some(data),
                        "{schema}"
                    );
                }
                if test["valid"] == true {
                    total += 1;
                    whole += usize::from(checked.is_ok_and(|given| json::same(&given, data)));
                }
            }
        }
    }
    assert!(total > 400 && whole * 10 > total * 9, "{whole} of {total}");
}

#[test]
fn no_body_makes_it_panic() {
    let schema = value(
        r#"{"type":"object","properties":{"n":{"type":"number"},"d":{"type":"string","format":"date"},"j":{},"t":{"type":"array","items":{"enum":["a","b"]}}}}"#,
    );
    let sound = "decision=approved&comment=a%0D%0Ab&%2Fdata%2Fn=1e5&/data/d=2026-12-01&/data/j=%7B%22a%22%3A%5B1%5D%7D&/data/t=0&/data/t=1";
    assert!(
        read_form(sound.as_bytes(), Some(&schema), None)
            .unwrap()
            .answer
            .is_ok()
    );
    let mut seed = 4711_u64;
    let mut next = |below: usize| {
        seed = seed
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(seed >> 33).unwrap() % below
    };
    for _ in 0..20_000 {
        let mut body = sound.as_bytes().to_vec();
        for _ in 0..=next(3) {
            let (at, other) = (next(body.len()), b"%&=+\xff0-eE.\"{[\0/~"[next(16)]);
            match next(3) {
                0 => body[at] = other,
                1 => body.insert(at, other),
                _ => drop(body.remove(at)),
            }
        }
        if let Ok(sent) = read_form(&body, Some(&schema), None) {
            let errors = sent.answer.err().unwrap_or_default();
            ask(&shown(Some(&schema)), "/", &sent.filled, &errors);
        }
    }
}

/// As in RFC 4648, with padding.
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        let bits = (0..3).fold(0_usize, |bits, at| {
            bits << 8 | usize::from(*chunk.get(at).unwrap_or(&0))
        });
        for at in 0..4 {
            let digit = DIGITS[bits >> (18 - 6 * at) & 63];
            text.push(if at <= chunk.len() {
                char::from(digit)
            } else {
                '='
            });
        }
    }
    text
}
