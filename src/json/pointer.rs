//! JSON pointers (RFC 6901).

use core::fmt::Display;

use serde_json::Value;

/// `pointer` led one step on, to the member or index `token`.
pub fn push(pointer: &str, token: impl Display) -> String {
    let mut longer = pointer.to_owned();
    append(&mut longer, &token.to_string());
    longer
}

/// As [`push`], in place.
pub(super) fn append(pointer: &mut String, token: &str) {
    pointer.push('/');
    for character in token.chars() {
        match character {
            '~' => pointer.push_str("~0"),
            '/' => pointer.push_str("~1"),
            other => pointer.push(other),
        }
    }
}

/// What `pointer` names in `value`, if it names anything; the empty pointer names all of it.
pub fn get<'v>(value: &'v Value, pointer: &str) -> Option<&'v Value> {
    value.pointer(pointer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_of_the_rfc_resolves() {
        let document = serde_json::json!({
            "foo": ["bar", "baz"], "": 0, "a/b": 1, "c%d": 2, "e^f": 3, "g|h": 4, "i\\j": 5,
            "k\"l": 6, " ": 7, "m~n": 8
        });
        assert_eq!(get(&document, ""), Some(&document));
        for (pointer, expected) in [
            ("/foo/0", "\"bar\""),
            ("/", "0"),
            ("/a~1b", "1"),
            ("/c%d", "2"),
            ("/e^f", "3"),
            ("/g|h", "4"),
            ("/i\\j", "5"),
            ("/k\"l", "6"),
            ("/ ", "7"),
            ("/m~0n", "8"),
        ] {
            assert_eq!(get(&document, pointer).unwrap().to_string(), expected);
        }
        for pointer in ["foo", "/foo/2", "/foo/00", "/foo/-", "/bar", "/foo/0/x"] {
            assert_eq!(get(&document, pointer), None, "{pointer}");
        }
    }

    #[test]
    fn a_pushed_token_is_found_again() {
        for name in ["", "a/b", "m~n", "~1", "~0/", "é"] {
            let document = serde_json::json!({ "outer": [{ name: true }] });
            let pointer = push(&push("/outer", 0), name);
            assert_eq!(get(&document, &pointer), Some(&Value::Bool(true)));
        }
    }
}
