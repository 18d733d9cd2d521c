use serde_json::json;

use super::*;
use crate::json::{read, write};

fn eval(text: &str) -> Result<Value, String> {
    let input = read(
        br#"{"a":1,"big":9007199254740993,"none":null,"t":"x","list":[{"sku":"s1"},2],
             "odd key":"o","dash-ed":true,"obj":{"b":1,"a":[1.0]}}"#,
    )
    .unwrap();
    let run = json!({ "run_id": "run_1", "tags": { "order": "42" } });
    let quote = read(br#"{"price":12.50,"result":{"ok":true}}"#).unwrap();
    let steps = |id: &str| match id {
        "quote" | "a.b" | "a.result" | "7" => Some(&quote),
        _ => None,
    };
    let expression = Expression::parse(text).map_err(|error| error.to_string())?;
    expression
        .eval(&Scope {
            input: &input,
            run: &run,
            steps: &steps,
        })
        .map_err(|error| error.to_string())
}

#[test]
fn values() {
    for (text, expected) in [
        ("input.a", "1"),
        ("input.big", "9007199254740993"),
        (" input . a", "ERROR"),
        ("input.list[0].sku", r#""s1""#),
        ("input.list[ 1 ]", "2"),
        (r#"input["odd key"]"#, r#""o""#),
        ("input['list'][0]['sku']", r#""s1""#),
        ("input.dash-ed", "true"),
        ("run.tags.order", r#""42""#),
        ("steps.quote.result.price", "12.50"),
        ("steps.a.b.result.price", "12.50"),
        ("steps.7.result.price", "12.50"),
        (r#"steps["a.result"].result.price"#, "12.50"),
        (r#"steps["a.b"]["result"].price"#, "12.50"),
        ("steps.quote.result.result.ok", "true"),
        ("12.50", "12.50"),
        ("-3", "-3"),
        ("1E5", "1E5"),
        ("18446744073709551616", "18446744073709551616"),
        (r#" "a\"b\n" "#, r#""a\"b\n""#),
        ("'it is'", r#""it is""#),
        ("null", "null"),
        // default
        ("input.nope ?? 5", "5"),
        ("input.none ?? 5", "5"),
        ("input.a.b.c ?? 'd'", r#""d""#),
        ("steps.skipped.result ?? null", "null"),
        ("input.x ?? input.y ?? 3", "3"),
        ("input.x ?? input.none", "null"),
        ("input.nope ?? 0 > 3", "false"),
        ("input.list[9] ?? false", "false"),
        // comparisons
        ("input.big == 9007199254740992", "false"),
        ("input.big > 9007199254740992", "true"),
        ("1 == 1.0", "true"),
        ("1 == '1'", "false"),
        ("null == false", "false"),
        ("'b' > 'a'", "true"),
        ("'10' < '9'", "true"),
        ("input.obj == input.obj", "true"),
        ("input.t != 'x'", "false"),
        // logic
        ("true && false || true", "true"),
        ("true || input.nope", "true"),
        ("false && input.nope", "false"),
        ("!(1 > 2) && !!true", "true"),
        ("(input.a >= 1) == true", "true"),
    ] {
        let found = eval(text).map_or_else(|_| "ERROR".to_owned(), |value| write(&value));
        assert_eq!(found, expected, "{text}: {:?}", eval(text));
    }
}

#[test]
fn errors_say_what_is_there_instead() {
    for (text, expected) in [
        (
            "input.nope",
            "input.nope is not there: input is an object with",
        ),
        ("input.a.b", "input.a.b is not there: input.a is a number"),
        (
            "input.list.sku",
            "input.list.sku is not there: input.list is an array of 2 items",
        ),
        (
            "input.list[2]",
            "input.list[2] is not there: input.list is an array of 2 items",
        ),
        ("input['a b']", r#"input["a b"] is not there"#),
        (
            "steps.skipped.result.x",
            "step \"skipped\" was skipped or has no result",
        ),
        (
            "input.a < 'x'",
            "< orders two numbers or two strings, and here stand a number and a string",
        ),
        ("true < false", "here stand a boolean and a boolean"),
        (
            "input.a && true",
            "&& needs true or false, and input.a is a number",
        ),
        ("!null", "! needs true or false, and got null"),
        ("(input.a < 'x') ?? true", "orders two numbers"),
    ] {
        let error = eval(text).unwrap_err();
        assert!(error.contains(expected), "{text}: {error}");
    }
}

#[test]
fn a_condition_is_a_boolean() {
    let scope = Scope {
        input: &json!({"a": 1}),
        run: &Value::Null,
        steps: &|_| None,
    };
    let condition = |text| Expression::parse(text).unwrap().eval_condition(&scope);
    assert_eq!(condition("input.a == 1"), Ok(true));
    let error = condition("input.a").unwrap_err();
    assert_eq!(
        error.message,
        "a condition needs true or false, and input.a is a number"
    );
}
