//! The request of one attempt. Secrets are put in last, and nothing printable holds them.

use std::fmt;

use serde_json::Value;

use super::definition::Tool;
use super::encode::{append_query, encode, is_unreserved};
use super::secrets::{Piece, pieces};
use super::target::{HttpTarget, Method, check_url, is_header_value};
use crate::json::{self, Violation};

/// A shorter secret is not masked: it would blacken innocent text.
const MASKED_BYTES_MIN: usize = 4;

/// One attempt of one step. The same step has the same key in every attempt.
#[derive(Clone, Copy, Debug)]
pub struct Call<'a> {
    pub run_id: &'a str,
    pub step_index: u32,
    /// From 1.
    pub attempt: u32,
    pub idempotency_key: &'a str,
    pub traceparent: &'a str,
    pub callback_url: &'a str,
    pub arguments: &'a Value,
}

/// A request as it is sent. Its `Debug` names the headers and hides what they hold.
#[derive(Clone, PartialEq, Eq)]
pub struct OutboundRequest {
    pub method: Method,
    /// With secrets. Never to be logged.
    pub url: String,
    /// The URL of the definition: no secrets and no arguments.
    pub loggable_url: String,
    /// With secrets. Names are unique.
    pub headers: Vec<(String, String)>,
    /// Compact JSON.
    pub body: Option<String>,
    pub timeout_ms: i64,
    masks: Vec<(String, String)>,
}

/// Why there is no request to send. Safe to log and to show.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    #[error("the secret {name} is not stored")]
    MissingSecret { name: String },
    #[error("the secret {name} holds what a header cannot carry")]
    UnusableSecret { name: String },
    #[error("with its secrets filled in the tool's URL is unusable: {message}")]
    BadUrl { message: String },
    #[error("the arguments cannot be sent as a query")]
    Arguments { violations: Vec<Violation> },
}

/// How secrets are looked up: None where there is none of that name.
pub type Secrets<'s> = dyn Fn(&str) -> Option<String> + 's;

impl Tool {
    /// The request of one attempt.
    ///
    /// With POST, PUT and PATCH the arguments are the body. With GET and DELETE they are the query,
    /// `application/x-www-form-urlencoded` as the URL standard writes it: a scalar as its text, null
    /// as nothing, an array as its name once for each item, anything deeper as compact JSON.
    ///
    /// # Errors
    /// A secret that is missing or unusable, or arguments that no query can carry.
    pub fn request(
        &self,
        call: &Call<'_>,
        secrets: &Secrets<'_>,
    ) -> Result<OutboundRequest, RequestError> {
        build(&self.http, self.timeout_ms, call, secrets)
    }

    /// The request that asks what became of that call, with the same key; None where the tool has none.
    ///
    /// # Errors
    /// As for [`Tool::request`].
    pub fn verify_request(
        &self,
        call: &Call<'_>,
        secrets: &Secrets<'_>,
    ) -> Result<Option<OutboundRequest>, RequestError> {
        let target = self.verify.as_ref();
        target
            .map(|target| build(target, self.timeout_ms, call, secrets))
            .transpose()
    }
}

impl OutboundRequest {
    /// A text from outside, such as an error that quotes the request, with the secrets that were sent
    /// replaced by their names.
    #[must_use]
    pub fn mask(&self, text: &str) -> String {
        self.masks
            .iter()
            .fold(text.to_owned(), |text, (name, value)| {
                text.replace(value, &format!("[secret {name}]"))
            })
    }
}

impl fmt::Debug for OutboundRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let headers: Vec<&str> = self.headers.iter().map(|(name, _)| name.as_str()).collect();
        f.debug_struct("OutboundRequest")
            .field("method", &self.method.as_str())
            .field("url", &self.loggable_url)
            .field("headers", &headers)
            .field("body_bytes", &self.body.as_ref().map(String::len))
            .field("timeout_ms", &self.timeout_ms)
            .finish()
    }
}

fn build(
    target: &HttpTarget,
    timeout_ms: i64,
    call: &Call<'_>,
    secrets: &Secrets<'_>,
) -> Result<OutboundRequest, RequestError> {
    let mut filler = Filler {
        secrets,
        masks: Vec::new(),
    };
    let mut url = filler.url(&target.url)?;
    let mut body = None;
    if target.method.has_body() {
        body = Some(json::write(call.arguments));
    } else {
        append_query(&mut url, call.arguments).map_err(|violation| RequestError::Arguments {
            violations: vec![violation],
        })?;
    }
    check_url(&url).map_err(|message| RequestError::BadUrl { message })?;

    let mut headers: Vec<(String, String)> = [
        ("Idempotency-Key", call.idempotency_key.to_owned()),
        ("traceparent", call.traceparent.to_owned()),
        ("Dormouse-Run-Id", call.run_id.to_owned()),
        ("Dormouse-Step-Index", call.step_index.to_string()),
        ("Dormouse-Attempt", call.attempt.to_string()),
        ("Dormouse-Callback", call.callback_url.to_owned()),
        ("accept", "application/json".to_owned()),
        (
            "user-agent",
            concat!("Dormouse/", env!("CARGO_PKG_VERSION")).to_owned(),
        ),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into();
    if body.is_some() {
        headers.push(("content-type".to_owned(), "application/json".to_owned()));
    }
    for (name, value) in &target.headers {
        let value = filler.header(value)?;
        // The engine's own names were refused in the definition, so this replaces a courtesy only.
        headers.retain(|(known, _)| !known.eq_ignore_ascii_case(name));
        headers.push((name.clone(), value));
    }
    Ok(OutboundRequest {
        method: target.method,
        url,
        loggable_url: target.url.clone(),
        headers,
        body,
        timeout_ms,
        masks: filler.masks(),
    })
}

/// Puts secrets in, and remembers each form in which one was sent.
struct Filler<'s> {
    secrets: &'s Secrets<'s>,
    masks: Vec<(String, String)>,
}

