//! What the answer to a tool call means, and what follows from it.
//!
//! | answer | meaning | `read`, `idempotent` | `at_most_once` |
//! | --- | --- | --- | --- |
//! | 200 201 203 204 206 | `succeeded` | `complete` | `complete` |
//! | 202 | `accepted` | `await_callback` | `await_callback` |
//! | 301 302 303 304 307 308 | `rejected_by_tool` | `dead_letter` | `dead_letter` |
//! | 400 401 402 403 404 405 409 410 413 415 418 422 451 | `rejected_by_tool` | `dead_letter` | `dead_letter` |
//! | 408 | `retryable` | `retry` | `unknown` |
//! | 425 429 | `retryable` | `retry` | `retry` |
//! | 500 501 502 503 504 507 520 529 599 | `retryable` | `retry` | `unknown` |
//! | refused dns tls | `retryable` | `retry` | `retry` |
//! | timed_out closed | `retryable` | `retry` | `unknown` |
//! | blocked | `blocked` | `dead_letter` | `dead_letter` |
//! | too_large | `invalid_result` | `dead_letter` | `dead_letter` |
//! | 0 100 199 600 999 | `rejected_by_tool` | `dead_letter` | `dead_letter` |
//!
//! - A 2xx must carry JSON, whatever its content type says, or nothing (null). Anything else is
//!   `invalid_result`: the tool acted, but what it said cannot be kept.
//! - A 202 means that the tool took note of `Dormouse-Callback` and will call it. A tool that answers
//!   202 and is done says so with `Dormouse-Callback: none`; then it is a 2xx like any other.
//! - A 409 with `Retry-After` is how an endpoint says that the call with our own key is still in
//!   progress: it is retried. Any other 409 is final.
//! - 425 and 429 say that the call was not carried out, so even `at_most_once` may send it again.
//!   A 408 or 5xx may come from a gateway behind which the tool acted.
//! - Redirects are followed, or not, before this; the last answer is judged.

use serde_json::Value;

use super::definition::Effect;
use super::request::{OutboundRequest, RequestError};
use crate::json::{self, Violation};
use crate::retry::retry_after_ms;
use crate::words::Timestamp;
use crate::words::limits::{VALUE_BYTES_MAX, VIOLATIONS_MAX};

const ERROR_BYTES_MAX: usize = 1024;
const PREVIEW_BYTES_MAX: usize = 200;

/// What came back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    Reply(Reply),
    Transport(Transport),
}

/// An HTTP answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    pub status: u16,
    /// The header's text.
    pub retry_after: Option<String>,
    /// The header's text.
    pub content_type: Option<String>,
    /// What else the answer said about trying again, such as `x-should-retry`: names in lower case.
    pub hints: Vec<(String, String)>,
    /// As [`callback_honoured`] read it.
    pub callback_honoured: bool,
    /// Whole; what was too large to read is [`TransportKind::TooLarge`].
    pub body: Vec<u8>,
}

/// No answer, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transport {
    pub kind: TransportKind,
    /// For the log, secrets masked.
    pub message: String,
}

/// How a request failed without an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransportKind {
    Refused,
    TimedOut,
    Dns,
    Tls,
    Closed,
    /// The engine itself does not call this address.
    Blocked,
    /// The answer's body is above `limit` bytes.
    TooLarge {
        limit: usize,
    },
}

/// What an answer means.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// It acted. The result is not yet held against the tool's `result` schema.
    Succeeded { result: Value },
    /// It will call back.
    Accepted,
    /// Worth another try.
    Retryable {
        status_code: Option<u16>,
        error: String,
        /// What the server asked for.
        retry_after_ms: Option<i64>,
        sent: Sent,
    },
    /// Another try would end the same way.
    Rejected {
        status_code: Option<u16>,
        error: String,
        reason: RejectReason,
        /// Pointers into the result, or into the arguments.
        errors: Vec<Violation>,
    },
}

/// Whether the tool may have acted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    No,
    Maybe,
}

/// Why another try is of no use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RejectReason {
    RejectedByTool,
    InvalidResult,
    InvalidArguments,
    /// The request cannot be made or must not be sent: an address, a secret.
    Blocked,
}

/// What the answer to a `verify` request means.
#[derive(Clone, Debug, PartialEq)]
pub enum Verified {
    Done { result: Value },
    NotDone,
    StillUnknown { error: String },
}

