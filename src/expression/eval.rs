//! An expression meets a run: a value, or an error that says what was there instead.

use std::borrow::Cow;
use std::cmp::Ordering;

use serde_json::Value;

use super::compare;
use super::parse::Expression;
use super::tree::{Comparison, Member, Node, Path, Root};

/// What an expression can see.
#[derive(Clone, Copy)]
pub struct Scope<'a> {
    /// The run's input.
    pub input: &'a Value,
    /// The run: `run_id`, `tenant_id`, `created_at`, `agent`, `tags`.
    pub run: &'a Value,
    /// The result of the step with that id; None where it has none (yet, or because it was skipped).
    pub steps: &'a dyn Fn(&str) -> Option<&'a Value>,
}

/// Why an expression has no value in this run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct EvalError {
    /// The path or operator at fault, as one would write it.
    pub path: String,
    /// The whole story, the path included. Names and types only: no value is quoted.
    pub message: String,
    missing: bool,
}

impl Expression {
    /// Its value in this run.
    ///
    /// # Errors
    /// A path that leads nowhere, two values that have no order, or a condition that is no boolean.
    pub fn eval(&self, scope: &Scope<'_>) -> Result<Value, EvalError> {
        self.look(scope).map(Cow::into_owned)
    }

    /// Its value as a condition.
    ///
    /// # Errors
    /// As for [`Expression::eval`], and where the value is not a boolean.
    pub fn eval_condition(&self, scope: &Scope<'_>) -> Result<bool, EvalError> {
        boolean(&self.root, scope, "a condition")
    }

    /// Its value, borrowed where it stands in the scope, so that a large one can be measured first.
    pub(super) fn look<'e, 'a: 'e>(
        &'e self,
        scope: &Scope<'a>,
    ) -> Result<Cow<'e, Value>, EvalError> {
        node(&self.root, scope)
    }
}

fn node<'e, 'a: 'e>(at: &'e Node, scope: &Scope<'a>) -> Result<Cow<'e, Value>, EvalError> {
    match at {
        Node::Literal(value) => Ok(Cow::Borrowed(value)),
        Node::Path(path) => follow(path, scope).map(Cow::Borrowed),
        Node::Default(items) => default(items, scope),
        Node::Not(item) => Ok(truth(!boolean(item, scope, "!")?)),
        Node::All(items) => {
            for item in items {
                if !boolean(item, scope, "&&")? {
                    return Ok(truth(false));
                }
            }
            Ok(truth(true))
        }
        Node::Any(items) => {
            for item in items {
                if boolean(item, scope, "||")? {
                    return Ok(truth(true));
                }
            }
            Ok(truth(false))
        }
        Node::Compare(comparison, left, right) => {
            compare(*comparison, &*node(left, scope)?, &*node(right, scope)?).map(truth)
        }
    }
}

fn follow<'a>(path: &Path, scope: &Scope<'a>) -> Result<&'a Value, EvalError> {
    let mut value = match &path.root {
        Root::Input => scope.input,
        Root::Run => scope.run,
        Root::Step(id) => (scope.steps)(id).ok_or_else(|| EvalError {
            path: path.root.to_string(),
            message: format!(
                "{} is not there: step \"{id}\" was skipped or has no result",
                path.root
            ),
            missing: true,
        })?,
    };
    for (depth, member) in path.members.iter().enumerate() {
        let next = match (member, value) {
            (Member::Name(name), Value::Object(members)) => members.get(name),
            (Member::Index(index), Value::Array(items)) => {
                usize::try_from(*index).ok().and_then(|at| items.get(at))
            }
            _ => None,
        };
        value = next.ok_or_else(|| {
            let prefix = |length| Path {
                root: path.root.clone(),
                members: path.members.iter().take(length).cloned().collect(),
            };
            let (parent, whole) = (prefix(depth), prefix(depth + 1).to_string());
            EvalError {
                message: format!("{whole} is not there: {parent} is {}", describe(value)),
                path: whole,
                missing: true,
            }
        })?;
    }
    Ok(value)
}

/// The first item that is there and not null; the last one is taken as it is.
fn default<'e, 'a: 'e>(items: &'e [Node], scope: &Scope<'a>) -> Result<Cow<'e, Value>, EvalError> {
    let mut found = Ok(truth(false));
    for item in items {
        found = node(item, scope);
        match &found {
            Ok(value) if value.is_null() => {}
            Err(error) if error.missing => {}
            _ => break,
        }
    }
    found
}

fn compare(comparison: Comparison, left: &Value, right: &Value) -> Result<bool, EvalError> {
    let holds: fn(Ordering) -> bool = match comparison {
        Comparison::Equal => return Ok(compare::equal(left, right)),
        Comparison::NotEqual => return Ok(!compare::equal(left, right)),
        Comparison::Less => Ordering::is_lt,
        Comparison::LessOrEqual => Ordering::is_le,
        Comparison::Greater => Ordering::is_gt,
        Comparison::GreaterOrEqual => Ordering::is_ge,
    };
    let sign = comparison.sign();
    compare::order(left, right)
        .map(holds)
        .ok_or_else(|| EvalError {
            path: sign.to_owned(),
            message: format!(
                "{sign} orders two numbers or two strings, and here stand {} and {}",
                describe(left),
                describe(right)
            ),
            missing: false,
        })
}

fn boolean(at: &Node, scope: &Scope<'_>, user: &str) -> Result<bool, EvalError> {
    let value = node(at, scope)?;
    value.as_bool().ok_or_else(|| EvalError {
        path: match at {
            Node::Path(path) => path.to_string(),
            _ => user.to_owned(),
        },
        message: match at {
            Node::Path(path) => format!(
                "{user} needs true or false, and {path} is {}",
                describe(&value)
            ),
            _ => format!("{user} needs true or false, and got {}", describe(&value)),
        },
        missing: false,
    })
}

fn truth<'a>(value: bool) -> Cow<'a, Value> {
    Cow::Owned(Value::Bool(value))
}

/// Types, sizes and a few member names: values may be private, and stay out of messages.
fn describe(value: &Value) -> String {
    const NAMES_MAX: usize = 5;
    match value {
        Value::Null => "null".to_owned(),
        Value::Bool(_) => "a boolean".to_owned(),
        Value::Number(_) => "a number".to_owned(),
        Value::String(_) => "a string".to_owned(),
        Value::Array(items) if items.len() == 1 => "an array of 1 item".to_owned(),
        Value::Array(items) => format!("an array of {} items", items.len()),
        Value::Object(members) if members.is_empty() => "an empty object".to_owned(),
        Value::Object(members) => {
            let names: Vec<String> = members
                .keys()
                .take(NAMES_MAX)
                .map(|name| format!("{:?}", name.chars().take(40).collect::<String>()))
                .collect();
            let more = if members.len() > NAMES_MAX {
                ", …"
            } else {
                ""
            };
            format!("an object with {}{more}", names.join(", "))
        }
    }
}

#[cfg(test)]
mod tests {
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
}
