//! Ids and names. Each is its own type, holds only text that passed its check, and is compared and
//! stored as that text.

use core::fmt;
use core::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{Timestamp, hex, sha256};

/// A text that is no id or name of the kind asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("expected {expected}")]
pub struct IdError {
    /// What the text should have been, as the end of a sentence that starts with "expected".
    pub expected: &'static str,
}

/// Defines a word: a checked text with the traits that every id and name has.
macro_rules! word {
    ($(#[$doc:meta])* $word:ident, $check:expr, $expected:expr) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $word(String);

        impl $word {
            /// Takes `text` if it has the form of this word.
            pub fn parse(text: &str) -> Result<Self, IdError> {
                let check: fn(&str) -> bool = $check;
                if check(text) {
                    Ok(Self(text.to_owned()))
                } else {
                    Err(IdError { expected: $expected })
                }
            }

            /// The text, as it is written everywhere.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $word {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl AsRef<str> for $word {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $word {
            type Err = IdError;

            fn from_str(text: &str) -> Result<Self, IdError> {
                Self::parse(text)
            }
        }

        impl Serialize for $word {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(&self.0)
            }
        }

        impl<'de> Deserialize<'de> for $word {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = String::deserialize(deserializer)?;
                Self::parse(&text).map_err(serde::de::Error::custom)
            }
        }
    };
}