/// Judges an answer. `now` is for a `Retry-After` that is a date.
#[must_use]
pub fn classify(answer: &Answer, now: Timestamp) -> Outcome {
    match answer {
        Answer::Reply(reply) => classify_reply(reply, now),
        Answer::Transport(transport) => classify_transport(transport),
    }
}

/// Whether a call that failed for the moment may be made again.
#[must_use]
pub fn may_repeat(effect: Effect, sent: Sent) -> bool {
    sent == Sent::No || effect != Effect::AtMostOnce
}

/// Judges the answer to a `verify` request: 200 with the result, 404 if nothing was done.
#[must_use]
pub fn verified(answer: &Answer) -> Verified {
    match answer {
        Answer::Reply(reply) if reply.status == 404 => Verified::NotDone,
        Answer::Reply(reply) if reply.status == 200 => match read_result(reply) {
            Ok(result) => Verified::Done { result },
            Err((error, _)) => Verified::StillUnknown { error },
        },
        Answer::Reply(reply) => Verified::StillUnknown {
            error: error_text(reply),
        },
        Answer::Transport(transport) => Verified::StillUnknown {
            error: transport_text(transport),
        },
    }
}

/// Whether a 202 means a callback, by the answer's own `Dormouse-Callback` header: it does unless
/// that says `none`.
#[must_use]
pub fn callback_honoured(header: Option<&str>) -> bool {
    !header.is_some_and(|value| value.trim().eq_ignore_ascii_case("none"))
}

impl Outcome {
    /// The same with the request's secrets masked in its error: a tool may answer with what it was
    /// sent. A result is the tool's own and stays as it is.
    #[must_use]
    pub fn masked(mut self, request: &OutboundRequest) -> Self {
        if let Outcome::Retryable { error, .. } | Outcome::Rejected { error, .. } = &mut self {
            *error = request.mask(error);
        }
        self
    }
}

impl From<RequestError> for Outcome {
    /// A request that could not be made was not sent.
    fn from(error: RequestError) -> Self {
        let text = error.to_string();
        let (reason, errors) = match error {
            RequestError::Arguments { violations } => (RejectReason::InvalidArguments, violations),
            _ => (RejectReason::Blocked, Vec::new()),
        };
        Outcome::Rejected {
            status_code: None,
            error: text,
            reason,
            errors,
        }
    }
}

impl RejectReason {
    /// The dead letter's `reason`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            RejectReason::RejectedByTool => "rejected_by_tool",
            RejectReason::InvalidResult => "invalid_result",
            RejectReason::InvalidArguments => "invalid_arguments",
            RejectReason::Blocked => "undeliverable",
        }
    }
}

fn classify_reply(reply: &Reply, now: Timestamp) -> Outcome {
    let status_code = Some(reply.status);
    let retryable = |sent| Outcome::Retryable {
        status_code,
        error: error_text(reply),
        retry_after_ms: reply
            .retry_after
            .as_deref()
            .and_then(|header| retry_after_ms(header, now)),
        sent,
    };
    match reply.status {
        202 if reply.callback_honoured => Outcome::Accepted,
        200..=299 => match read_result(reply) {
            Ok(result) => Outcome::Succeeded { result },
            Err((error, errors)) => Outcome::Rejected {
                status_code,
                error,
                reason: RejectReason::InvalidResult,
                errors,
            },
        },
        425 | 429 => retryable(Sent::No),
        409 if reply.retry_after.is_some() => retryable(Sent::Maybe),
        408 | 500..=599 => retryable(Sent::Maybe),
        _ => Outcome::Rejected {
            status_code,
            error: error_text(reply),
            reason: RejectReason::RejectedByTool,
            errors: problem_errors(reply),
        },
    }
}

fn classify_transport(transport: &Transport) -> Outcome {
    let error = transport_text(transport);
    let reason = match transport.kind {
        TransportKind::Blocked => RejectReason::Blocked,
        TransportKind::TooLarge { .. } => RejectReason::InvalidResult,
        kind => {
            let sent = match kind {
                TransportKind::Refused | TransportKind::Dns | TransportKind::Tls => Sent::No,
                _ => Sent::Maybe,
            };
            return Outcome::Retryable {
                status_code: None,
                error,
                retry_after_ms: None,
                sent,
            };
        }
    };
    Outcome::Rejected {
        status_code: None,
        error,
        reason,
        errors: Vec::new(),
    }
}

