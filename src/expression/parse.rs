//! The text of an expression becomes a tree, by recursive descent and in bounded depth.

use serde_json::Value;

use super::tree::{Comparison, Member, Node, Path, Root, is_name};
use crate::json;

/// The longest expression, in bytes, braces not counted.
pub const EXPRESSION_BYTES_MAX: usize = 2048;

/// How deep parentheses and `!` may nest.
pub const EXPRESSION_DEPTH_MAX: usize = 32;

/// A parsed expression. It is never empty, and as small as its text.
#[derive(Clone, Debug, PartialEq)]
pub struct Expression {
    pub(super) root: Node,
    references: Vec<String>,
}

impl Expression {
    /// Reads one expression, given without its braces.
    ///
    /// # Errors
    /// The first thing that is not understood, with its byte offset in `text`.
    pub fn parse(text: &str) -> Result<Expression, ExpressionError> {
        if text.len() > EXPRESSION_BYTES_MAX {
            return Err(ExpressionError {
                at: EXPRESSION_BYTES_MAX,
                message: format!("an expression holds at most {EXPRESSION_BYTES_MAX} bytes"),
            });
        }
        let mut parser = Parser {
            text,
            at: 0,
            depth: 0,
            references: Vec::new(),
        };
        let root = parser.any()?;
        parser.skip_space();
        match parser.peek() {
            None => Ok(Expression {
                root,
                references: parser.references,
            }),
            Some(found) => Err(parser.error(unexpected(found))),
        }
    }

    /// The ids of the steps whose results it reads: each once, in the order of first use.
    #[must_use]
    pub fn references(&self) -> &[String] {
        &self.references
    }
}

/// Why a text is not an expression.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message} (at byte {at} of the expression)")]
pub struct ExpressionError {
    /// The byte offset at which reading stopped.
    pub at: usize,
    /// What is wrong, for the person who wrote it.
    pub message: String,
}

struct Parser<'a> {
    text: &'a str,
    at: usize,
    depth: usize,
    references: Vec<String>,
}

impl<'a> Parser<'a> {
    fn any(&mut self) -> Result<Node, ExpressionError> {
        self.chain("||", Self::all, Node::Any)
    }

    fn all(&mut self) -> Result<Node, ExpressionError> {
        self.chain("&&", Self::comparison, Node::All)
    }

    fn comparison(&mut self) -> Result<Node, ExpressionError> {
        let left = self.default()?;
        let Some(comparison) = self.comparison_sign() else {
            return Ok(left);
        };
        let right = self.default()?;
        let end = self.at;
        if self.comparison_sign().is_some() {
            self.at = end;
            return Err(self.error("comparisons do not chain: join them with &&"));
        }
        Ok(Node::Compare(comparison, Box::new(left), Box::new(right)))
    }

    fn default(&mut self) -> Result<Node, ExpressionError> {
        self.chain("??", Self::unary, Node::Default)
    }

    fn unary(&mut self) -> Result<Node, ExpressionError> {
        self.skip_space();
        if self.rest().starts_with('!') && !self.rest().starts_with("!=") {
            self.at += 1;
            return self.deeper(|parser| Ok(Node::Not(Box::new(parser.unary()?))));
        }
        self.primary()
    }

    fn primary(&mut self) -> Result<Node, ExpressionError> {
        self.skip_space();
        match self.peek() {
            None => Err(self.error("a value is missing here")),
            Some('(') => {
                self.at += 1;
                let inner = self.deeper(Self::any)?;
                self.skip_space();
                if !self.take(")") {
                    return Err(self.error("a closing parenthesis is missing here"));
                }
                Ok(inner)
            }
            Some('"' | '\'') => Ok(Node::Literal(Value::String(self.string()?))),
            Some(c) if c == '-' || c.is_ascii_digit() => self.number(),
            Some(c) if is_name(c) => self.word(),
            Some(c) => Err(self.error(unexpected(c))),
        }
    }

