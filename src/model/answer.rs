//! What a model answered.

use serde::{Deserialize, Serialize};

use crate::json::Json;

/// A model's answer, in the form that the core knows. Nothing in it is trusted yet.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelAnswer {
    /// What it said; `None` where it said nothing but white space.
    pub text: Option<String>,
    /// In the model's order.
    pub calls: Vec<RawCall>,
    pub finish: Finish,
    /// `None` where the provider did not say.
    pub usage: Option<Usage>,
    /// The model that the provider says has answered.
    pub model: Option<String>,
}

/// A call as the model made it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RawCall {
    /// A label, which may be missing (`None` or empty), or be used twice.
    pub id: Option<String>,
    pub name: String,
    pub arguments: RawArguments,
}

/// Arguments as they came.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RawArguments {
    /// No member, or null.
    Absent,
    /// Text that should be JSON.
    Text(String),
    /// JSON already.
    Value(Json),
}

/// Why the answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Finish {
    /// It was done, with calls or without.
    Done,
    /// It was cut off at the limit of its output.
    Length,
    /// It, or its provider, would not answer.
    Refused,
    /// It goes on when asked with what it has said so far.
    Paused,
    /// The conversation does not fit into its window.
    ContextFull,
}

/// Tokens of one call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// All that went in, what was cached included.
    pub input_tokens: u64,
    pub output_tokens: u64,
}
