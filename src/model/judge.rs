//! Why there is no answer, from what came instead of one.
//!
//! | what came | kind |
//! | --- | --- |
//! | no connection, none in time, one that ended | `overloaded` |
//! | an address that is not called | `unauthorized` |
//! | an answer too large to read, a 2xx that is no answer | `unreadable` |
//! | an error that names its cause, whatever its status: the window, the policy, the bill | that |
//! | 402 | `quota_exhausted` |
//! | 401 403 | `unauthorized` |
//! | 413 | `context_too_long` |
//! | 429 | `rate_limited` |
//! | 408 409 425 5xx | `overloaded` |
//! | any other | `bad_request` |
//!
//! `x-should-retry` is the provider's last word on whether an error passes.

use serde_json::Value;

use super::{FaultKind, ModelFault, wire};
use crate::agent::{Model, Provider};
use crate::json::{self, Violation};
use crate::retry::retry_after_ms;
use crate::tool::{Reply, Transport, TransportKind};
use crate::words::Timestamp;
use crate::words::limits::RETRY_AFTER_MS_MAX;

const SAID_CHARS_MAX: usize = 500;
const CODE_CHARS_MAX: usize = 100;
/// How the conversation's length is complained of, in lower case. Codes first.
const TOO_LONG: [&str; 10] = [
    "context_length_exceeded",
    "exceed_context_size",
    "request_too_large",
    "prompt is too long",
    "input is too long",
    "maximum context length",
    "maximum prompt length",
    "context window",
    "exceed context limit",
    // One request above what a whole minute may hold never passes, though it comes as a 429.
    "request too large for",
];
const UNPAID: [&str; 7] = [
    "insufficient_quota",
    "billing_error",
    "billing_hard_limit_reached",
    "billing_not_active",
    "credit balance is too low",
    "insufficient balance",
    "daily free allocation",
];
const AGAINST_POLICY: [&str; 4] = [
    "content_policy",
    "content_filter",
    "responsibleaipolicyviolation",
    "invalid_prompt",
];
/// Codes of errors that come without a status of their own.
const CODES: [(&str, FaultKind); 9] = [
    ("authentication_error", FaultKind::Unauthorized),
    ("permission_error", FaultKind::Unauthorized),
    ("invalid_api_key", FaultKind::Unauthorized),
    ("rate_limit_exceeded", FaultKind::RateLimited),
    ("rate_limit_error", FaultKind::RateLimited),
    ("overloaded_error", FaultKind::Overloaded),
    ("server_error", FaultKind::Overloaded),
    ("api_error", FaultKind::Overloaded),
    ("invalid_request_error", FaultKind::BadRequest),
];

/// Tells the person who must act.
pub(super) struct Teller<'a> {
    pub model: &'a Model,
    /// Takes secrets out of what is quoted.
    pub mask: &'a dyn Fn(&str) -> String,
    pub now: Timestamp,
}

/// What an error's body says of it.
#[derive(Debug, Default, PartialEq)]
struct Told {
    code: Option<String>,
    /// Beside the code, and as good as it.
    class: Option<String>,
    /// A number that stands for the code, or for the status.
    number: Option<u64>,
    message: String,
}

