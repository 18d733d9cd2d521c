//! Why a model gave no answer.

use serde::{Deserialize, Serialize};

/// No answer, told to the person who must act. Secrets are masked in it.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelFault {
    pub kind: FaultKind,
    pub status_code: Option<u16>,
    /// The provider's own code of the error.
    pub code: Option<String>,
    /// What was asked, what came back, and what to do.
    pub message: String,
    /// When the provider wants to be asked again.
    pub retry_after_ms: Option<i64>,
}

/// Why a model is left for the next one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FaultKind {
    /// 500 and above, 529, a timeout, no connection: worth another try.
    Overloaded,
    /// 429 that passes: worth another try, later.
    RateLimited,
    /// 429 that does not pass: nobody pays for it.
    QuotaExhausted,
    /// 401, 403, a secret that is missing, an address that is not called.
    Unauthorized,
    /// The conversation does not fit into the model's window.
    ContextTooLong,
    /// It, or its provider, would not answer this.
    Refused,
    /// The provider found fault with the request.
    BadRequest,
    /// It was not asked, because it fails for others.
    Resting,
    /// An answer that is none: not JSON, or of another form.
    Unreadable,
}

impl FaultKind {
    /// Whether the same request may succeed later.
    #[must_use]
    pub fn passes(self) -> bool {
        matches!(
            self,
            Self::Overloaded | Self::RateLimited | Self::Unreadable | Self::Resting
        )
    }

    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Overloaded => "overloaded",
            Self::RateLimited => "rate_limited",
            Self::QuotaExhausted => "quota_exhausted",
            Self::Unauthorized => "unauthorized",
            Self::ContextTooLong => "context_too_long",
            Self::Refused => "refused",
            Self::BadRequest => "bad_request",
            Self::Resting => "resting",
            Self::Unreadable => "unreadable",
        }
    }
}
