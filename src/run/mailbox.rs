//! Signals that came and that no step has taken yet, in the order in which they came.

use std::collections::VecDeque;

use crate::json::{self, Json};
use crate::words::Timestamp;

#[derive(Clone, Debug, PartialEq)]
pub struct Signal {
    /// The log entry that recorded it.
    pub seq: u64,
    pub name: String,
    pub payload: Json,
    pub received_at: Timestamp,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Mailbox {
    signals: VecDeque<Signal>,
    /// Of the payloads, as JSON.
    bytes: usize,
}

impl Mailbox {
    pub fn put(&mut self, signal: Signal) {
        self.bytes = self.bytes.saturating_add(json::bytes_len(&signal.payload));
        self.signals.push_back(signal);
    }

    /// The oldest signal of one of these names.
    pub fn first_of(&self, names: &[String]) -> Option<&Signal> {
        self.signals
            .iter()
            .find(|signal| names.contains(&signal.name))
    }

    pub fn take(&mut self, seq: u64) -> Option<Signal> {
        let at = self.signals.iter().position(|signal| signal.seq == seq)?;
        let signal = self.signals.remove(at)?;
        self.bytes = self.bytes.saturating_sub(json::bytes_len(&signal.payload));
        Some(signal)
    }

    pub fn iter(&self) -> impl Iterator<Item = &Signal> {
        self.signals.iter()
    }

    pub fn len(&self) -> usize {
        self.signals.len()
    }

    pub fn is_empty(&self) -> bool {
        self.signals.is_empty()
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }
}
