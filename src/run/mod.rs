//! The book of one run: the facts in its log, and what they add up to.

pub mod event;
pub mod log;
pub mod state;
pub mod step;
pub mod view;

pub use event::Event;
pub use log::{Identity, Recorded, Row};
pub use state::{Corrupt, State, Status};
pub use step::{DeadLetter, Phase, Step};
