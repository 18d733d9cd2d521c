//! The book of one run: the facts in its log, and what they add up to.

pub mod event;
pub mod log;
pub mod step;
pub mod state;
pub mod fold;
pub mod view;

pub use event::Event;
pub use log::{Corrupt, Identity, Recorded, Row};
pub use state::{State, Status};
pub use step::{DeadLetter, Phase, Step};
