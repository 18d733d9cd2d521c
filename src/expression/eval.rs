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
#[path = "eval_tests.rs"]
mod tests;
