//! What a run may do: one HTTP request per tool call, and what its answer means.
//!
//! [`Tool::parse`] reads a definition. [`Tool::request`] makes the request of one attempt, secrets
//! put in last and kept out of everything that can be logged. [`classify`] turns the answer into an
//! [`Outcome`], and [`may_repeat`] says whether one that failed for the moment may be tried again, by
//! the tool's effect. All of it is pure; the sending is done elsewhere.

mod definition;
mod encode;
mod outcome;
#[cfg(test)]
mod outcome_tests;
mod request;
mod secrets;
mod target;

pub use definition::{Effect, Tool, read_retry};
pub use outcome::{
    Answer, Outcome, RejectReason, Reply, Sent, Transport, TransportKind, Verified,
    callback_honoured, classify, may_repeat, verified,
};
pub use request::{Call, OutboundRequest, RequestError, Secrets, Signing};
pub use secrets::{is_plain_text, is_secret_name};
pub use target::{HttpTarget, Method, check_header as check_header_template};