/// Defines an id: a prefix and a UUIDv7, so that ids sort by the time they were made at.
macro_rules! timed_id {
    ($(#[$doc:meta])* $word:ident, $prefix:literal) => {
        word!(
            $(#[$doc])*
            $word,
            |text| text.strip_prefix($prefix).is_some_and(is_uuid_v7),
            concat!("`", $prefix, "` and a UUIDv7 as 32 lower-case hex digits")
        );

        impl $word {
            /// What every id of this kind starts with.
            pub const PREFIX: &'static str = $prefix;

            /// The id of something made at `now`; `random` fills the 74 random bits.
            pub fn new(now: Timestamp, random: [u8; 10]) -> Self {
                Self(format!("{}{}", $prefix, hex(&uuid_v7(now, random))))
            }

            /// The same id for the same `now` and `seed`: the random bits are the start of the
            /// seed's SHA-256, so that doing a thing again names it as before.
            pub fn derive(now: Timestamp, seed: &str) -> Self {
                Self::new(now, first_of_digest(seed))
            }

            /// When it was made, in milliseconds since the epoch.
            pub fn timestamp_ms(&self) -> i64 {
                let digits = self.0.get($prefix.len()..$prefix.len() + 12);
                digits.and_then(|digits| i64::from_str_radix(digits, 16).ok()).unwrap_or(0)
            }
        }
    };
}

timed_id!(
    /// A run: `run_…`.
    RunId, "run_"
);
timed_id!(
    /// An envelope or an entry of a log: `evt_…`.
    EventId, "evt_"
);
timed_id!(
    /// A dead letter: `dl_…`.
    DeadLetterId, "dl_"
);
timed_id!(
    /// An approval: `apr_…`.
    ApprovalId, "apr_"
);
timed_id!(
    /// An API key, not its secret: `key_…`.
    KeyId, "key_"
);

word!(
    /// A trace of W3C Trace Context: 32 lower-case hex digits, not all zero.
    TraceId,
    |text| is_lower_hex(text, 32) && text.bytes().any(|byte| byte != b'0'),
    "a trace id: 32 lower-case hex digits, not all zero"
);

impl TraceId {
    /// From 16 random bytes.
    pub fn new(random: [u8; 16]) -> Self {
        Self(hex(&not_all_zero(random)))
    }

    /// The same id for the same seed: the start of its SHA-256.
    pub fn derive(seed: &str) -> Self {
        Self::new(first_of_digest(seed))
    }
}

word!(
    /// A span of W3C Trace Context: 16 lower-case hex digits, not all zero.
    SpanId,
    |text| is_lower_hex(text, 16) && text.bytes().any(|byte| byte != b'0'),
    "a span id: 16 lower-case hex digits, not all zero"
);

impl SpanId {
    /// From 8 random bytes.
    pub fn new(random: [u8; 8]) -> Self {
        Self(hex(&not_all_zero(random)))
    }

    /// The same id for the same seed: the start of its SHA-256.
    pub fn derive(seed: &str) -> Self {
        Self::new(first_of_digest(seed))
    }
}

word!(
    /// A tenant: `[a-z0-9][a-z0-9._-]{0,63}`.
    TenantId,
    is_name,
    "a tenant id of the form [a-z0-9][a-z0-9._-]{0,63}"
);
impl TenantId {
    /// A name the engine keeps for itself: `_` and then a name. No client can make such a tenant.
    pub fn reserved(name: &str) -> Option<Self> {
        name.strip_prefix('_')
            .filter(|rest| is_name(rest))
            .map(|_| Self(name.to_owned()))
    }
}

word!(
    /// The name of a tool, agent, step, subscription or tag: `[a-z0-9][a-z0-9._-]{0,63}`.
    Name,
    is_name,
    "a name of the form [a-z0-9][a-z0-9._-]{0,63}"
);
word!(
    /// The name of a signal: `[A-Za-z0-9._:-]{1,128}`.
    SignalName,
    |text| (1..=128).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._:-".contains(&byte)),
    "a signal name of the form [A-Za-z0-9._:-]{1,128}"
);

/// The bytes of a UUIDv7 (RFC 9562 section 5.7): 48 bits of milliseconds, then the random bits with
/// the version and the variant over them.
fn uuid_v7(now: Timestamp, random: [u8; 10]) -> [u8; 16] {
    // A time before 1970 has no place in a UUIDv7; `Timestamp::MAX` takes 48 bits.
    let ms = u64::try_from(now.ms()).unwrap_or(0);
    let [_, _, t0, t1, t2, t3, t4, t5] = ms.to_be_bytes();
    let [r0, r1, r2, r3, r4, r5, r6, r7, r8, r9] = random;
    let (r0, r2) = (0x70 | (r0 & 0x0f), 0x80 | (r2 & 0x3f));
    [
        t0, t1, t2, t3, t4, t5, r0, r1, r2, r3, r4, r5, r6, r7, r8, r9,
    ]
}

fn is_uuid_v7(digits: &str) -> bool {
    let digit = |at: usize| digits.as_bytes().get(at).copied().unwrap_or_default();
    is_lower_hex(digits, 32) && digit(12) == b'7' && b"89ab".contains(&digit(16))
}

fn is_lower_hex(text: &str, length: usize) -> bool {
    text.len() == length
        && text
            .bytes()
            .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

fn is_name(text: &str) -> bool {
    let alphanumeric = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    text.len() <= 64
        && text.bytes().next().is_some_and(alphanumeric)
        && text
            .bytes()
            .all(|byte| alphanumeric(byte) || b"._-".contains(&byte))
}

fn first_of_digest<const N: usize>(seed: &str) -> [u8; N] {
    const { assert!(N <= 32, "a digest has 32 bytes") };
    sha256(seed.as_bytes())
        .first_chunk()
        .copied()
        .unwrap_or([0; N])
}

/// All zero means "no trace" in Trace Context, so it is never handed out.
fn not_all_zero<const N: usize>(mut bytes: [u8; N]) -> [u8; N] {
    if bytes.iter().all(|byte| *byte == 0)
        && let Some(last) = bytes.last_mut()
    {
        *last = 1;
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    // RFC 9562, appendix A.6: the example of a UUIDv7.
    const EXAMPLE_MS: i64 = 0x017F_22E2_79B0;
    const EXAMPLE_RANDOM: [u8; 10] = [0x0C, 0xC3, 0x18, 0xC4, 0xDC, 0x0C, 0x0C, 0x07, 0x39, 0x8F];

    #[test]
    fn an_id_is_the_uuid_v7_of_the_rfc() {
        let id = RunId::new(Timestamp::from_ms(EXAMPLE_MS), EXAMPLE_RANDOM);
        assert_eq!(id.as_str(), "run_017f22e279b07cc398c4dc0c0c07398f");
        assert_eq!(id.timestamp_ms(), EXAMPLE_MS);
        assert_eq!(RunId::parse(id.as_str()), Ok(id));
    }

    #[test]
    fn version_and_variant_stand_over_any_random_bits() {
        for random in [[0x00; 10], [0xff; 10]] {
            for ms in [i64::MIN, 0, i64::MAX] {
                let id = EventId::new(Timestamp::from_ms(ms), random);
                assert_eq!(EventId::parse(id.as_str()), Ok(id));
            }
        }
    }

    #[test]
    fn ids_sort_by_time() {
        let early = KeyId::new(Timestamp::from_ms(255), [0xff; 10]);
        let late = KeyId::new(Timestamp::from_ms(256), [0x00; 10]);
        assert!(early < late);
    }

    #[test]
    fn a_derived_id_is_the_same_each_time() {
        let now = Timestamp::from_ms(EXAMPLE_MS);
        assert_eq!(ApprovalId::derive(now, "a"), ApprovalId::derive(now, "a"));
        assert_ne!(ApprovalId::derive(now, "a"), ApprovalId::derive(now, "b"));
        assert_ne!(
            ApprovalId::derive(now, "a"),
            ApprovalId::derive(now.plus_ms(1), "a")
        );
        assert_eq!(
            TraceId::derive("abc").as_str(),
            "ba7816bf8f01cfea414140de5dae2223"
        );
        assert_eq!(SpanId::derive("abc").as_str(), "ba7816bf8f01cfea");
    }

    #[test]
    fn a_wrong_id_is_refused_and_told_what_was_expected() {
        for text in [
            "",
            "run_",
            "017f22e279b07cc398c4dc0c0c07398f",
            "dl_017f22e279b07cc398c4dc0c0c07398f",
            "run_017F22E279B07CC398C4DC0C0C07398F",
            "run_017f22e279b07cc398c4dc0c0c07398",
            "run_017f22e279b07cc398c4dc0c0c07398ff",
            "run_017f22e279b04cc398c4dc0c0c07398f",
            "run_017f22e279b07cc3c8c4dc0c0c07398f",
            "run_017f22e2-79b0-7cc3-98c4-dc0c0c07398f",
            "run_017f22e279b07cc398c4dc0c0c0739é",
            " run_017f22e279b07cc398c4dc0c0c07398f",
        ] {
            let error = RunId::parse(text).expect_err(text);
            assert_eq!(
                error.to_string(),
                "expected `run_` and a UUIDv7 as 32 lower-case hex digits"
            );
        }
    }

    #[test]
    fn a_trace_is_never_all_zero() {
        assert!(TraceId::parse(&"0".repeat(32)).is_err());
        assert!(SpanId::parse(&"0".repeat(16)).is_err());
        assert!(TraceId::parse(TraceId::new([0; 16]).as_str()).is_ok());
        assert!(SpanId::parse(SpanId::new([0; 8]).as_str()).is_ok());
    }

    #[test]
    fn names_keep_to_their_alphabet_and_length() {
        let longest = "a".repeat(64);
        for text in ["a", "0", "vendor.quote", "a-b_c.d", longest.as_str()] {
            assert!(
                Name::parse(text).is_ok() && TenantId::parse(text).is_ok(),
                "{text}"
            );
        }
        let too_long = "a".repeat(65);
        for text in [
            "",
            ".a",
            "-a",
            "_a",
            "A",
            "a b",
            "é",
            "a/b",
            "a:b",
            too_long.as_str(),
        ] {
            assert!(
                Name::parse(text).is_err() && TenantId::parse(text).is_err(),
                "{text}"
            );
        }
        let longest = "S".repeat(128);
        for text in [".", "Quote.Received", "a:b-c_d", longest.as_str()] {
            assert!(SignalName::parse(text).is_ok(), "{text}");
        }
        let too_long = "S".repeat(129);
        for text in ["", "a b", "é", "a/b", too_long.as_str()] {
            assert!(SignalName::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn serde_checks_what_it_reads() {
        let name: Name = serde_json::from_str(r#""vendor.quote""#).unwrap();
        assert_eq!(serde_json::to_string(&name).unwrap(), r#""vendor.quote""#);
        assert!(serde_json::from_str::<Name>(r#""Vendor""#).is_err());
        assert!(serde_json::from_str::<RunId>("7").is_err());
    }
}
