//! The rounds of a planner, as the log has left them.

use crate::agent::Provider;
use crate::json::Json;
use crate::words::Timestamp;

use super::event::{StepError, Try};

/// A round that the planner has answered.
#[derive(Clone, Debug, PartialEq)]
pub struct Round {
    /// From 1.
    pub number: u32,
    pub step_index: u32,
    /// Whose wire form the answer has; none of a service.
    pub provider: Option<Provider>,
    /// As the agent names it.
    pub model: String,
    pub answer: Option<Json>,
    pub text: Option<String>,
    pub calls: Vec<Called>,
    /// What was wrong with the answer as a whole.
    pub flaw: Option<String>,
    pub completed_at: Timestamp,
    /// When the round after it was asked for, or would have been but for a limit.
    pub followed_at: Option<Timestamp>,
}

/// One call of a round, and what became of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Called {
    pub id: String,
    pub name: String,
    pub arguments: Json,
    /// The step that it became.
    pub step_index: Option<u32>,
    /// Why it became none.
    pub error: Option<StepError>,
}

/// The limit at which a run stands still.
#[derive(Clone, Debug, PartialEq)]
pub struct Reached {
    pub limit: String,
    pub message: String,
    pub at: Timestamp,
}

/// What stands for the first rounds of a long conversation.
#[derive(Clone, Debug, PartialEq)]
pub struct Summary {
    pub to_round: u32,
    pub text: String,
}

/// What a run has used of its tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tokens {
    pub input: u64,
    pub output: u64,
    /// Of child runs that have ended.
    pub children: u64,
    /// Of the last answer, both ways: the next request is at least as long.
    pub last: u64,
}

impl Tokens {
    pub fn used(&self) -> u64 {
        self.input
            .saturating_add(self.output)
            .saturating_add(self.children)
    }
}

impl Round {
    /// Whether the planner must mend something, and nobody else does.
    pub fn is_malformed(&self) -> bool {
        let malformed = |call: &Called| call.step_index.is_none() && call.error.is_some();
        self.flaw.is_some() || self.calls.iter().any(malformed)
    }
}

/// Whether all models rested: that is no attempt.
pub fn nobody_was_asked(tries: &[Try]) -> bool {
    !tries.is_empty() && tries.iter().all(|t| t.outcome == "resting")
}
