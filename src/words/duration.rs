//! Lengths of time, in whole milliseconds, and their text form.

use core::fmt;

use super::TimeError;

pub(super) const SECOND: i64 = 1_000;
pub(super) const MINUTE: i64 = 60 * SECOND;
pub(super) const HOUR: i64 = 60 * MINUTE;
pub(super) const DAY: i64 = 24 * HOUR;

/// A length of time in milliseconds, from zero to 3650 days. Its text form is an ISO 8601 duration
/// in days, hours, minutes and seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DurationMs(i64);

/// The designators of ISO 8601 in the order they must come in: in the time part or not, letter,
/// milliseconds. A year and a month have no fixed length, so they are given one: a run's timers
/// must not depend on which month it is.
const UNITS: [(bool, u8, i64); 7] = [
    (false, b'Y', 365 * DAY),
    (false, b'M', 30 * DAY),
    (false, b'W', 7 * DAY),
    (false, b'D', DAY),
    (true, b'H', HOUR),
    (true, b'M', MINUTE),
    (true, b'S', SECOND),
];

impl DurationMs {
    /// `PT0S`: due now.
    pub const ZERO: Self = Self(0);
    /// `P3650D`: ten years.
    pub const MAX: Self = Self(3650 * DAY);

    /// From milliseconds; a negative number becomes zero, one beyond [`Self::MAX`] that bound.
    pub const fn from_ms(ms: i64) -> Self {
        if ms < 0 {
            Self::ZERO
        } else if ms > Self::MAX.0 {
            Self::MAX
        } else {
            Self(ms)
        }
    }

    /// Milliseconds.
    pub const fn ms(self) -> i64 {
        self.0
    }

    /// Reads an ISO 8601 duration. A year counts as 365 days, a month as 30, a week as 7; weeks may
    /// stand beside the other units; the last number may have decimals, of which whole milliseconds
    /// are kept. Refused: a negative one, one beyond ten years, anything else.
    pub fn parse(text: &str) -> Result<Self, TimeError> {
        let Some(mut rest) = text.as_bytes().strip_prefix(b"P") else {
            let after_sign = text.strip_prefix('-').filter(|rest| rest.starts_with('P'));
            return Err(match after_sign.map(Self::parse) {
                Some(Ok(_) | Err(TimeError::TooLong)) => TimeError::Negative,
                _ => TimeError::NotIso8601,
            });
        };
        let mut units = UNITS.as_slice();
        let mut in_time = false;
        let mut ended_by_decimals = false;
        let mut total: i128 = 0;
        while !rest.is_empty() {
            if !in_time && one_of(&mut rest, b"T").is_some() {
                in_time = true;
                // A `T` with nothing after it ends the text too early, and is refused below.
            }
            let negative = one_of(&mut rest, b"-").is_some();
            let whole = count(&mut rest).ok_or(TimeError::NotIso8601)?;
            let has_decimals = one_of(&mut rest, b".,").is_some();
            let billionths = if has_decimals {
                decimals_as_billionths(&mut rest).ok_or(TimeError::NotIso8601)?
            } else {
                0
            };
            let (&letter, tail) = rest.split_first().ok_or(TimeError::NotIso8601)?;
            let place = units
                .iter()
                .position(|unit| unit.0 == in_time && unit.1 == letter)
                .filter(|_| !ended_by_decimals)
                .ok_or(TimeError::NotIso8601)?;
            if negative {
                return Err(TimeError::Negative);
            }
            let unit_ms = units.get(place).map_or(0, |unit| i128::from(unit.2));
            total = total
                .saturating_add(i128::from(whole) * unit_ms)
                .saturating_add(i128::from(billionths) * unit_ms / 1_000_000_000);
            ended_by_decimals = has_decimals;
            units = units.get(place + 1..).unwrap_or_default();
            rest = tail;
        }
        if units.len() == UNITS.len() {
            return Err(TimeError::NotIso8601);
        }
        match i64::try_from(total) {
            Ok(ms) if ms <= Self::MAX.0 => Ok(Self(ms)),
            _ => Err(TimeError::TooLong),
        }
    }
}

/// One or more digits; a number too large for the type is held at its end, which is too long anyway.
fn count(rest: &mut &[u8]) -> Option<u64> {
    let length = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let (head, tail) = rest.split_at_checked(length)?;
    *rest = tail;
    (length > 0).then(|| {
        head.iter().fold(0_u64, |sum, byte| {
            sum.saturating_mul(10)
                .saturating_add(u64::from(byte - b'0'))
        })
    })
}

/// One or more decimals, cut to nine.
fn decimals_as_billionths(rest: &mut &[u8]) -> Option<u64> {
    let length = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let (head, tail) = rest.split_at_checked(length)?;
    *rest = tail;
    (length > 0).then(|| {
        let nine = head.iter().chain([b'0'; 9].iter()).take(9);
        nine.fold(0, |sum, byte| sum * 10 + u64::from(byte - b'0'))
    })
}

impl fmt::Display for DurationMs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == 0 {
            return f.write_str("PT0S");
        }
        let (days, time) = (self.0 / DAY, self.0 % DAY);
        let (hours, minutes) = (time / HOUR, time % HOUR / MINUTE);
        let (seconds, ms) = (time % MINUTE / SECOND, time % SECOND);
        f.write_str("P")?;
        if days > 0 {
            write!(f, "{days}D")?;
        }
        if time > 0 {
            f.write_str("T")?;
        }
        if hours > 0 {
            write!(f, "{hours}H")?;
        }
        if minutes > 0 {
            write!(f, "{minutes}M")?;
        }
        if ms > 0 {
            let decimals = format!("{ms:03}");
            write!(f, "{seconds}.{}S", decimals.trim_end_matches('0'))?;
        } else if seconds > 0 {
            write!(f, "{seconds}S")?;
        }
        Ok(())
    }
}

/// Takes the next byte if it is one of those wanted.
pub(super) fn one_of(rest: &mut &[u8], wanted: &[u8]) -> Option<u8> {
    let (&first, tail) = rest.split_first()?;
    wanted.contains(&first).then(|| {
        *rest = tail;
        first
    })
}

super::as_text!(DurationMs);

#[cfg(test)]
#[path = "duration_tests.rs"]
mod tests;