fn read_result(reply: &Reply) -> Result<Value, (String, Vec<Violation>)> {
    if reply.body.trim_ascii().is_empty() {
        return Ok(Value::Null);
    }
    let result = json::read(&reply.body).map_err(|errors| {
        let text = format!(
            "the tool answered {} with a body ({}) that is not JSON or cannot be kept exactly: {}",
            reply.status,
            reply.content_type.as_deref().map_or_else(
                || "no content type".to_owned(),
                |name| preview(name.as_bytes(), 100)
            ),
            preview(&reply.body, PREVIEW_BYTES_MAX)
        );
        (text, errors)
    })?;
    let bytes = json::bytes_len(&result);
    if bytes > VALUE_BYTES_MAX {
        let text = format!("the tool's result has {bytes} bytes; {VALUE_BYTES_MAX} are kept");
        return Err((text, Vec::new()));
    }
    Ok(result)
}

/// What the tool said of its error: a problem's `detail` or `title`, else the start of its body.
fn error_text(reply: &Reply) -> String {
    let said = problem_text(reply).unwrap_or_else(|| preview(&reply.body, ERROR_BYTES_MAX));
    let lead = match reply.status {
        300..=399 => format!(
            "the tool answered {}, a redirect that is not followed",
            reply.status
        ),
        status => format!("the tool answered {status}"),
    };
    if said.is_empty() {
        return lead;
    }
    format!("{lead}: {said}")
}

/// A problem document (RFC 9457), where the answer is one.
fn problem(reply: &Reply) -> Option<Value> {
    let content_type = reply.content_type.as_deref()?.to_ascii_lowercase();
    if !content_type.starts_with("application/problem+json") {
        return None;
    }
    json::read(&reply.body).ok()
}

/// The places that a problem document names: in the tool's request, which is the step's arguments.
fn problem_errors(reply: &Reply) -> Vec<Violation> {
    let problem = problem(reply).unwrap_or_default();
    let listed = problem.get("errors").and_then(Value::as_array);
    let violation = |error: &Value| {
        let text = |member: &str| error.get(member).and_then(Value::as_str);
        let pointer = text("pointer")?.trim_start_matches('#');
        let message = text("message").or_else(|| text("detail"))?;
        Some(Violation::new(
            format!(
                "/payload/arguments{}",
                preview(pointer.as_bytes(), PREVIEW_BYTES_MAX)
            ),
            preview(message.as_bytes(), PREVIEW_BYTES_MAX),
        ))
    };
    let errors = listed.into_iter().flatten().filter_map(violation);
    errors.take(VIOLATIONS_MAX).collect()
}

fn problem_text(reply: &Reply) -> Option<String> {
    let problem = problem(reply)?;
    ["detail", "title"]
        .iter()
        .filter_map(|member| problem.get(member)?.as_str())
        .find(|text| !text.trim().is_empty())
        .map(|text| preview(text.as_bytes(), ERROR_BYTES_MAX))
}

fn transport_text(transport: &Transport) -> String {
    let what = match transport.kind {
        TransportKind::Refused => "the tool's host refused the connection".to_owned(),
        TransportKind::TimedOut => "the tool did not answer in time".to_owned(),
        TransportKind::Dns => "the tool's host was not found".to_owned(),
        TransportKind::Tls => "no secure connection to the tool's host".to_owned(),
        TransportKind::Closed => "the connection ended before the tool's answer did".to_owned(),
        TransportKind::Blocked => "this address is not one that tools may call".to_owned(),
        TransportKind::TooLarge { limit } => {
            format!("the tool's answer is larger than {limit} bytes")
        }
    };
    if transport.message.is_empty() {
        return what;
    }
    let message = preview(transport.message.as_bytes(), ERROR_BYTES_MAX);
    format!("{what}: {message}")
}

/// The start of a text that may be anything, on one line and printable.
fn preview(bytes: &[u8], bytes_max: usize) -> String {
    let start = bytes.get(..bytes_max).unwrap_or(bytes);
    let mut shown: String = String::from_utf8_lossy(start)
        .chars()
        .map(|c| match c {
            '\n' | '\r' | '\t' => ' ',
            c if c.is_control() => '\u{fffd}',
            c => c,
        })
        .collect();
    shown = shown.trim().to_owned();
    if start.len() < bytes.len() {
        // The cut may have gone through a character.
        while shown.ends_with('\u{fffd}') {
            shown.pop();
        }
        shown.push('…');
    }
    shown
}
