//! The page that a person sees who follows a signed link to an approval. Pure: text in, text out.
//!
//! ```text
//! GET    ask(shown, action, &Filled::default(), &[])            the question and its form
//! POST   read_form(body, schema, decided_by) ─► Sent            what was typed, and what is meant
//!          answer, held against the schema ─► decide ─► decided(…)
//!          flaws, of the form or the schema ─► ask(shown, action, &filled, &flaws)
//! either unusable(reason)                                       a link or a body that is none
//! ```
//!
//! Every answer carries [`HEADERS`]. The page has no script and loads nothing, so its policy forbids
//! both; all that is not this program's own markup is escaped.

mod form;
mod html;
mod page;
mod read;

#[cfg(test)]
mod browser;
#[cfg(test)]
mod tests;

use crate::json::Value;
use crate::words::Timestamp;
use crate::words::limits::APPROVAL_FORM_BYTES_MAX;

pub use crate::run::event::Decision;
pub use page::{ask, decided, unusable};
pub use read::{Filled, read_form};

/// The headers of every answer with a page, the media type among them.
///
/// Since the referrer is withheld, browsers send `Origin: null` with the form: the token in the
/// address is what permits the decision, not where the form came from.
pub const HEADERS: &[(&str, &str)] = &[
    ("content-type", "text/html; charset=utf-8"),
    (
        "content-security-policy",
        "default-src 'none'; style-src 'sha256-mJs/4LmOeR1k0R1l8GI4XHD517rIfV05UC8Vy+wV9g4='; form-action 'self'; frame-ancestors 'none'; base-uri 'none'",
    ),
    ("referrer-policy", "no-referrer"),
    ("x-content-type-options", "nosniff"),
    ("cache-control", "no-store"),
    ("x-robots-tag", "noindex"),
];

/// What a person is asked.
#[derive(Debug, Clone, Copy)]
pub struct Shown<'a> {
    /// Plain text; its line breaks are kept.
    pub prompt: &'a str,
    /// The tool whose call is to be approved.
    pub tool: Option<&'a str>,
    /// That call's exact arguments.
    pub arguments: Option<&'a Value>,
    /// Their SHA-256 in hex, for comparing with the log.
    pub arguments_digest: Option<&'a str>,
    /// What the answer's `data` must be: a schema that [`crate::schema::check`] let in.
    pub schema: Option<&'a Value>,
    /// When the approval ends by itself.
    pub until: Option<Timestamp>,
    pub run_id: &'a str,
    pub step_id: &'a str,
    /// The name that the link is bound to; without one the form asks for it.
    pub decided_by: Option<&'a str>,
}

/// What a sent form means.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    pub decision: Decision,
    /// At most [`APPROVAL_COMMENT_CHARS_MAX`](crate::words::limits::APPROVAL_COMMENT_CHARS_MAX) characters, not empty.
    pub comment: Option<String>,
    /// The name that the link is bound to, or else the one that was typed, which nobody has checked.
    pub decided_by: Option<String>,
    /// Present exactly if there is a schema and the decision is to approve.
    pub data: Option<Value>,
}

/// How an approval ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    Approved,
    Rejected,
    /// Nobody decided in time.
    Expired,
    /// The run ended before anybody decided.
    Cancelled,
}

/// An approval that is over.
#[derive(Debug, Clone, Copy)]
pub struct Decided<'a> {
    pub outcome: Outcome,
    pub by: Option<&'a str>,
    pub at: Timestamp,
    pub comment: Option<&'a str>,
    /// What was asked.
    pub prompt: &'a str,
    pub tool: Option<&'a str>,
    pub run_id: &'a str,
    pub step_id: &'a str,
    /// Whoever sees the page has just tried to decide, and came too late.
    pub too_late: bool,
}

/// Why there is nothing to decide here.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unusable {
    /// The signature is wrong, or it signs nothing that exists.
    #[error("This link does not lead to an approval. Check that it was copied whole.")]
    Forged,
    #[error("This link has expired. Whoever sent it can send a new one.")]
    Expired,
    #[error("The form could not be read: {0}. Nothing was decided; go back and try again.")]
    Malformed(#[from] Malformed),
}

impl Unusable {
    /// The status that the page is sent with.
    pub fn status(&self) -> u16 {
        match self {
            Self::Forged => 404,
            Self::Expired => 410,
            Self::Malformed(Malformed::TooLarge) => 413,
            Self::Malformed(_) => 400,
        }
    }
}

/// Why a body is no form that a page of this module sends.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    #[error("it has more than {APPROVAL_FORM_BYTES_MAX} bytes")]
    TooLarge,
    #[error("it has more fields than a form has")]
    TooMany,
    #[error("it is not percent-encoded UTF-8")]
    NotEncoded,
    #[error("there is no field {0:?}")]
    Unknown(String),
    #[error("the field {0:?} is sent twice")]
    Twice(String),
    #[error("the field {0:?} holds the character U+0000, which cannot be stored")]
    Nul(String),
}
