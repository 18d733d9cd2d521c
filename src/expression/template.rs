//! A JSON value whose strings may hold expressions.

use serde_json::{Map, Value};

use super::eval::Scope;
use super::parse::Expression;
use crate::fields::{Flaws, shorten};
use crate::json::{self, Violation, pointer};
use crate::words::limits::JSON_DEPTH_MAX;

const OPEN: &str = "{{";
const CLOSE: &str = "}}";

/// A compiled value: what holds no expression is kept as it is.
///
/// A string that is one expression and nothing else takes that value's type. In any other string
/// the values become text: strings as they are, numbers by their digits, null as nothing, arrays
/// and objects as compact JSON. Names of members are never templates. `{{ "{{" }}` writes `{{`.
///
/// The default is null.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Template {
    root: Node,
}

impl Template {
    /// Compiles a value.
    ///
    /// # Errors
    /// Every string that is not understood, with its pointer in `value`.
    pub fn parse(value: &Value) -> Result<Template, Vec<Violation>> {
        let mut flaws = Flaws::default();
        let root = compile(value, "", &mut flaws);
        flaws.none_in(Template { root })
    }

    /// A value that is taken as it is: no string in it is a template.
    #[must_use]
    pub fn of_literal(value: Value) -> Template {
        let root = Node::Literal(value);
        Template { root }
    }

    /// Every use of a step's result: the pointer of the string, and the step's id.
    #[must_use]
    pub fn references(&self) -> Vec<(String, String)> {
        let mut found = Vec::new();
        collect(&self.root, "", &mut found);
        found
    }

    /// Its value, where no expression is in it.
    #[must_use]
    pub fn literal(&self) -> Option<&Value> {
        match &self.root {
            Node::Literal(value) => Some(value),
            _ => None,
        }
    }

    /// Fills the expressions in. Work and memory stay in proportion to `bytes_max`, the most that
    /// the value may measure as compact JSON, however often a large value is named.
    ///
    /// # Errors
    /// Every expression that has no value in `scope`, with its pointer in the template; or, alone,
    /// the place at which the value grew beyond `bytes_max`. A value that nests beyond
    /// `limits::JSON_DEPTH_MAX` is refused as a whole.
    pub fn render(&self, scope: &Scope<'_>, bytes_max: usize) -> Result<Value, Vec<Violation>> {
        let mut rendering = Rendering {
            scope,
            bytes_left: bytes_max,
            bytes_max,
            flaws: Flaws::default(),
        };
        let value = match rendering.node(&self.root, "") {
            Ok(value) => value,
            Err(TooLarge(violation)) => return Err(vec![violation]),
        };
        // A deep value in a deep template could be stored, but not read again.
        if json::depth(&value) > JSON_DEPTH_MAX {
            let message = format!("the value nests deeper than {JSON_DEPTH_MAX} levels");
            rendering.flaws.add("", message);
        }
        rendering.flaws.none_in(value)
    }
}

#[derive(Clone, Debug, PartialEq)]
enum Node {
    Literal(Value),
    Whole(Expression),
    Text(Vec<Part>),
    List(Vec<Node>),
    Object(Vec<(String, Node)>),
}

#[derive(Clone, Debug, PartialEq)]
enum Part {
    Raw(String),
    Value(Expression),
}

