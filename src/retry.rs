//! When to try again: how many times, and how long to wait before each.

use std::time::UNIX_EPOCH;

use serde::{Deserialize, Serialize};

use crate::words::Timestamp;
use crate::words::limits::RETRY_AFTER_MS_MAX;

/// How chance spreads a wait, so that many that failed together do not come back together. The
/// names and rules are those of "Exponential Backoff And Jitter" (AWS Architecture Blog, 2015).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Jitter {
    /// Anywhere from zero to the full wait.
    #[default]
    Full,
    /// Half of the wait, and anywhere up to the other half.
    Equal,
    /// Anywhere from the base to three times the wait before.
    Decorrelated,
    /// The full wait.
    None,
}

/// How often and how soon a failed call is tried again. Waits are in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RetryPolicy {
    /// Tries in all: the first one counts.
    pub max_attempts: u32,
    /// The wait that doubles with each attempt.
    pub base_ms: i64,
    /// The longest wait.
    pub max_wait_ms: i64,
    /// How chance spreads the wait.
    pub jitter: Jitter,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self {
            max_attempts: 5,
            base_ms: 1_000,
            max_wait_ms: 300_000,
            jitter: Jitter::Full,
        }
    }
}

impl RetryPolicy {
    /// Whether another attempt may follow after `attempts_made` of them.
    pub fn may_retry(&self, attempts_made: u32) -> bool {
        attempts_made < self.max_attempts
    }

    /// Milliseconds to wait before attempt `attempts_made + 1`: min(max_wait, base × 2^n) with n
    /// the attempts made, spread by the jitter. `previous_wait_ms` is the wait before the last
    /// attempt, which only `decorrelated` looks at; `random` is any number, evenly drawn.
    /// A base or a maximum of zero (or less) means no wait.
    pub fn wait_ms(&self, attempts_made: u32, previous_wait_ms: Option<i64>, random: u64) -> i64 {
        if self.base_ms <= 0 || self.max_wait_ms <= 0 {
            return 0;
        }
        let doubled = 1_i64
            .checked_shl(attempts_made)
            .filter(|factor| *factor > 0)
            .and_then(|factor| self.base_ms.checked_mul(factor))
            .unwrap_or(i64::MAX);
        let cap = doubled.min(self.max_wait_ms);
        match self.jitter {
            Jitter::None => cap,
            Jitter::Full => between(0, cap, random),
            Jitter::Equal => between(cap / 2, cap, random),
            Jitter::Decorrelated => {
                let previous = previous_wait_ms.unwrap_or(self.base_ms);
                let high = previous.saturating_mul(3).max(self.base_ms);
                between(self.base_ms, high, random).min(self.max_wait_ms)
            }
        }
    }
}

/// Maps `random` evenly onto `low..=high`, where 0 <= low <= high. Multiplying and taking the high
/// half spreads more evenly than a remainder does.
fn between(low: i64, high: i64, random: u64) -> i64 {
    let width = u128::from(high.saturating_sub(low).max(0).unsigned_abs()) + 1;
    let offset = (u128::from(random) * width) >> 64;
    low.saturating_add(i64::try_from(offset).unwrap_or(0))
}

