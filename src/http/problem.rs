//! What a client is told when its request is not carried out: the one place with the types, titles
//! and status codes of problems (RFC 9457).

use serde_json::{Map, json};

use crate::decide::Refusal;
use crate::flow::front::Refused;
use crate::json::{self, Value, Violation};
use crate::ports::Fault;
use crate::words::Timestamp;
use crate::words::limits::REQUEST_BODY_BYTES_MAX;

use super::Response;

/// A type of problem: what stays the same each time it occurs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kind {
    /// The end of its `type`, `/problems/NAME`.
    pub name: &'static str,
    pub status: u16,
    pub title: &'static str,
    /// For whoever looks its `type` up: what it means and what to do.
    pub meaning: &'static str,
}

macro_rules! kinds {
    ($($word:ident = $status:literal $name:literal $title:literal $meaning:literal)*) => {
        $(pub const $word: Kind =
            Kind { name: $name, status: $status, title: $title, meaning: $meaning };)*
        /// Every type of problem, in the order of their status codes.
        pub const ALL: &[Kind] = &[$($word),*];
    };
}

kinds! {
    INVALID_JSON = 400 "invalid-json" "The body is not JSON"
        "The body could not be read as JSON, or holds what cannot be carried exactly: a member name used twice, U+0000, half a surrogate pair, a number beyond a double's range. `errors` names the places. Nothing was done."
    INVALID_QUERY = 400 "invalid-query" "A query parameter is wrong"
        "A query parameter is unknown, given twice or malformed. `parameter` names it. Nothing was done."
    INVALID_HEADER = 400 "invalid-header" "A header is wrong"
        "A header's value cannot be used. `header` names it. Nothing was done."
    UNAUTHORIZED = 401 "unauthorized" "A valid key is needed"
        "The Authorization header is missing, malformed, or holds a key that is not in force here. Send `Authorization: Bearer` and a key."
    FORBIDDEN = 403 "forbidden" "The key's role does not allow this"
        "The key is valid, and its role is too low for this route. `role_needed` names the lowest role that may use it."
    NOT_FOUND = 404 "not-found" "Not found"
        "There is no such path, or nothing of that id or name among what the key's tenant owns."
    METHOD_NOT_ALLOWED = 405 "method-not-allowed" "The path has no such method"
        "The path exists with other methods: the Allow header lists them."
    RUN_ENDED = 409 "run-ended" "The run has ended"
        "The run has ended, so nothing further can happen to it. `run_status` tells how it ended."
    RUN_FROZEN = 409 "run-frozen" "The run is frozen"
        "An entry of the run's log, at `seq`, cannot be read by this release. Nothing of the run is executed until one that can read it is deployed."
    ALREADY_SETTLED = 409 "already-settled" "The dead letter is settled"
        "Somebody settled the dead letter before: `dead_letter_status` tells how, `settled_at` when. The first settlement stands."
    ALREADY_DECIDED = 409 "already-decided" "The approval is decided"
        "Somebody decided the approval before, or it expired, or its run ended: `approval_status` tells which, `decided_by` and `decided_at` who and when. The first of these stands."
    RUN_NOT_FAILED = 409 "run-not-failed" "The run cannot be retried"
        "Only a failed run goes on from its failed step. `run_status` tells how the run is."
    NO_STEP = 409 "no-step" "The dead letter belongs to no step"
        "The dead letter holds an envelope that no run took, so there is no step to give a result to. Redeliver it or discard it."
    TENANT_EXISTS = 409 "tenant-exists" "The tenant exists"
        "There is a tenant of that id already."
    KEY_NOT_SHOWN = 409 "key-not-shown" "The key cannot be shown again"
        "The request was carried out before, and what was needed to show its key again has changed since. Revoke the key that `key_id` names, and make another."
    CALLBACK_GONE = 410 "callback-gone" "The callback is of no use any more"
        "The call was called back before, was replaced, or its run has ended. Nothing was changed, and asking again will not help."
    TOO_LARGE = 413 "too-large" "Too large"
        "The body, or a value in it, is larger than allowed. `limit_bytes` is the most, counted in encoded UTF-8 bytes. Nothing was done."
    UNSUPPORTED_MEDIA_TYPE = 415 "unsupported-media-type" "The body is not sent as JSON"
        "The Content-Type header names something else than JSON. Send `application/json`, or leave the header out."
    INVALID_RUN = 422 "invalid-run" "The run cannot be started as asked"
        "The body asks for no run that could be started. `errors` names the places. Nothing was done."
    INVALID_CANCEL = 422 "invalid-cancel" "The request to cancel is wrong"
        "`errors` names the places in the body. Nothing was done."
    INVALID_LIMITS = 422 "invalid-limits" "The limits cannot be raised so"
        "`errors` names the places in the body: a limit is raised and never lowered. Nothing was done."
    INVALID_CONTROL = 422 "invalid-control" "The request to pause, resume or retry is wrong"
        "`errors` names the places in the body. Nothing was done."
    INVALID_SIGNAL = 422 "invalid-signal" "The signal is wrong"
        "`errors` names the places in the body, or in the path. Nothing was stored."
    INVALID_DECISION = 422 "invalid-decision" "The approval cannot be decided so"
        "`errors` names the places in the body; the data of a decision must fit the approval's schema. The approval stays pending."
    INVALID_LINK = 422 "invalid-link" "The link cannot be made as asked"
        "`errors` names the places in the body. Nothing was done."
    INVALID_CALLBACK = 422 "invalid-callback" "The callback is wrong"
        "`errors` names the places in the body; a result must fit the tool's `result` schema. The callback is still awaited."
    INVALID_TOOL = 422 "invalid-tool" "The tool's definition is wrong"
        "`errors` names the places in the body. Nothing was stored."
    INVALID_AGENT = 422 "invalid-agent" "The agent's definition is wrong"
        "`errors` names the places in the body. Nothing was stored."
    INVALID_ENVELOPE = 422 "invalid-envelope" "No envelope was accepted"
        "Every envelope of the request was rejected. `errors` names the places in the body; `rejected` names the dead letter in which each is kept."
    INVALID_SETTLEMENT = 422 "invalid-settlement" "The dead letter cannot be settled so"
        "`errors` names the places in the body. The dead letter stays open."
    INVALID_TENANT = 422 "invalid-tenant" "The tenant cannot be made as asked"
        "`errors` names the places in the body. Nothing was done."
    INVALID_KEY = 422 "invalid-key" "The key cannot be made as asked"
        "`errors` names the places in the body. Nothing was done."
    IDEMPOTENCY_KEY_REUSED = 422 "idempotency-key-reused" "The Idempotency-Key belongs to another request"
        "The Idempotency-Key was used on this route with another body. A new request needs a new key."
    MAILBOX_FULL = 429 "mailbox-full" "The run takes no more signals for now"
        "More signals wait in the run's mailbox than it may keep. None is lost; this one was not stored. Ask again after Retry-After."
    INTERNAL = 500 "internal" "Something is broken here"
        "The request met a defect or a bound of the service. It may or may not have been carried out; with the same Idempotency-Key it is safe to ask again."
    UNAVAILABLE = 503 "unavailable" "Not available for a moment"
        "The request could not be carried through. It may or may not have been carried out; with the same Idempotency-Key it is safe to ask again after Retry-After."
}