fn compile(value: &Value, at: &str, flaws: &mut Flaws) -> Node {
    match value {
        Value::String(text) => match compile_text(text) {
            Ok(node) => node,
            Err(message) => {
                flaws.add(at, message);
                Node::Literal(Value::Null)
            }
        },
        Value::Array(items) => {
            let nodes: Vec<Node> = items
                .iter()
                .enumerate()
                .map(|(index, item)| compile(item, &pointer::push(at, index), flaws))
                .collect();
            if nodes.iter().all(Node::is_literal) {
                return Node::Literal(value.clone());
            }
            Node::List(nodes)
        }
        Value::Object(members) => {
            let nodes: Vec<(String, Node)> = members
                .iter()
                .map(|(name, member)| {
                    let node = compile(member, &pointer::push(at, name), flaws);
                    (name.clone(), node)
                })
                .collect();
            if nodes.iter().all(|(_, node)| node.is_literal()) {
                return Node::Literal(value.clone());
            }
            Node::Object(nodes)
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => Node::Literal(value.clone()),
    }
}

fn compile_text(text: &str) -> Result<Node, String> {
    let mut parts = Vec::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once(OPEN) {
        if !before.is_empty() {
            parts.push(Part::Raw(before.to_owned()));
        }
        let Some((inner, behind)) = split_at_close(after) else {
            return Err(format!(
                "this {OPEN} has no {CLOSE}; a literal {OPEN} is written {OPEN} \"{OPEN}\" {CLOSE}"
            ));
        };
        let expression = Expression::parse(inner)
            .map_err(|error| format!("in {OPEN}{}{CLOSE}: {error}", shorten(inner)))?;
        parts.push(Part::Value(expression));
        rest = behind;
    }
    if parts.is_empty() {
        return Ok(Node::Literal(Value::String(text.to_owned())));
    }
    if !rest.is_empty() {
        parts.push(Part::Raw(rest.to_owned()));
    }
    if parts.len() == 1
        && let Some(Part::Value(expression)) = parts.pop()
    {
        return Ok(Node::Whole(expression));
    }
    Ok(Node::Text(parts))
}

/// Splits at the first `}}` that does not stand in a quoted text.
fn split_at_close(text: &str) -> Option<(&str, &str)> {
    let mut quote = None;
    let mut escaped = false;
    for (at, c) in text.char_indices() {
        match quote {
            Some(_) if escaped => escaped = false,
            Some(_) if c == '\\' => escaped = true,
            Some(open) if c == open => quote = None,
            Some(_) => {}
            None if matches!(c, '"' | '\'') => quote = Some(c),
            None => {
                if let Some(behind) = text.get(at..).and_then(|rest| rest.strip_prefix(CLOSE)) {
                    return Some((text.get(..at)?, behind));
                }
            }
        }
    }
    None
}

fn collect(node: &Node, at: &str, found: &mut Vec<(String, String)>) {
    let mut add = |expression: &Expression| {
        for id in expression.references() {
            found.push((at.to_owned(), id.clone()));
        }
    };
    match node {
        Node::Literal(_) => {}
        Node::Whole(expression) => add(expression),
        Node::Text(parts) => {
            for part in parts {
                if let Part::Value(expression) = part {
                    add(expression);
                }
            }
        }
        Node::List(items) => {
            for (index, item) in items.iter().enumerate() {
                collect(item, &pointer::push(at, index), found);
            }
        }
        Node::Object(members) => {
            for (name, member) in members {
                collect(member, &pointer::push(at, name), found);
            }
        }
    }
}

struct Rendering<'s, 'a> {
    scope: &'s Scope<'a>,
    bytes_left: usize,
    bytes_max: usize,
    flaws: Flaws,
}

struct TooLarge(Violation);

impl Rendering<'_, '_> {
    fn node(&mut self, node: &Node, at: &str) -> Result<Value, TooLarge> {
        match node {
            Node::Literal(value) => {
                self.spend(json::bytes_len(value), at)?;
                Ok(value.clone())
            }
            Node::Whole(expression) => match expression.look(self.scope) {
                Ok(value) => {
                    self.spend(json::bytes_len(&value), at)?;
                    Ok(value.into_owned())
                }
                Err(error) => {
                    self.flaws.add(at, error.message);
                    Ok(Value::Null)
                }
            },
            Node::Text(parts) => self.text(parts, at),
            Node::List(nodes) => {
                self.spend(2 + nodes.len().saturating_sub(1), at)?;
                let items: Result<Vec<Value>, TooLarge> = nodes
                    .iter()
                    .enumerate()
                    .map(|(index, item)| self.node(item, &pointer::push(at, index)))
                    .collect();
                Ok(Value::Array(items?))
            }
            Node::Object(nodes) => {
                self.spend(2 + nodes.len().saturating_sub(1), at)?;
                let mut members = Map::new();
                for (name, node) in nodes {
                    self.spend(quoted_len(name) + 1, at)?;
                    let member = self.node(node, &pointer::push(at, name))?;
                    members.insert(name.clone(), member);
                }
                Ok(Value::Object(members))
            }
        }
    }

    fn text(&mut self, parts: &[Part], at: &str) -> Result<Value, TooLarge> {
        self.spend(2, at)?;
        let mut text = String::new();
        for part in parts {
            let expression = match part {
                Part::Raw(raw) => {
                    self.spend(quoted_len(raw) - 2, at)?;
                    text.push_str(raw);
                    continue;
                }
                Part::Value(expression) => expression,
            };
            match expression.look(self.scope) {
                Ok(value) => match &*value {
                    Value::Null => {}
                    Value::String(string) => {
                        self.spend(quoted_len(string) - 2, at)?;
                        text.push_str(string);
                    }
                    other => {
                        // Its quotes will be escaped, so measure it again as the text it becomes.
                        self.check(json::bytes_len(other), at)?;
                        let written = json::write(other);
                        self.spend(quoted_len(&written) - 2, at)?;
                        text.push_str(&written);
                    }
                },
                Err(error) => self.flaws.add(at, error.message),
            }
        }
        Ok(Value::String(text))
    }

    fn spend(&mut self, bytes: usize, at: &str) -> Result<(), TooLarge> {
        self.check(bytes, at)?;
        self.bytes_left -= bytes;
        Ok(())
    }

    fn check(&self, bytes: usize, at: &str) -> Result<(), TooLarge> {
        if bytes <= self.bytes_left {
            return Ok(());
        }
        Err(TooLarge(Violation::new(
            at,
            format!(
                "with this the value grows beyond {} bytes: pass a reference to a large value, not the value",
                self.bytes_max
            ),
        )))
    }
}

impl Default for Node {
    fn default() -> Self {
        Node::Literal(Value::Null)
    }
}

impl Node {
    fn is_literal(&self) -> bool {
        matches!(self, Node::Literal(_))
    }
}

/// The bytes of a string as JSON, its two quotes included.
fn quoted_len(text: &str) -> usize {
    let escapes: usize = text
        .bytes()
        .map(|byte| match byte {
            b'"' | b'\\' | b'\n' | b'\r' | b'\t' | 0x08 | 0x0c => 1,
            0..=0x1f => 5,
            _ => 0,
        })
        .sum();
    2 + text.len() + escapes
}

#[cfg(test)]
#[path = "template_tests.rs"]
mod tests;
