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
    /// Where the tool may report later; `None` where nothing listens.
    pub callback_url: Option<&'a str>,
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
    #[error("with its secrets filled in the URL is unusable: {message}")]
    BadUrl { message: String },
    #[error("the arguments cannot be sent as a query")]
    Arguments { violations: Vec<Violation> },
}

/// How a request is signed: with a secret, which may be `{{ secrets.NAME }}`, by headers made of it.
#[derive(Clone, Copy)]
pub struct Signing<'s> {
    pub secret: &'s str,
    pub sign: &'s dyn Fn(&str) -> Vec<(String, String)>,
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
    /// A POST of JSON that is no tool's: to a model's provider, or to a planner. `headers` may hold
    /// `{{ secrets.NAME }}`, and those of `target` come on top. The headers
    /// that sign it are sent as they are.
    ///
    /// # Errors
    /// A secret that is missing or unusable.
    pub fn post(
        target: &HttpTarget,
        headers: &[(&str, String)],
        signing: Option<Signing<'_>>,
        body: String,
        timeout_ms: i64,
        secrets: &Secrets<'_>,
    ) -> Result<Self, RequestError> {
        let mut filler = Filler {
            secrets,
            masks: Vec::new(),
        };
        let url = filler.url(&target.url)?;
        check_url(&url).map_err(|message| RequestError::BadUrl { message })?;
        let own = headers.iter().map(|(name, value)| (*name, value.as_str()));
        let given = target.headers.iter();
        let given = given.map(|(name, value)| (name.as_str(), value.as_str()));
        let mut headers: Vec<(String, String)> = [
            ("content-type", "application/json"),
            ("accept", "application/json"),
            (
                "user-agent",
                concat!("Dormouse/", env!("CARGO_PKG_VERSION")),
            ),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into();
        for (name, value) in own.chain(given) {
            let value = filler.header(value)?;
            headers.retain(|(known, _)| !known.eq_ignore_ascii_case(name));
            headers.push((name.to_owned(), value));
        }
        if let Some(signing) = signing {
            headers.extend((signing.sign)(&filler.header(signing.secret)?));
        }
        Ok(Self {
            method: Method::Post,
            url,
            loggable_url: target.url.clone(),
            headers,
            body: Some(body),
            timeout_ms,
            masks: filler.masks(),
        })
    }

    /// A text from outside, such as an error that quotes the request, with the secrets that were sent
    /// replaced by their names; also the one that a cut (`…`) left half.
    #[must_use]
    pub fn mask(&self, text: &str) -> String {
        let mut masked = text.to_owned();
        for (name, value) in &self.masks {
            masked = masked.replace(value, &format!("[secret {name}]"));
            let half = masked.strip_suffix('…').and_then(|stem| {
                let starts = value.char_indices().map(|(at, _)| at);
                let mut starts = starts.filter(|at| *at >= MASKED_BYTES_MIN).rev();
                starts.find_map(|at| stem.strip_suffix(value.get(..at)?))
            });
            if let Some(stem) = half {
                masked = format!("{stem}[secret {name}]…");
            }
        }
        masked
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
        ("accept", "application/json".to_owned()),
        (
            "user-agent",
            concat!("Dormouse/", env!("CARGO_PKG_VERSION")).to_owned(),
        ),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into();
    if let Some(callback_url) = call.callback_url {
        headers.push(("Dormouse-Callback".to_owned(), callback_url.to_owned()));
        // Whoever holds the token can complete the step.
        let token = callback_url.rsplit('/').next().unwrap_or(callback_url);
        filler
            .masks
            .push(("Dormouse-Callback".to_owned(), token.to_owned()));
    }
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
#[path = "request_tests.rs"]
mod tests;
