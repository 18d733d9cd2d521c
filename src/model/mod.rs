//! A language model, whoever provides it: what it is asked with, and what it answered, in one form.
//!
//! [`Conversation`] is what a round asks with and [`ModelAnswer`] what came back; only the module of a
//! provider knows that provider's wire form. All of it is pure; the sending is done elsewhere.

mod answer;
mod conversation;
mod fault;
mod judge;
mod mend;
mod offer;
mod request;

mod anthropic;
mod openai_chat;
mod openai_responses;
#[cfg(test)]
mod testing;
mod wire;
mod workers_ai;

pub use answer::{Finish, ModelAnswer, RawArguments, RawCall, Usage};
pub use conversation::{CallResult, Conversation, Message, Offer, Replay, SentCall};
pub use fault::{FaultKind, ModelFault};
pub use offer::{Target, offered, shown_name};
pub use request::{Outgoing, read, request};
