//! JSON in and out, exactly: numbers keep their digits and members their order.
//!
//! Outside bytes become a [`Value`] only through [`read`]. What it let in can be written, hashed,
//! stored and sent on without a further check.

mod canonical;
mod exact;
pub mod pointer;
mod read;
mod scan;

use std::io;

use serde::{Deserialize, Serialize};
pub use serde_json::Value;

pub use canonical::{canonical, same};
pub use exact::Json;
pub use read::{read, read_stored};

/// One flaw of a document, told to the person who must mend it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Violation {
    /// Where: a JSON pointer (RFC 6901) into the document.
    pub pointer: String,
    /// What is wrong there, in one sentence.
    pub message: String,
}

impl Violation {
    /// A flaw at `pointer`.
    pub fn new(pointer: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            pointer: pointer.into(),
            message: message.into(),
        }
    }
}

/// The flaws in one sentence, the first few of many.
pub fn sentence(flaws: &[Violation]) -> String {
    const SHOWN: usize = 3;
    let shown: Vec<String> = flaws
        .iter()
        .take(SHOWN)
        .map(|flaw| match flaw.pointer.as_str() {
            "" => flaw.message.clone(),
            pointer => format!("{pointer}: {}", flaw.message),
        })
        .collect();
    let more = match flaws.len().saturating_sub(SHOWN) {
        0 => String::new(),
        more => format!("; and {more} more"),
    };
    format!("{}{more}", shown.join("; "))
}

/// The value as compact text: members in their order, numbers as they were read.
pub fn write(value: &Value) -> String {
    value.to_string()
}

/// The bytes of the text of [`write()`], counted without making it.
pub fn bytes_len(value: &Value) -> usize {
    struct Count(usize);

    impl io::Write for Count {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0 = self.0.saturating_add(bytes.len());
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    let mut count = Count(0);
    match serde_json::to_writer(&mut count, value) {
        Ok(()) => count.0,
        // Counting does not fail; should it ever, the value counts as too large for any bound.
        Err(_) => usize::MAX,
    }
}

/// How deep arrays and objects stand within each other: 0 for a scalar, 1 for `[]`.
pub fn depth(value: &Value) -> usize {
    let inner = match value {
        Value::Array(items) => items.iter().map(depth).max(),
        Value::Object(members) => members.values().map(depth).max(),
        _ => return 0,
    };
    inner.unwrap_or(0).saturating_add(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_length_is_that_of_the_text() {
        for text in [
            "null",
            r#"{"a":[1,2.50,1E5,"é\n\u0001😀"],"b":{},"c":[]}"#,
            r#""""#,
        ] {
            let value = read(text.as_bytes()).unwrap();
            assert_eq!(bytes_len(&value), write(&value).len());
        }
    }

    #[test]
    fn depth_counts_arrays_and_objects() {
        for (text, expected) in [("1", 0), ("[]", 1), (r#"{"a":[1,[2]],"b":{}}"#, 3)] {
            assert_eq!(depth(&read(text.as_bytes()).unwrap()), expected);
        }
    }
}
