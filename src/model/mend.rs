//! An answer that holds characters which cannot be kept is read all the same, so that one call's
//! fault is not the whole answer's.

use crate::json::{self, Json};

use super::{ModelAnswer, RawArguments};

/// What stands in the place of a character that cannot be kept.
const REPLACEMENT: char = '\u{FFFD}';

/// The text with U+0000 and halves of surrogate pairs replaced, where it escapes any.
pub(super) fn without_unkept(body: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(body).ok()?;
    let mut mended = String::with_capacity(text.len());
    let mut rest = text;
    let mut found = false;
    while let Some(at) = rest.find('\\') {
        let (before, escape) = rest.split_at(at);
        mended.push_str(before);
        let length = match unit(escape) {
            Some(0) => None,
            Some(0xD800..=0xDBFF) => {
                let low = escape.get(6..).and_then(unit);
                matches!(low, Some(0xDC00..=0xDFFF)).then_some(12)
            }
            Some(0xDC00..=0xDFFF) => None,
            Some(_) => Some(6),
            // The backslash and what it escapes, which may be a backslash.
            None => Some(1 + escape.chars().nth(1).map_or(0, char::len_utf8)),
        };
        if length.is_none() {
            found = true;
            mended.push(REPLACEMENT);
        } else {
            mended.push_str(escape.get(..length?)?);
        }
        rest = escape.get(length.unwrap_or(6)..)?;
    }
    mended.push_str(rest);
    found.then_some(mended)
}

/// The code unit of an escape `\uXXXX` at the start of a text.
fn unit(text: &str) -> Option<u32> {
    let digits = text.strip_prefix("\\u")?.get(..4)?;
    digits
        .bytes()
        .all(|byte| byte.is_ascii_hexdigit())
        .then(|| u32::from_str_radix(digits, 16).ok())?
}

/// Arguments with a replaced character are not what the model wrote, so they are given back as text
/// that is no JSON: the call's own fault, which the model is told.
pub(super) fn spoil(answer: &mut ModelAnswer) {
    for call in &mut answer.calls {
        let text = match &call.arguments {
            RawArguments::Absent => continue,
            RawArguments::Text(text) => text.clone(),
            RawArguments::Value(value) => json::write(value),
        };
        if text.contains(REPLACEMENT) {
            call.arguments = RawArguments::Text(text.replace(REPLACEMENT, "\\u0000"));
        }
    }
}

/// The answer as it is kept: with the replaced characters.
pub(super) fn read(body: &[u8]) -> Option<Json> {
    let mended = without_unkept(body)?;
    json::read(mended.as_bytes()).ok().map(Json::new)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_cannot_be_kept_is_replaced() {
        for (text, expected) in [
            (r#"{"a":"b"}"#, None),
            (r#"{"a":"\n\\u0000\u00e9\ud83d\ude00"}"#, None),
            (r#"{"a":"x\u0000y"}"#, Some("{\"a\":\"x\u{FFFD}y\"}")),
            (r#"["\\\u0000"]"#, Some("[\"\\\\\u{FFFD}\"]")),
            (
                r#"["\ud800","\udc00x","\ud83d\ude00"]"#,
                Some("[\"\u{FFFD}\",\"\u{FFFD}x\",\"\\ud83d\\ude00\"]"),
            ),
            (r#"["\u00"#, None),
            (r"\", None),
        ] {
            let found = without_unkept(text.as_bytes());
            assert_eq!(found.as_deref(), expected, "{text}");
        }
    }
}