/// One occurrence of a problem.
#[derive(Debug)]
pub struct Problem {
    pub kind: Kind,
    detail: String,
    /// Apart, so that what can fail need not make room for it.
    more: Box<More>,
}

#[derive(Debug, Default)]
struct More {
    errors: Vec<Violation>,
    members: Vec<(&'static str, Value)>,
    headers: Vec<(&'static str, String)>,
    cause: Option<String>,
}

impl Problem {
    pub fn new(kind: Kind, detail: impl Into<String>) -> Self {
        Self {
            kind,
            detail: detail.into(),
            more: Box::default(),
        }
    }

    /// What lies behind it: for the operator's log and nobody else.
    pub fn cause(&self) -> Option<&str> {
        self.more.cause.as_deref()
    }

    fn caused_by(mut self, cause: String) -> Self {
        self.more.cause = Some(cause);
        self
    }

    pub fn flaws(&self) -> &[Violation] {
        &self.more.errors
    }

    /// With the flaws of the request's body.
    pub fn errors(mut self, errors: Vec<Violation>) -> Self {
        self.more.errors = errors;
        self
    }

    /// With a member of its own beside those of RFC 9457.
    pub fn with(mut self, name: &'static str, value: impl Into<Value>) -> Self {
        self.more.members.push((name, value.into()));
        self
    }

    pub fn header(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.more.headers.push((name, value.into()));
        self
    }

    /// The body failed a schema, or a rule that no schema can say.
    pub fn invalid(kind: Kind, errors: Vec<Violation>) -> Self {
        Self::new(kind, json::sentence(&errors)).errors(errors)
    }

    /// The same for every key that is not in force, so that nothing can be learned from it.
    pub fn unauthorized() -> Self {
        Self::new(
            UNAUTHORIZED,
            "send a valid key as `Authorization: Bearer KEY`",
        )
        .header("www-authenticate", "Bearer")
    }

    /// The same for what does not exist and for what is another tenant's.
    pub fn not_found() -> Self {
        Self::new(NOT_FOUND, "there is nothing of that id or name")
    }

    pub fn query(parameter: &str, message: &str) -> Self {
        Self::new(
            INVALID_QUERY,
            format!("the query parameter {parameter} {message}"),
        )
        .with("parameter", parameter)
    }

    pub fn too_large(what: &str, limit: usize) -> Self {
        Self::new(TOO_LARGE, format!("{what} may have at most {limit} bytes"))
            .with("limit_bytes", limit)
    }

    pub fn body_too_large() -> Self {
        Self::too_large("the body of a request", REQUEST_BODY_BYTES_MAX)
    }

    /// What a run refused; `invalid` is the type for flaws of the request.
    pub fn refusal(refusal: Refusal, invalid: Kind) -> Self {
        match refusal {
            Refusal::NotFound => Self::not_found(),
            Refusal::Ended { status } => {
                Self::new(RUN_ENDED, format!("the run has ended: {status}"))
                    .with("run_status", status)
            }
            Refusal::AlreadySettled { status, at } => Self::already_settled(status, at.to_string()),
            Refusal::AlreadyDecided {
                status,
                decided_by,
                at,
            } => Self::already_decided(&status, decided_by.as_deref(), Some(at)),
            Refusal::NotRetryable { status, message } => {
                Self::new(RUN_NOT_FAILED, format!("the run is {status}: {message}"))
                    .with("run_status", status)
            }
            Refusal::Gone { message } => Self::new(CALLBACK_GONE, message),
            Refusal::MailboxFull { message } => {
                Self::new(MAILBOX_FULL, message).header("retry-after", "10")
            }
            Refusal::KeyReused => Self::key_reused(),
            Refusal::Invalid { violations } => Self::invalid(invalid, violations),
            Refusal::Frozen { seq, message } => {
                let detail = format!("entry {seq} of the run's log cannot be read");
                Self::new(RUN_FROZEN, detail)
                    .with("seq", seq)
                    .caused_by(format!("a run is frozen at entry {seq}: {message}"))
            }
        }
    }

    /// As [`Self::refusal`], of what the flow refused.
    pub fn refused(refused: Refused, invalid: Kind) -> Self {
        match refused {
            Refused::Invalid(violations) => Self::invalid(invalid, violations),
            Refused::UnknownTenant => Self::unauthorized(),
            Refused::KeyReused => Self::key_reused(),
            Refused::Run(refusal) => Self::refusal(refusal, invalid),
            Refused::World(fault) => fault.into(),
        }
    }

    pub fn already_settled(status: impl Into<String>, at: impl Into<String>) -> Self {
        let (status, at) = (status.into(), at.into());
        Self::new(
            ALREADY_SETTLED,
            format!("the dead letter was {status} at {at}"),
        )
        .with("dead_letter_status", status)
        .with("settled_at", at)
    }

    pub fn already_decided(status: &str, by: Option<&str>, at: Option<Timestamp>) -> Self {
        let at = at.map(|at| at.to_string());
        let who = by.map_or(String::new(), |by| format!(" by {by}"));
        let when = at.as_ref().map_or(String::new(), |at| format!(" at {at}"));
        Self::new(
            ALREADY_DECIDED,
            format!("the approval is {status}{who}{when}"),
        )
        .with("approval_status", status)
        .with("decided_by", by)
        .with("decided_at", at)
    }

    pub fn key_reused() -> Self {
        Self::new(
            IDEMPOTENCY_KEY_REUSED,
            "this Idempotency-Key was used on this route with another body",
        )
    }

    pub fn into_response(self) -> Response {
        let Kind {
            name,
            status,
            title,
            ..
        } = self.kind;
        let mut body = Map::new();
        body.insert("type".to_owned(), format!("/problems/{name}").into());
        body.insert("title".to_owned(), title.into());
        body.insert("status".to_owned(), status.into());
        body.insert("detail".to_owned(), self.detail.into());
        let More {
            errors,
            members,
            headers,
            ..
        } = *self.more;
        if !errors.is_empty() {
            body.insert("errors".to_owned(), violations(&errors));
        }
        for (name, value) in members {
            body.insert(name.to_owned(), value);
        }
        let mut response = Response::problem(status, json::write(&Value::Object(body)));
        for (name, value) in headers {
            response = response.header(name, value);
        }
        response
    }
}

impl From<Fault> for Problem {
    fn from(fault: Fault) -> Self {
        let problem = if fault.retryable {
            Self::new(
                UNAVAILABLE,
                "a part of the service could not be reached; ask again soon",
            )
            .header("retry-after", "1")
        } else {
            Self::new(INTERNAL, "the service met a defect or one of its bounds")
        };
        problem.caused_by(fault.to_string())
    }
}

/// Flaws as clients see them.
pub fn violations(violations: &[Violation]) -> Value {
    let shown = violations
        .iter()
        .map(|Violation { pointer, message }| json!({ "pointer": pointer, "message": message }));
    Value::Array(shown.collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema;

    #[test]
    fn types_are_named_once_and_well() {
        for (index, kind) in ALL.iter().enumerate() {
            assert!(
                ALL.iter()
                    .skip(index + 1)
                    .all(|other| other.name != kind.name)
            );
            assert!((400..600).contains(&kind.status) && !kind.meaning.is_empty());
            let response = Problem::new(*kind, "x").with("more", 1).into_response();
            assert_eq!(response.status, kind.status);
            let body = json::read(response.body.as_bytes()).unwrap();
            assert_eq!(schema::validate("problem", &body), Ok(()), "{body}");
        }
        assert!(ALL.is_sorted_by_key(|kind| kind.status));
    }

    #[test]
    fn what_a_run_refuses_has_its_status() {
        let at = Timestamp::EPOCH;
        for (refusal, status, member) in [
            (Refusal::NotFound, 404, None),
            (
                Refusal::Ended {
                    status: "failed".into(),
                },
                409,
                Some(("run_status", json!("failed"))),
            ),
            (
                Refusal::AlreadySettled {
                    status: "resolved".into(),
                    at,
                },
                409,
                Some(("settled_at", json!("1970-01-01T00:00:00.000Z"))),
            ),
            (
                Refusal::KeyReused,
                422,
                Some(("type", json!("/problems/idempotency-key-reused"))),
            ),
            (
                Refusal::Invalid {
                    violations: vec![Violation::new("/a", "is wrong")],
                },
                422,
                Some((
                    "errors",
                    json!([{ "pointer": "/a", "message": "is wrong" }]),
                )),
            ),
            (
                Refusal::Frozen {
                    seq: 7,
                    message: "secret".into(),
                },
                409,
                Some(("seq", json!(7))),
            ),
        ] {
            let response = Problem::refusal(refusal, INVALID_RUN).into_response();
            assert_eq!(response.status, status);
            assert!(!response.body.contains("secret"));
            let body = json::read(response.body.as_bytes()).unwrap();
            if let Some((name, value)) = member {
                assert!(json::same(&body[name], &value), "{body}");
            }
        }
    }

    #[test]
    fn a_fault_says_nothing_of_the_inside() {
        let fault = Fault::new("start", "run_1", "sqlite is full");
        let problem = Problem::from(fault.clone());
        assert_eq!(
            problem.cause(),
            Some("start on run_1 failed: sqlite is full")
        );
        let response = problem.into_response();
        assert_eq!(response.status, 503);
        assert!(
            response
                .headers
                .contains(&("retry-after".to_owned(), "1".to_owned()))
        );
        assert!(!response.body.contains("sqlite") && !response.body.contains("run_1"));
        let broken = Problem::from(Fault {
            retryable: false,
            ..fault
        })
        .into_response();
        assert_eq!(broken.status, 500);
    }
}