impl Teller<'_> {
    pub(super) fn transport(&self, transport: &Transport) -> Box<ModelFault> {
        let (kind, what) = match transport.kind {
            TransportKind::Refused => (FaultKind::Overloaded, "refused the connection".to_owned()),
            TransportKind::TimedOut => (FaultKind::Overloaded, "did not answer in time".to_owned()),
            TransportKind::Dns => (FaultKind::Overloaded, "was not found".to_owned()),
            TransportKind::Tls => (
                FaultKind::Overloaded,
                "made no secure connection".to_owned(),
            ),
            TransportKind::Closed => (
                FaultKind::Overloaded,
                "ended the connection before its answer".to_owned(),
            ),
            TransportKind::Blocked => (
                FaultKind::Unauthorized,
                "is at an address that is not called".to_owned(),
            ),
            TransportKind::TooLarge { limit } => (
                FaultKind::Unreadable,
                format!("answered with more than {limit} bytes"),
            ),
        };
        let told = Told {
            message: transport.message.clone(),
            ..Told::default()
        };
        let mut fault = self.fault(kind, None, &what, &told);
        if transport.kind == TransportKind::Blocked {
            fault.message = self.sentence(&what, &told, "Change the model's base_url.");
        }
        fault
    }

    /// Any status but a 2xx.
    pub(super) fn reply(&self, reply: &Reply) -> Box<ModelFault> {
        let told = match json::read(&reply.body) {
            Ok(body) => Told::read(&body),
            Err(_) => Told {
                message: String::from_utf8_lossy(&reply.body).into_owned(),
                ..Told::default()
            },
        };
        let what = match reply.status {
            300..=399 => format!("answered {}, a redirect that is not followed", reply.status),
            status => format!("answered {status}"),
        };
        let kind = told.kind(reply.status).unwrap_or(match reply.status {
            402 => FaultKind::QuotaExhausted,
            401 | 403 => FaultKind::Unauthorized,
            413 => FaultKind::ContextTooLong,
            429 => FaultKind::RateLimited,
            408 | 409 | 425 | 500..=599 => FaultKind::Overloaded,
            _ => FaultKind::BadRequest,
        });
        let kind = match (hint(reply, "x-should-retry"), kind) {
            (Some("false"), kind) if kind.passes() => FaultKind::BadRequest,
            (Some("true"), FaultKind::BadRequest | FaultKind::Unauthorized) => {
                FaultKind::Overloaded
            }
            (_, kind) => kind,
        };
        self.fault(kind, Some(reply), &what, &told)
    }

    /// An error that comes with a 2xx, as gateways send one that begins late. Where its code is a
    /// status, that is the status.
    pub(super) fn error_within(&self, reply: &Reply, body: &Value) -> Box<ModelFault> {
        let told = Told::read(body);
        let status = told.number.and_then(|number| u16::try_from(number).ok());
        let status = status.filter(|status| (400..=599).contains(status));
        if let Some(status) = status {
            let real = Reply {
                status,
                ..reply.clone()
            };
            return self.reply(&real);
        }
        let named = [&told.code, &told.class].into_iter().flatten();
        let mut named = named.filter_map(|code| CODES.iter().find(|(known, _)| known == code));
        let kind = told
            .kind(400)
            .or_else(|| named.next().map(|(_, kind)| *kind));
        let what = format!("answered {} with an error in it", reply.status);
        self.fault(
            kind.unwrap_or(FaultKind::Unreadable),
            Some(reply),
            &what,
            &told,
        )
    }

    /// A 2xx whose body is no JSON.
    pub(super) fn not_json(&self, reply: &Reply, flaws: &[Violation]) -> Box<ModelFault> {
        let start = String::from_utf8_lossy(&reply.body);
        let why = if reply.body.trim_ascii().is_empty() {
            "it is empty".to_owned()
        } else if ["data:", "event:", ":"]
            .iter()
            .any(|mark| start.starts_with(mark))
        {
            format!("it is a stream, and none was asked for: {start}")
        } else {
            format!("{} It starts with: {start}", json::sentence(flaws))
        };
        let content_type = reply.content_type.as_deref().unwrap_or("no content type");
        let what = format!(
            "answered {} with a body ({}) that is not usable JSON",
            reply.status,
            one_line(content_type, CODE_CHARS_MAX)
        );
        let told = Told {
            message: why,
            ..Told::default()
        };
        self.fault(FaultKind::Unreadable, Some(reply), &what, &told)
    }

    /// A 2xx whose JSON is of another form.
    pub(super) fn other_form(&self, reply: &Reply, why: &str) -> Box<ModelFault> {
        let what = format!(
            "answered {} in a form that is not that of {}",
            reply.status,
            self.model.provider.as_str()
        );
        let told = Told {
            message: why.to_owned(),
            ..Told::default()
        };
        self.fault(FaultKind::Unreadable, Some(reply), &what, &told)
    }

    fn fault(
        &self,
        kind: FaultKind,
        reply: Option<&Reply>,
        what: &str,
        told: &Told,
    ) -> Box<ModelFault> {
        Box::new(ModelFault {
            kind,
            status_code: reply.map(|reply| reply.status),
            code: self.code(told),
            message: self.sentence(what, told, advice(kind)),
            retry_after_ms: reply
                .filter(|_| kind.passes())
                .and_then(|reply| wait_ms(reply, self.now)),
        })
    }

    /// What was asked, what came back, and what to do.
    fn sentence(&self, what: &str, told: &Told, advice: &str) -> String {
        let model = self.model;
        let place = match model.provider {
            Provider::WorkersAi => "by binding",
            // As the definition has it, so that a secret in it is only named.
            _ => {
                let (_, behind) = model.base_url.split_once("://").unwrap_or_default();
                let host = behind.split('/').next().unwrap_or_default();
                let whole = model.base_url.as_str();
                if host.is_empty() { whole } else { host }
            }
        };
        let code = self.code(told);
        let code = code.map(|code| format!(" ({code})")).unwrap_or_default();
        // Masked before it is cut, so that no part of a secret is left.
        let said = one_line(&(self.mask)(&told.message), SAID_CHARS_MAX);
        let said = match said.as_str() {
            "" => ".".to_owned(),
            said if said.ends_with(['.', '!', '?', '…']) => format!(": {said}"),
            said => format!(": {said}."),
        };
        let provider = model.provider.as_str();
        let name = &model.name;
        format!("{provider} {name} ({place}) {what}{code}{said} {advice}")
    }

    fn code(&self, told: &Told) -> Option<String> {
        let number = told.number.map(|number| number.to_string());
        let code = told
            .code
            .clone()
            .or_else(|| told.class.clone())
            .or(number)?;
        Some(one_line(&(self.mask)(&code), CODE_CHARS_MAX))
    }
}