impl Filler<'_> {
    fn header(&mut self, template: &str) -> Result<String, RequestError> {
        let mut filled = String::new();
        for piece in read(template)? {
            match piece {
                Piece::Text(text) => filled.push_str(text),
                Piece::Secret(name) => {
                    let value = self.secret(name)?;
                    if !is_header_value(&value) {
                        return Err(RequestError::UnusableSecret { name: name.into() });
                    }
                    filled.push_str(&value);
                }
            }
        }
        Ok(filled)
    }

    /// A secret is encoded for the place where it stands, so that it adds no query and no fragment:
    /// before the path as it is, in the path with its slashes, in the query as one value.
    fn url(&mut self, template: &str) -> Result<String, RequestError> {
        let mut filled = String::new();
        for piece in read(template)? {
            let name = match piece {
                Piece::Text(text) => {
                    filled.push_str(text);
                    continue;
                }
                Piece::Secret(name) => name,
            };
            let value = self.secret(name)?;
            let behind_scheme = filled.split_once("://").map(|(_, rest)| rest);
            let sent = match behind_scheme {
                Some(rest) if rest.contains('?') => encode(&value, is_unreserved),
                Some(rest) if rest.contains('/') => encode(&value, |byte| {
                    is_unreserved(byte) || b"/:@!$&'()*+,;=".contains(&byte)
                }),
                _ => value,
            };
            filled.push_str(&sent);
            self.masks.push((name.to_owned(), sent));
        }
        Ok(filled)
    }

    fn secret(&mut self, name: &str) -> Result<String, RequestError> {
        let value = (self.secrets)(name)
            .ok_or_else(|| RequestError::MissingSecret { name: name.into() })?;
        self.masks.push((name.to_owned(), value.clone()));
        Ok(value)
    }

    /// The longest first: one secret may be part of another.
    fn masks(mut self) -> Vec<(String, String)> {
        self.masks
            .retain(|(_, value)| value.len() >= MASKED_BYTES_MIN);
        self.masks
            .sort_by_key(|(_, value)| std::cmp::Reverse(value.len()));
        self.masks.dedup();
        self.masks
    }
}

