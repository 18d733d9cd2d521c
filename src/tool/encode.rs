//! Percent-encoding, and arguments as a query.

use serde_json::Value;

use crate::json::{self, Violation, pointer};

/// The longest URL that is sent; beyond it the platforms on the way differ.
const URL_BYTES_MAX: usize = 16 * 1024;

/// Adds each member of the arguments to the URL's query. The flaw's pointer is in the arguments.
pub(super) fn append_query(url: &mut String, arguments: &Value) -> Result<(), Violation> {
    let Value::Object(members) = arguments else {
        return Err(Violation::new(
            "",
            "the arguments of a GET or DELETE must be an object: each member is a parameter of the query",
        ));
    };
    for (name, value) in members {
        let values = match value {
            Value::Array(items) => items.as_slice(),
            single => std::slice::from_ref(single),
        };
        for value in values {
            let separator = match url.split_once('?') {
                None => "?",
                Some((_, query)) if query.is_empty() || query.ends_with('&') => "",
                Some(_) => "&",
            };
            url.push_str(separator);
            url.push_str(&form_encode(name));
            url.push('=');
            url.push_str(&match value {
                Value::Null => String::new(),
                Value::String(text) => form_encode(text),
                other => form_encode(&json::write(other)),
            });
            if url.len() > URL_BYTES_MAX {
                return Err(Violation::new(
                    pointer::push("", name),
                    format!(
                        "with this the URL grows beyond {URL_BYTES_MAX} bytes: a tool for large arguments is called by POST"
                    ),
                ));
            }
        }
    }
    Ok(())
}

/// As the URL standard serialises `application/x-www-form-urlencoded`.
fn form_encode(text: &str) -> String {
    encode(text, |byte| {
        byte.is_ascii_alphanumeric() || b"*-._ ".contains(&byte)
    })
    .replace(' ', "+")
}

pub(super) fn is_unreserved(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~".contains(&byte)
}

pub(super) fn encode(text: &str, keep: impl Fn(u8) -> bool) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        if keep(byte) {
            encoded.push(char::from(byte));
        } else {
            encoded.push_str(&format!("%{byte:02X}"));
        }
    }
    encoded
}