    /// One or more of `item`, joined by `sign`.
    fn chain(
        &mut self,
        sign: &str,
        item: fn(&mut Self) -> Result<Node, ExpressionError>,
        join: fn(Vec<Node>) -> Node,
    ) -> Result<Node, ExpressionError> {
        let first = item(self)?;
        self.skip_space();
        if !self.rest().starts_with(sign) {
            return Ok(first);
        }
        let mut items = vec![first];
        while self.take(sign) {
            items.push(item(self)?);
            self.skip_space();
        }
        Ok(join(items))
    }

    fn deeper(
        &mut self,
        inner: impl FnOnce(&mut Self) -> Result<Node, ExpressionError>,
    ) -> Result<Node, ExpressionError> {
        if self.depth >= EXPRESSION_DEPTH_MAX {
            return Err(self.error(format!(
                "parentheses and ! nest at most {EXPRESSION_DEPTH_MAX} deep"
            )));
        }
        self.depth += 1;
        let node = inner(self)?;
        self.depth -= 1;
        Ok(node)
    }

    fn comparison_sign(&mut self) -> Option<Comparison> {
        self.skip_space();
        // The longer signs first: `<` is also the start of `<=`.
        [
            ("==", Comparison::Equal),
            ("!=", Comparison::NotEqual),
            ("<=", Comparison::LessOrEqual),
            (">=", Comparison::GreaterOrEqual),
            ("<", Comparison::Less),
            (">", Comparison::Greater),
        ]
        .into_iter()
        .find_map(|(sign, comparison)| self.take(sign).then_some(comparison))
    }

    fn word(&mut self) -> Result<Node, ExpressionError> {
        let start = self.at;
        let literal = match self.name() {
            "true" => Value::Bool(true),
            "false" => Value::Bool(false),
            "null" => Value::Null,
            "input" => return self.path(Root::Input),
            "run" => return self.path(Root::Run),
            "steps" => {
                let id = self.step_id()?;
                if !self.references.contains(&id) {
                    self.references.push(id.clone());
                }
                return self.path(Root::Step(id));
            }
            _ => {
                self.at = start;
                return Err(self
                    .error("a path starts with input, steps or run, and a text stands in quotes"));
            }
        };
        Ok(Node::Literal(literal))
    }

    fn path(&mut self, root: Root) -> Result<Node, ExpressionError> {
        let mut members = Vec::new();
        loop {
            if self.take(".") {
                members.push(Member::Name(self.dotted()?));
            } else if self.take("[") {
                members.push(self.bracketed()?);
            } else {
                return Ok(Node::Path(Path { root, members }));
            }
        }
    }

    /// The id between `steps` and `result`; a step offers its result and nothing else.
    fn step_id(&mut self) -> Result<String, ExpressionError> {
        let start = self.at;
        let unfinished = |parser: &Self| ExpressionError {
            at: parser.at,
            message: format!(
                "a step's result is read as steps.<id>.result, and here .result is missing after steps{}",
                parser.text.get(start..parser.at).unwrap_or_default()
            ),
        };
        let mut id = match self.part()? {
            None => return Err(unfinished(self)),
            Some(Member::Index(_)) => {
                return Err(self.error("steps are named by their id, not by their number"));
            }
            Some(Member::Name(first)) => first,
        };
        let dotted = self.text.as_bytes().get(start) == Some(&b'.');
        loop {
            let bracket = self.rest().starts_with('[');
            match self.part()? {
                Some(Member::Name(name)) if name == "result" => return Ok(id),
                // Only the plain form joins: brackets hold a whole id.
                Some(Member::Name(name)) if dotted && !bracket => {
                    id.push('.');
                    id.push_str(&name);
                }
                _ => return Err(unfinished(self)),
            }
        }
    }

    fn part(&mut self) -> Result<Option<Member>, ExpressionError> {
        if self.take(".") {
            return Ok(Some(Member::Name(self.dotted()?)));
        }
        if self.take("[") {
            return Ok(Some(self.bracketed()?));
        }
        Ok(None)
    }

