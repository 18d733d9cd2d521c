//! A fixed plan: steps, what each does, and which must be over before it starts.
//!
//! A [`Plan`] exists only whole and sound: [`Plan::parse`] names every flaw of a definition at once,
//! and what it accepts has no cycle, no unknown name and no step that reads a result it cannot be
//! sure of. The JSON is what is stored; it is parsed again wherever it is needed.

mod definition;
mod graph;
mod parse;
mod step;
#[cfg(test)]
mod tests;

pub use definition::{
    Action, OnFailure, OnReject, OnTimeout, Plan, Step, VersionedName, parse_versioned_name,
};
pub use parse::parse_intent;
