//! The order of effects: what happens first, what only after that is stored, and what if it fails.
//! Async over [`crate::ports`], with no word of the platform.

pub mod index;
pub mod relay;
pub mod log_table;
pub mod projection;
pub mod home;
pub mod stray;
pub mod front;
pub mod family;
pub mod cache;
pub mod hold;
pub mod think;
pub mod work;
pub mod sweep;

/// What becomes of a queue's message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Ack,
    /// Deliver it again, this much later.
    Retry {
        delay_s: u32,
    },
}