/// A definition that parsed has no flaw here; one that did not is still no reason to panic.
fn read(template: &str) -> Result<Vec<Piece<'_>>, RequestError> {
    pieces(template).map_err(|message| RequestError::BadUrl { message })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn tool(method: &str, url: &str, headers: Value) -> Tool {
        Tool::parse(&json!({
            "http": { "method": method, "url": url, "headers": headers },
            "verify": { "http": { "url": url } }, "timeout": "PT5S"
        }))
        .unwrap()
    }

    fn call(arguments: &Value) -> Call<'_> {
        Call {
            run_id: "run_1",
            step_index: 3,
            attempt: 2,
            idempotency_key: "abc",
            traceparent: "00-t-s-01",
            callback_url: "https://d.example/v1/callbacks/tok",
            arguments,
        }
    }

    fn secrets(name: &str) -> Option<String> {
        match name {
            "KEY" => Some("s3cret+/?#&".to_owned()),
            "BASE" => Some("https://hooks.example/T0/B0".to_owned()),
            "BAD" => Some("a\r\nX: y".to_owned()),
            "USER" => Some("https://u:p@host".to_owned()),
            _ => None,
        }
    }

    #[test]
    fn a_post_carries_its_arguments_and_the_headers_of_the_contract() {
        let arguments = json::read(br#"{"b":1,"id":18446744073709551616,"a":[1.50]}"#).unwrap();
        let tool = tool(
            "POST",
            "https://a.example/x",
            json!({ "Authorization": "Bearer {{ secrets.KEY }}", "Accept": "text/json" }),
        );
        let request = tool.request(&call(&arguments), &secrets).unwrap();
        assert_eq!(
            request.body.as_deref(),
            Some(r#"{"b":1,"id":18446744073709551616,"a":[1.50]}"#)
        );
        assert_eq!(request.url, "https://a.example/x");
        assert_eq!(request.timeout_ms, 5000);
        let agent = format!("Dormouse/{}", env!("CARGO_PKG_VERSION"));
        let headers: Vec<(&str, &str)> = request
            .headers
            .iter()
            .map(|(n, v)| (n.as_str(), v.as_str()))
            .collect();
        assert_eq!(
            headers,
            [
                ("Idempotency-Key", "abc"),
                ("traceparent", "00-t-s-01"),
                ("Dormouse-Run-Id", "run_1"),
                ("Dormouse-Step-Index", "3"),
                ("Dormouse-Attempt", "2"),
                ("Dormouse-Callback", "https://d.example/v1/callbacks/tok"),
                ("user-agent", agent.as_str()),
                ("content-type", "application/json"),
                ("Authorization", "Bearer s3cret+/?#&"),
                ("Accept", "text/json"),
            ]
        );
        let verify = tool
            .verify_request(&call(&json!({})), &secrets)
            .unwrap()
            .unwrap();
        assert_eq!((verify.method, verify.body), (Method::Get, None));
        assert!(
            verify
                .headers
                .contains(&("Idempotency-Key".to_owned(), "abc".to_owned()))
        );
    }

    #[test]
    fn a_get_carries_them_in_its_query() {
        for (url, arguments, expected) in [
            ("https://a/x", json!({}), "https://a/x"),
            (
                "https://a/x",
                json!({ "q": "a b&c=é~*" }),
                "https://a/x?q=a+b%26c%3D%C3%A9%7E*",
            ),
            (
                "https://a/x",
                json!({ "a b": [1, true, null, "x"], "e": [] }),
                "https://a/x?a+b=1&a+b=true&a+b=&a+b=x",
            ),
            (
                "https://a/x?k=v",
                json!({ "o": { "p": [1] } }),
                "https://a/x?k=v&o=%7B%22p%22%3A%5B1%5D%7D",
            ),
            (
                "https://a/x?",
                json!({ "n": 9_007_199_254_740_993_u64 }),
                "https://a/x?n=9007199254740993",
            ),
        ] {
            let request = tool("GET", url, json!({}))
                .request(&call(&arguments), &secrets)
                .unwrap();
            assert_eq!(request.url, expected);
            assert_eq!(request.body, None);
            assert_eq!(request.loggable_url, url);
        }
        for arguments in [json!([1]), json!("x"), json!({ "x": "y".repeat(20_000) })] {
            let found =
                tool("DELETE", "https://a/", json!({})).request(&call(&arguments), &secrets);
            assert!(matches!(found, Err(RequestError::Arguments { .. })));
        }
    }

    #[test]
    fn a_secret_in_a_url_is_encoded_for_its_place() {
        for (url, expected) in [
            (
                "https://a/{{ secrets.KEY }}/x",
                "https://a/s3cret+/%3F%23&/x",
            ),
            (
                "https://a/?k={{ secrets.KEY }}&l=1",
                "https://a/?k=s3cret%2B%2F%3F%23%26&l=1",
            ),
            ("{{ secrets.BASE }}/x", "https://hooks.example/T0/B0/x"),
        ] {
            let request = tool("POST", url, json!({}))
                .request(&call(&json!({})), &secrets)
                .unwrap();
            assert_eq!(request.url, expected);
            assert_eq!(request.loggable_url, url);
        }
        for url in [
            "{{ secrets.USER }}/x",
            "https://{{ secrets.BAD }}/",
            "{{ secrets.KEY }}",
        ] {
            let found = tool("POST", url, json!({})).request(&call(&json!({})), &secrets);
            assert!(matches!(found, Err(RequestError::BadUrl { .. })), "{url}");
        }
    }

    #[test]
    fn an_unusable_secret_is_named_and_not_quoted() {
        for (value, expected) in [
            ("{{ secrets.NONE }}", "the secret NONE is not stored"),
            (
                "{{ secrets.BAD }}",
                "the secret BAD holds what a header cannot carry",
            ),
        ] {
            let found = tool("POST", "https://a/", json!({ "X": value }))
                .request(&call(&json!({})), &secrets);
            assert_eq!(found.unwrap_err().to_string(), expected);
        }
    }

    #[test]
    fn nothing_printable_holds_a_secret() {
        let tool = tool(
            "GET",
            "https://a/?k={{ secrets.KEY }}",
            json!({ "X": "{{ secrets.KEY }}" }),
        );
        let request = tool
            .request(&call(&json!({ "pin": "1234" })), &secrets)
            .unwrap();
        let shown = format!("{request:?}");
        assert!(
            !shown.contains("s3cret") && !shown.contains("1234"),
            "{shown}"
        );
        assert_eq!(
            request.mask("no such host: https://a/?k=s3cret%2B%2F%3F%23%26 (s3cret+/?#&)"),
            "no such host: https://a/?k=[secret KEY] ([secret KEY])"
        );
    }
}
