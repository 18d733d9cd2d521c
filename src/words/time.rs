//! Points in time, in whole milliseconds, and their text form.
//!
//! Nothing here reads a clock: the present is always an argument.

use core::fmt;

use jiff::SignedDuration;
use jiff::civil::DateTime;

use super::TimeError;
use super::duration::{DAY, DurationMs, MINUTE, SECOND, one_of};

// Civil time, not `jiff::Timestamp`: the latter ends a day before year 9999 does, and
// 9999-12-31T23:59:59Z is what people write for "no end".
const EPOCH: DateTime = DateTime::constant(1970, 1, 1, 0, 0, 0, 0);

/// A point in time: milliseconds since 1970-01-01T00:00:00Z without leap seconds, always within
/// the years 1 to 9999. Its text form is RFC 3339 in UTC with three decimals.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(i64);

impl Timestamp {
    /// 1970-01-01T00:00:00.000Z.
    pub const EPOCH: Self = Self(0);
    /// 0001-01-01T00:00:00.000Z.
    pub const MIN: Self = Self(-62_135_596_800_000);
    /// 9999-12-31T23:59:59.999Z.
    pub const MAX: Self = Self(253_402_300_799_999);

    /// From milliseconds since the epoch; what lies beyond [`Self::MIN`] or [`Self::MAX`] becomes
    /// that bound, so that every `Timestamp` has a text form.
    pub const fn from_ms(ms: i64) -> Self {
        if ms < Self::MIN.0 {
            Self::MIN
        } else if ms > Self::MAX.0 {
            Self::MAX
        } else {
            Self(ms)
        }
    }

    /// Milliseconds since the epoch.
    pub const fn ms(self) -> i64 {
        self.0
    }

    /// Reads RFC 3339 with any offset and any number of decimals. What is finer than a millisecond
    /// is dropped; a leap second counts as the first second of the next day, as in POSIX.
    pub fn parse(text: &str) -> Result<Self, TimeError> {
        let parts = Rfc3339::read(text.as_bytes()).ok_or(TimeError::NotRfc3339)?;
        if parts.year == 0 {
            return Err(TimeError::YearOutOfRange);
        }
        let leap = parts.second == 60;
        let civil = DateTime::new(
            parts.year,
            parts.month,
            parts.day,
            parts.hour,
            parts.minute,
            if leap { 59 } else { parts.second },
            0,
        )
        .map_err(|_| TimeError::NotRfc3339)?;
        let whole = civil.duration_since(EPOCH).as_secs() * SECOND + i64::from(leap) * SECOND
            - i64::from(parts.offset_minutes) * MINUTE;
        // Leap seconds are inserted at the end of a UTC day and nowhere else.
        if leap && whole.rem_euclid(DAY) != 0 {
            return Err(TimeError::NotRfc3339);
        }
        let ms = whole + parts.millisecond;
        if !(Self::MIN.0..=Self::MAX.0).contains(&ms) {
            return Err(TimeError::YearOutOfRange);
        }
        Ok(Self(ms))
    }

    /// `ms` later (earlier when negative), within the range of the type.
    pub const fn plus_ms(self, ms: i64) -> Self {
        Self::from_ms(self.0.saturating_add(ms))
    }

    /// `duration` later, within the range of the type.
    pub const fn plus(self, duration: DurationMs) -> Self {
        self.plus_ms(duration.ms())
    }

    /// Milliseconds from `earlier` to `self`; negative when `earlier` is the later one.
    pub const fn ms_since(self, earlier: Self) -> i64 {
        self.0 - earlier.0
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The range of the type lies within that of civil time, so the sum exists.
        let civil = EPOCH
            .checked_add(SignedDuration::from_millis(self.0))
            .unwrap_or(EPOCH);
        write!(
            f,
            "{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:03}Z",
            civil.year(),
            civil.month(),
            civil.day(),
            civil.hour(),
            civil.minute(),
            civil.second(),
            civil.millisecond()
        )
    }
}

/// The fields of an RFC 3339 text, in the shape of its grammar but not yet checked as a date.
struct Rfc3339 {
    year: i16,
    month: i8,
    day: i8,
    hour: i8,
    minute: i8,
    second: i8,
    millisecond: i64,
    offset_minutes: i16,
}

impl Rfc3339 {
    fn read(text: &[u8]) -> Option<Self> {
        let mut rest = text;
        let year = digits(&mut rest, 4)?;
        one_of(&mut rest, b"-")?;
        let month = two_digits(&mut rest)?;
        one_of(&mut rest, b"-")?;
        let day = two_digits(&mut rest)?;
        one_of(&mut rest, b"Tt")?;
        let hour = two_digits(&mut rest)?;
        one_of(&mut rest, b":")?;
        let minute = two_digits(&mut rest)?;
        one_of(&mut rest, b":")?;
        let second = two_digits(&mut rest)?;
        let millisecond = match one_of(&mut rest, b".") {
            Some(_) => decimals_as_ms(&mut rest)?,
            None => 0,
        };
        let offset_minutes = match one_of(&mut rest, b"Zz+-")? {
            sign @ (b'+' | b'-') => {
                let hours = digits(&mut rest, 2).filter(|hours| *hours < 24)?;
                one_of(&mut rest, b":")?;
                let minutes = digits(&mut rest, 2).filter(|minutes| *minutes < 60)?;
                let east = hours * 60 + minutes;
                if sign == b'-' { -east } else { east }
            }
            _ => 0,
        };
        rest.is_empty().then_some(Self {
            year,
            month,
            day,
            hour,
            minute,
            second,
            millisecond,
            offset_minutes,
        })
    }
}

/// Exactly `count` (at most 4) decimal digits.
fn digits(rest: &mut &[u8], count: usize) -> Option<i16> {
    let (head, tail) = rest.split_at_checked(count)?;
    let value = head.iter().try_fold(0_i16, |sum, byte| {
        let digit = byte.is_ascii_digit().then(|| i16::from(byte - b'0'))?;
        Some(sum * 10 + digit)
    })?;
    *rest = tail;
    Some(value)
}

fn two_digits(rest: &mut &[u8]) -> Option<i8> {
    digits(rest, 2).and_then(|value| i8::try_from(value).ok())
}

/// One or more decimals, cut to thousandths.
fn decimals_as_ms(rest: &mut &[u8]) -> Option<i64> {
    let count = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let (decimals, tail) = rest.split_at_checked(count)?;
    *rest = tail;
    (count > 0).then(|| {
        let thousandths = decimals.iter().chain([b'0'; 3].iter()).take(3);
        thousandths.fold(0, |sum, byte| sum * 10 + i64::from(byte - b'0'))
    })
}

super::as_text!(Timestamp);

#[cfg(test)]
#[path = "time_tests.rs"]
mod tests;