    fn dotted(&mut self) -> Result<String, ExpressionError> {
        match self.name() {
            "" => Err(self.error("a name is missing after the dot; an odd one goes in [\"…\"]")),
            name => Ok(name.to_owned()),
        }
    }

    fn bracketed(&mut self) -> Result<Member, ExpressionError> {
        self.skip_space();
        let member = match self.peek() {
            Some('"' | '\'') => Member::Name(self.string()?),
            Some(c) if c.is_ascii_digit() => {
                let digits = self.take_while(|c| c.is_ascii_digit());
                match digits.parse() {
                    Ok(index) => Member::Index(index),
                    Err(_) => return Err(self.error("an index this large points at nothing")),
                }
            }
            _ => {
                return Err(
                    self.error("brackets hold a name in quotes, or an index that counts from 0")
                );
            }
        };
        self.skip_space();
        if !self.take("]") {
            return Err(self.error("a closing bracket is missing here"));
        }
        Ok(member)
    }

    fn number(&mut self) -> Result<Node, ExpressionError> {
        let start = self.at;
        let text =
            self.take_while(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '+' | '.' | '_'));
        // The reader of outside JSON keeps a number's digits and refuses what no double can hold.
        match json::read(text.as_bytes()) {
            Ok(number @ Value::Number(_)) => Ok(Node::Literal(number)),
            _ => {
                self.at = start;
                Err(self.error("a number is written as in JSON, and fits a double"))
            }
        }
    }

    fn string(&mut self) -> Result<String, ExpressionError> {
        let start = self.at;
        let mut chars = self.rest().char_indices();
        let quote = chars.next().map(|(_, c)| c);
        let mut text = String::new();
        while let Some((offset, c)) = chars.next() {
            if Some(c) == quote {
                self.at = start + offset + c.len_utf8();
                return Ok(text);
            }
            if c != '\\' {
                text.push(c);
                continue;
            }
            match chars.next() {
                Some((_, c @ ('\\' | '"' | '\''))) => text.push(c),
                Some((_, 'n')) => text.push('\n'),
                Some((_, 'r')) => text.push('\r'),
                Some((_, 't')) => text.push('\t'),
                _ => {
                    self.at = start + offset;
                    return Err(self.error(r#"a backslash stands only before \ " ' n r and t"#));
                }
            }
        }
        Err(self.error("this text has no closing quote"))
    }

    fn name(&mut self) -> &'a str {
        self.take_while(is_name)
    }

    fn take_while(&mut self, accept: impl Fn(char) -> bool) -> &'a str {
        let rest = self.text.get(self.at..).unwrap_or_default();
        let end = rest.find(|c| !accept(c)).unwrap_or(rest.len());
        self.at += end;
        rest.get(..end).unwrap_or_default()
    }

    fn take(&mut self, sign: &str) -> bool {
        let found = self.rest().starts_with(sign);
        if found {
            self.at += sign.len();
        }
        found
    }

    fn skip_space(&mut self) {
        self.take_while(char::is_whitespace);
    }

    fn peek(&self) -> Option<char> {
        self.rest().chars().next()
    }

    fn rest(&self) -> &'a str {
        self.text.get(self.at..).unwrap_or_default()
    }

    fn error(&self, message: impl Into<String>) -> ExpressionError {
        ExpressionError {
            at: self.at,
            message: message.into(),
        }
    }
}

fn unexpected(found: char) -> String {
    match found {
        '+' | '*' | '/' | '%' => {
            format!("{found} is not known here: expressions pick and compare, they do not compute")
        }
        '=' => "equality is written ==".to_owned(),
        '&' | '|' => "and is written &&, or is written ||".to_owned(),
        '(' => "there are no functions to call".to_owned(),
        _ => format!("{found:?} is not understood here"),
    }
}

#[cfg(test)]
#[path = "parse_tests.rs"]
mod tests;
