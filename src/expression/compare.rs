//! Equality and order of JSON values, exact where a double would round.

use std::cmp::Ordering;

use serde_json::{Number, Value};

use crate::json;

/// Numbers are equal by value, everything else by canonical form; across types nothing is.
pub(super) fn equal(left: &Value, right: &Value) -> bool {
    match (left, right) {
        (Value::Number(left), Value::Number(right)) => {
            numbers(left, right) == Some(Ordering::Equal)
        }
        _ => json::same(left, right),
    }
}

/// Numbers by value, strings by code points. None: these two have no order.
pub(super) fn order(left: &Value, right: &Value) -> Option<Ordering> {
    match (left, right) {
        (Value::Number(left), Value::Number(right)) => numbers(left, right),
        (Value::String(left), Value::String(right)) => Some(left.cmp(right)),
        _ => None,
    }
}

/// A plain integer counts with all its digits, any other number as its double. An integer and a
/// double are compared without rounding the integer, so that equality stays transitive.
fn numbers(left: &Number, right: &Number) -> Option<Ordering> {
    match (Integer::of(left.as_str()), Integer::of(right.as_str())) {
        (Some(left), Some(right)) => Some(left.cmp(&right)),
        (Some(left), None) => integer_and_double(left, right),
        (None, Some(right)) => integer_and_double(right, left).map(Ordering::reverse),
        (None, None) => double(left)?.partial_cmp(&double(right)?),
    }
}

fn integer_and_double(integer: Integer<'_>, other: &Number) -> Option<Ordering> {
    let other = double(other)?;
    // Rust writes a double's whole part out exactly, however large it is.
    let whole = format!("{:.0}", other.trunc());
    let by_whole = integer.cmp(&Integer::of(&whole)?);
    Some(by_whole.then_with(|| {
        0.0_f64
            .partial_cmp(&other.fract())
            .unwrap_or(Ordering::Equal)
    }))
}

fn double(number: &Number) -> Option<f64> {
    number.as_f64().filter(|double| double.is_finite())
}

/// A whole number in plain notation, of any length.
#[derive(PartialEq, Eq)]
struct Integer<'a> {
    negative: bool,
    digits: &'a str,
}

impl<'a> Integer<'a> {
    fn of(text: &'a str) -> Option<Self> {
        let digits = text.strip_prefix('-').unwrap_or(text);
        if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        let digits = digits.trim_start_matches('0');
        Some(Self {
            // -0 is 0.
            negative: text.starts_with('-') && !digits.is_empty(),
            digits,
        })
    }
}

impl Ord for Integer<'_> {
    fn cmp(&self, other: &Self) -> Ordering {
        let by_size = |a: &Self, b: &Self| {
            a.digits
                .len()
                .cmp(&b.digits.len())
                .then_with(|| a.digits.cmp(b.digits))
        };
        match (self.negative, other.negative) {
            (true, false) => Ordering::Less,
            (false, true) => Ordering::Greater,
            (false, false) => by_size(self, other),
            (true, true) => by_size(other, self),
        }
    }
}

impl PartialOrd for Integer<'_> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_compared_by_value_and_without_rounding() {
        use Ordering::{Equal, Greater, Less};
        for (left, right, expected) in [
            ("1", "1.0", Equal),
            ("-0", "0", Equal),
            ("-0.0", "0", Equal),
            ("9007199254740993", "9007199254740992", Greater),
            ("9007199254740993", "9007199254740992.0", Greater),
            ("18446744073709551616", "18446744073709551615", Greater),
            ("-18446744073709551616", "-18446744073709551615", Less),
            ("1000000000000000000000", "1e21", Equal),
            ("1000000000000000000001", "1e21", Greater),
            ("2", "2.5", Less),
            ("-2", "-2.5", Greater),
            ("-3", "-2.5", Less),
            ("0.1", "1e-1", Equal),
            ("10", "9", Greater),
        ] {
            let number = |text: &str| text.parse::<Number>().unwrap();
            let (a, b) = (number(left), number(right));
            assert_eq!(numbers(&a, &b), Some(expected), "{left} and {right}");
            assert_eq!(
                numbers(&b, &a),
                Some(expected.reverse()),
                "{right} and {left}"
            );
        }
    }
}
