//! What an expression is once it is read, and how a path is written back.

use std::fmt;

use serde_json::Value;

/// Chains of one operator are flat, so only parentheses and `!` make a tree deep.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Node {
    Literal(Value),
    Path(Path),
    Not(Box<Node>),
    Default(Vec<Node>),
    Compare(Comparison, Box<Node>, Box<Node>),
    All(Vec<Node>),
    Any(Vec<Node>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Comparison {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

impl Comparison {
    pub fn sign(self) -> &'static str {
        match self {
            Comparison::Equal => "==",
            Comparison::NotEqual => "!=",
            Comparison::Less => "<",
            Comparison::LessOrEqual => "<=",
            Comparison::Greater => ">",
            Comparison::GreaterOrEqual => ">=",
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Path {
    pub root: Root,
    pub members: Vec<Member>,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Root {
    Input,
    Run,
    Step(String),
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Member {
    Name(String),
    Index(u32),
}

/// Writes a path as its author could have written it, for error texts.
impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.root)?;
        self.members
            .iter()
            .try_for_each(|member| write!(f, "{member}"))
    }
}

impl fmt::Display for Root {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Root::Input => f.write_str("input"),
            Root::Run => f.write_str("run"),
            Root::Step(id) => write!(f, "steps.{id}.result"),
        }
    }
}

impl fmt::Display for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Member::Name(name) if !name.is_empty() && name.chars().all(is_name) => {
                write!(f, ".{name}")
            }
            Member::Name(name) => write!(f, "[{name:?}]"),
            Member::Index(index) => write!(f, "[{index}]"),
        }
    }
}

/// What a name may hold without quotes.
pub(super) fn is_name(c: char) -> bool {
    c.is_alphanumeric() || matches!(c, '_' | '-')
}
