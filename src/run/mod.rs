//! The book of one run: the facts in its log, and what they add up to.

pub mod event;
mod upcast;
pub mod log;
pub mod approval;
pub mod step;
pub mod round;
pub mod mailbox;
pub mod state;
mod apply;
pub mod fold;
pub mod view;
pub mod diagnosis;

pub use approval::Approval;
pub use event::Event;
pub use log::{Corrupt, Identity, Recorded, Row};
pub use round::{Called, Round};
pub use state::{State, Status};
pub use step::{DeadLetter, Phase, Step};