fn advice(kind: FaultKind) -> &'static str {
    match kind {
        FaultKind::Overloaded => "It may answer when it is asked again.",
        FaultKind::RateLimited => "It may answer when it is asked again later.",
        FaultKind::QuotaExhausted => "Pay the provider, or raise the quota there.",
        FaultKind::Unauthorized => {
            "Check the model's api_key, the secret in it, and what that key may use."
        }
        FaultKind::ContextTooLong => {
            "Lower the model's context_tokens, or take a model with a larger window."
        }
        FaultKind::Refused => "Change what it is asked, or take another model.",
        FaultKind::BadRequest => "Check the model's name, base_url, version and parameters.",
        FaultKind::Resting => "It is asked again when it has rested.",
        FaultKind::Unreadable => "Check that the model's base_url speaks its provider's form.",
    }
}

impl Told {
    /// Out of any of the forms in use: `error` as an object or a text, a list of `errors`, one
    /// `detail`, or the error itself; and any of them as the one item of an array.
    fn read(body: &Value) -> Self {
        let body = body.get(0).unwrap_or(body);
        let first = body.get("errors").and_then(|errors| errors.get(0));
        let error = body.get("error").filter(|error| !error.is_null());
        let error = error.or(first).unwrap_or(body);
        if let Value::String(message) = error {
            return Self {
                message: message.clone(),
                ..Self::default()
            };
        }
        let filled = |member: &str| {
            let text = wire::text(error, member).filter(|text| !text.trim().is_empty());
            text.map(str::to_owned)
        };
        Self {
            code: filled("code"),
            class: filled("type").or_else(|| filled("status")),
            number: error.get("code").and_then(Value::as_u64),
            message: filled("message")
                .or_else(|| filled("detail"))
                .unwrap_or_else(|| json::write(error)),
        }
    }

    /// The kind that the error itself names, by its code or, where there is a client's error, by what
    /// it says: a page of a gateway may say anything.
    fn kind(&self, status: u16) -> Option<FaultKind> {
        let codes = [&self.code, &self.class].into_iter().flatten();
        let codes: Vec<String> = codes.map(|code| code.to_ascii_lowercase()).collect();
        let message = self.message.to_ascii_lowercase();
        let coded = |known: &[&str]| {
            let mut codes = codes.iter();
            codes.any(|code| known.iter().any(|known| code.contains(known)))
        };
        let spoken = |known: &[&str]| known.iter().any(|known| message.contains(known));
        if coded(&UNPAID) || (status < 500 && spoken(&UNPAID)) {
            return Some(FaultKind::QuotaExhausted);
        }
        if status >= 500 {
            return None;
        }
        if coded(&TOO_LONG) || (!matches!(status, 401 | 403) && spoken(&TOO_LONG)) {
            return Some(FaultKind::ContextTooLong);
        }
        if coded(&AGAINST_POLICY) || (status == 400 && spoken(&AGAINST_POLICY)) {
            return Some(FaultKind::Refused);
        }
        None
    }
}

fn hint<'r>(reply: &'r Reply, name: &str) -> Option<&'r str> {
    let mut hints = reply.hints.iter();
    hints
        .find(|(known, _)| known == name)
        .map(|(_, value)| value.trim())
}

/// How long the provider wants to be left alone.
fn wait_ms(reply: &Reply, now: Timestamp) -> Option<i64> {
    let exact = hint(reply, "retry-after-ms").and_then(|text| text.parse::<f64>().ok());
    let exact = exact.filter(|wait| wait.is_finite() && *wait >= 0.0);
    if let Some(wait) = exact {
        // A float beyond the type becomes its maximum.
        return Some((wait.ceil() as i64).min(RETRY_AFTER_MS_MAX));
    }
    retry_after_ms(reply.retry_after.as_deref()?, now)
}

/// The start of a text that may be anything, on one line and printable.
fn one_line(text: &str, chars_max: usize) -> String {
    let mut chars = text.trim().chars();
    let mut line: String = chars
        .by_ref()
        .take(chars_max)
        .map(|c| match c {
            '\n' | '\r' | '\t' => ' ',
            c if c.is_control() => '\u{fffd}',
            c => c,
        })
        .collect();
    if chars.next().is_some() {
        line.push('…');
    }
    line
}
