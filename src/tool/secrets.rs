//! `{{ secrets.NAME }}` in a URL or a header.

const OPEN: &str = "{{";
const CLOSE: &str = "}}";
const NAME_BYTES_MAX: usize = 128;

/// A stretch of such a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Piece<'a> {
    Text(&'a str),
    Secret(&'a str),
}

/// Splits a text at its placeholders, or says what is wrong with one.
pub(super) fn pieces(text: &str) -> Result<Vec<Piece<'_>>, String> {
    let mut found = Vec::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once(OPEN) {
        if !before.is_empty() {
            found.push(Piece::Text(before));
        }
        let Some((inner, behind)) = after.split_once(CLOSE) else {
            return Err(format!("this {OPEN} has no {CLOSE}"));
        };
        match inner.trim().strip_prefix("secrets.") {
            Some(name) if is_secret_name(name) => found.push(Piece::Secret(name)),
            _ => {
                return Err(format!(
                    "only {OPEN} secrets.NAME {CLOSE} can stand here; what a call carries is in its arguments"
                ));
            }
        }
        rest = behind;
    }
    if !rest.is_empty() {
        found.push(Piece::Text(rest));
    }
    Ok(found)
}

/// Whether a text names no secret: it is what it says.
#[must_use]
pub fn is_plain_text(text: &str) -> bool {
    !text.contains(OPEN)
}

/// Whether a secret can have this name: `[A-Za-z0-9_][A-Za-z0-9._-]{0,127}`.
#[must_use]
pub fn is_secret_name(text: &str) -> bool {
    let first = text.bytes().next();
    first.is_some_and(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
        && text.len() <= NAME_BYTES_MAX
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_splits_at_its_secrets() {
        use Piece::{Secret, Text};
        for (text, expected) in [
            ("", vec![]),
            ("plain }}", vec![Text("plain }}")]),
            (
                "Bearer {{ secrets.PAY_KEY }}",
                vec![Text("Bearer "), Secret("PAY_KEY")],
            ),
            (
                "{{secrets.a}}{{secrets.b.c}}!",
                vec![Secret("a"), Secret("b.c"), Text("!")],
            ),
        ] {
            assert_eq!(pieces(text).unwrap(), expected, "{text}");
        }
        for text in [
            "{{",
            "{{ secrets. }}",
            "{{ input.x }}",
            "{{ secrets.a b }}",
            "{{ secrets.é }}",
        ] {
            assert!(pieces(text).is_err(), "{text}");
        }
    }
}