/// Milliseconds to wait from `now` on, out of a `Retry-After` header (RFC 9110 section 10.2.3): a
/// number of seconds or an HTTP date in any of its three forms. A date that has passed means zero;
/// at most 365 days; `None` if it is neither.
pub fn retry_after_ms(header: &str, now: Timestamp) -> Option<i64> {
    let text = header.trim_matches([' ', '\t']);
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        // Digits that do not fit the type are a number beyond the bound.
        let seconds = text.parse::<i64>().unwrap_or(i64::MAX);
        return Some(seconds.saturating_mul(1_000).min(RETRY_AFTER_MS_MAX));
    }
    // `httpdate` parses by arithmetic on the epoch alone and never asks the system for the time.
    let date = httpdate::parse_http_date(text).ok()?;
    let since_epoch = date.duration_since(UNIX_EPOCH).ok()?;
    let date = Timestamp::from_ms(i64::try_from(since_epoch.as_millis()).unwrap_or(i64::MAX));
    Some(date.ms_since(now).clamp(0, RETRY_AFTER_MS_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// SplitMix64: the same numbers on every run.
    struct Numbers(u64);

    impl Numbers {
        fn next(&mut self) -> u64 {
            self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut mixed = self.0;
            mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            mixed ^ (mixed >> 31)
        }

        fn wait(&mut self) -> i64 {
            const EDGES: [i64; 8] = [i64::MIN, -1, 0, 1, 2, 1_000, i64::MAX / 2, i64::MAX];
            match self.next() % 3 {
                0 => EDGES[(self.next() % 8) as usize],
                1 => (self.next() % 600_000) as i64,
                _ => self.next() as i64,
            }
        }
    }

    const JITTERS: [Jitter; 4] = [
        Jitter::Full,
        Jitter::Equal,
        Jitter::Decorrelated,
        Jitter::None,
    ];

    fn policy(base_ms: i64, max_wait_ms: i64, jitter: Jitter) -> RetryPolicy {
        RetryPolicy {
            max_attempts: 5,
            base_ms,
            max_wait_ms,
            jitter,
        }
    }

    #[test]
    fn without_jitter_the_wait_doubles_up_to_its_maximum() {
        let policy = policy(1_000, 300_000, Jitter::None);
        let waits: Vec<i64> = (1..=10).map(|n| policy.wait_ms(n, None, 7)).collect();
        let expected = [
            2_000, 4_000, 8_000, 16_000, 32_000, 64_000, 128_000, 256_000, 300_000, 300_000,
        ];
        assert_eq!(waits, expected);
    }

    #[test]
    fn no_input_overflows_and_each_wait_keeps_its_bounds() {
        let mut numbers = Numbers(1);
        for _ in 0..50_000 {
            let jitter = JITTERS[(numbers.next() % 4) as usize];
            let policy = policy(numbers.wait(), numbers.wait(), jitter);
            let attempts = match numbers.next() % 3 {
                0 => (numbers.next() % 8) as u32,
                1 => (numbers.next() % 130) as u32,
                _ => u32::MAX,
            };
            let previous = numbers.next().is_multiple_of(2).then(|| numbers.wait());
            let wait = policy.wait_ms(attempts, previous, numbers.next());
            assert!(
                (0..=policy.max_wait_ms.max(0)).contains(&wait),
                "{policy:?} {wait}"
            );
            if policy.base_ms <= 0 || policy.max_wait_ms <= 0 {
                assert_eq!(wait, 0);
                continue;
            }
            let exact = RetryPolicy {
                jitter: Jitter::None,
                ..policy
            };
            let cap = exact.wait_ms(attempts, None, 0);
            match jitter {
                Jitter::None => assert_eq!(wait, cap),
                Jitter::Full => assert!(wait <= cap),
                Jitter::Equal => assert!(wait <= cap && wait >= cap / 2),
                Jitter::Decorrelated => assert!(wait >= policy.base_ms.min(policy.max_wait_ms)),
            }
        }
    }

    #[test]
    fn the_ends_of_each_range_are_reached_and_its_mean_is_in_the_middle() {
        // Range for base 100, two attempts made, previous wait 150.
        for (jitter, low, high) in [
            (Jitter::Full, 0, 400),
            (Jitter::Equal, 200, 400),
            (Jitter::Decorrelated, 100, 450),
            (Jitter::None, 400, 400),
        ] {
            let policy = policy(100, 10_000, jitter);
            assert_eq!(policy.wait_ms(2, Some(150), 0), low);
            assert_eq!(policy.wait_ms(2, Some(150), u64::MAX), high);
            let mut numbers = Numbers(2);
            let rounds = 20_000;
            let sum: i64 = (0..rounds)
                .map(|_| policy.wait_ms(2, Some(150), numbers.next()))
                .sum();
            assert!((sum / rounds - (low + high) / 2).abs() <= 3, "{jitter:?}");
        }
    }

    #[test]
    fn decorrelated_starts_at_the_base_and_keeps_the_maximum() {
        let policy = policy(100, 250, Jitter::Decorrelated);
        assert_eq!(policy.wait_ms(1, None, 0), 100);
        assert_eq!(policy.wait_ms(1, None, u64::MAX), 250);
        assert_eq!(policy.wait_ms(9, Some(0), u64::MAX), 100);
    }

    #[test]
    fn max_attempts_counts_the_first_try() {
        for (max_attempts, calls) in [(0, 1), (1, 1), (2, 2), (3, 3)] {
            let policy = RetryPolicy {
                max_attempts,
                ..RetryPolicy::default()
            };
            let mut made = 1;
            while policy.may_retry(made) {
                made += 1;
            }
            assert_eq!(made, calls);
        }
        assert!(
            !RetryPolicy {
                max_attempts: u32::MAX,
                ..RetryPolicy::default()
            }
            .may_retry(u32::MAX)
        );
    }

    #[test]
    fn jitter_is_written_in_snake_case() {
        assert_eq!(
            serde_json::to_string(&JITTERS).unwrap(),
            r#"["full","equal","decorrelated","none"]"#
        );
        assert!(serde_json::from_str::<Jitter>(r#""Full""#).is_err());
    }

    #[test]
    fn retry_after_reads_seconds_and_the_three_forms_of_a_date() {
        let now = Timestamp::parse("1994-11-06T08:49:33.250Z").unwrap();
        for header in [
            "Sun, 06 Nov 1994 08:49:37 GMT",
            "Sunday, 06-Nov-94 08:49:37 GMT",
            "Sun Nov  6 08:49:37 1994",
        ] {
            assert_eq!(retry_after_ms(header, now), Some(3_750), "{header}");
            assert_eq!(
                retry_after_ms(header, now.plus_ms(60_000)),
                Some(0),
                "{header}"
            );
        }
        assert_eq!(retry_after_ms("3", now), Some(3_000));
        assert_eq!(retry_after_ms(" 120\t", now), Some(120_000));
        assert_eq!(retry_after_ms("0", now), Some(0));
    }

    #[test]
    fn retry_after_is_bounded_and_junk_is_none() {
        let now = Timestamp::EPOCH;
        for header in [
            "31536001",
            "99999999999999999999999999",
            "Fri, 31 Dec 9999 23:59:59 GMT",
        ] {
            assert_eq!(
                retry_after_ms(header, now),
                Some(RETRY_AFTER_MS_MAX),
                "{header}"
            );
        }
        for header in [
            "",
            " ",
            "-1",
            "+1",
            "1.5",
            "1e3",
            "soon",
            "3s",
            "NaN",
            "٣",
            "Sun, 31 Feb 2027 08:49:37 GMT",
            "Sun, 06 Nov 1994 25:49:37 GMT",
            "Sun, 06 Nov 1994 08:49:37",
            "2026-12-01T00:00:00Z",
            "Sun, 06 Foo 1994 08:49:37 GMT",
            "Sunday, 06-Nov-94",
            "Sun, 06 Nov 1969 08:49:37 GMT",
        ] {
            assert_eq!(retry_after_ms(header, now), None, "{header}");
        }
    }
}
