//! Small shared words: time, ids, digests, limits. No behaviour of the product lives here.

mod digest;
mod duration;
mod ids;
pub mod limits;
mod time;

pub use digest::{hex, sha256, sha256_hex};
pub use duration::DurationMs;
pub use ids::{
    ApprovalId, DeadLetterId, EventId, IdError, KeyId, Name, RunId, SignalName, SpanId, TenantId,
    TraceId,
};
pub use time::Timestamp;

/// Why a text is no point or length of time. The message says what was expected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TimeError {
    #[error("expected an RFC 3339 date and time with an offset, such as 2026-12-01T09:30:00Z")]
    NotRfc3339,
    #[error("expected a date and time within the years 0001 to 9999, in UTC")]
    YearOutOfRange,
    #[error("expected an ISO 8601 duration, such as PT30S, PT0.25S, P3D or P1DT2H")]
    NotIso8601,
    #[error("expected a duration of zero or more, not a negative one")]
    Negative,
    #[error("expected a duration of at most 10 years (3650 days)")]
    TooLong,
}

/// A time travels as its text, so that it reads the same in a log, an answer and a stored row.
macro_rules! as_text {
    ($word:ident) => {
        impl core::str::FromStr for $word {
            type Err = $crate::words::TimeError;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                Self::parse(text)
            }
        }

        impl serde::Serialize for $word {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> serde::Deserialize<'de> for $word {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = <String as serde::Deserialize>::deserialize(deserializer)?;
                Self::parse(&text).map_err(serde::de::Error::custom)
            }
        }
    };
}

pub(crate) use as_text;
