//! Where a tool's request goes.

use super::secrets::{Piece, pieces};
use crate::fields::{Fields, Flaws, shorten};

/// A method, a URL and headers, in which `{{ secrets.NAME }}` may stand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpTarget {
    pub method: Method,
    /// Absolute, `http` or `https`, without user name and fragment.
    pub url: String,
    /// Names as they were written, each once.
    pub headers: Vec<(String, String)>,
}

/// The methods a tool may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    Get,
    Post,
    Put,
    Patch,
    Delete,
}

impl Method {
    /// As it stands in a request.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Method::Get => "GET",
            Method::Post => "POST",
            Method::Put => "PUT",
            Method::Patch => "PATCH",
            Method::Delete => "DELETE",
        }
    }

    /// Whether the arguments travel in the body; otherwise they are the query.
    #[must_use]
    pub fn has_body(self) -> bool {
        matches!(self, Method::Post | Method::Put | Method::Patch)
    }
}

/// Set by the engine, or by HTTP itself; a tool that set them would break its own calls.
const RESERVED_HEADERS: [&str; 11] = [
    "idempotency-key",
    "traceparent",
    "host",
    "content-length",
    "transfer-encoding",
    "connection",
    "keep-alive",
    "upgrade",
    "expect",
    "te",
    "trailer",
];
const RESERVED_PREFIX: &str = "dormouse-";

impl HttpTarget {
    /// A target whose headers were checked before.
    ///
    /// # Errors
    /// Why the URL cannot be used.
    pub fn of(method: Method, url: &str, headers: &[(String, String)]) -> Result<Self, String> {
        check_url_template(url)?;
        Ok(Self {
            method,
            url: url.to_owned(),
            headers: headers.to_vec(),
        })
    }

    /// Reads `{ "method", "url", "headers" }`. None, and a flaw, where there is no usable URL.
    pub(super) fn read(fields: &Fields<'_>, method: Method, flaws: &mut Flaws) -> Option<Self> {
        fields.refuse_unknown(&["method", "url", "headers"], flaws);
        let methods = [
            Method::Get,
            Method::Post,
            Method::Put,
            Method::Patch,
            Method::Delete,
        ]
        .map(|method| (method.as_str(), method));
        let method = fields.choice("method", &methods, flaws).unwrap_or(method);
        let mut headers: Vec<(String, String)> = Vec::new();
        if let Some(given) = fields.object("headers", flaws) {
            for (name, value) in given.iter() {
                let value = value.as_str();
                let known = headers
                    .iter()
                    .any(|(known, _)| known.eq_ignore_ascii_case(name));
                let flaw = match value {
                    _ if known => Err("this header is named twice".to_owned()),
                    None => Err("a header's value must be a string".to_owned()),
                    Some(value) => check_header(name, value),
                };
                match flaw {
                    Err(message) => flaws.add(given.at(name), message),
                    Ok(()) => {
                        headers.push((name.to_owned(), value.unwrap_or_default().to_owned()));
                    }
                }
            }
        }
        let url = fields.required_text("url", flaws)?;
        if let Err(message) = check_url_template(url) {
            flaws.add(fields.at("url"), message);
            return None;
        }
        Some(Self {
            method,
            url: url.to_owned(),
            headers,
        })
    }

    /// The secrets it names, in the order of first use.
    pub(super) fn secret_names(&self) -> Vec<&str> {
        let mut names = Vec::new();
        let texts = self.headers.iter().map(|(_, value)| value);
        for text in std::iter::once(&self.url).chain(texts) {
            for piece in pieces(text).unwrap_or_default() {
                if let Piece::Secret(name) = piece
                    && !names.contains(&name)
                {
                    names.push(name);
                }
            }
        }
        names
    }
}

/// Whether a definition may set this header to this value, in which `{{ secrets.NAME }}` may stand.
///
/// # Errors
/// Why it may not.
pub fn check_header(name: &str, value: &str) -> Result<(), String> {
    if name.is_empty() || !name.bytes().all(is_token) {
        return Err(format!(
            "{:?} cannot be the name of a header",
            shorten(name)
        ));
    }
    let lower = name.to_ascii_lowercase();
    if RESERVED_HEADERS.contains(&lower.as_str()) || lower.starts_with(RESERVED_PREFIX) {
        return Err(format!("{name} is not the tool's to set"));
    }
    if !is_header_value(value) {
        return Err("a header's value is visible ASCII, spaces and tabs, on one line".to_owned());
    }
    pieces(value).map(|_| ())
}

/// What a header can carry anywhere without being cut, split or refused on its way.
pub(super) fn is_header_value(text: &str) -> bool {
    text.bytes()
        .all(|byte| byte.is_ascii_graphic() || matches!(byte, b' ' | b'\t'))
}

fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

/// Checks what is known of a URL in which secrets stand; the rest is checked when it is filled in.
fn check_url_template(url: &str) -> Result<(), String> {
    let filled: String = pieces(url)?
        .iter()
        .enumerate()
        .map(|(index, piece)| match piece {
            Piece::Text(text) => text,
            // The whole start of a URL may be a secret, as with webhooks.
            Piece::Secret(_) if index == 0 => "https://1",
            Piece::Secret(_) => "1",
        })
        .collect();
    check_url(&filled)
}

/// Checks a URL as it will be sent. The message does not quote it: it may hold a secret.
pub(super) fn check_url(url: &str) -> Result<(), String> {
    const ODD: &[u8] = b"\"<>\\^`{|}";
    let (scheme, rest) = url.split_once("://").unwrap_or_default();
    if !scheme.eq_ignore_ascii_case("http") && !scheme.eq_ignore_ascii_case("https") {
        return Err("a tool's URL is absolute and starts with https:// or http://".to_owned());
    }
    if let Some(odd) = url
        .bytes()
        .find(|byte| !byte.is_ascii_graphic() || ODD.contains(byte))
    {
        return Err(format!(
            "byte 0x{odd:02x} cannot stand in a URL: write it percent-encoded, and a host in its ASCII form"
        ));
    }
    if url.contains('#') {
        return Err("a tool's URL has no fragment (#)".to_owned());
    }
    let authority = rest.split(['/', '?']).next().unwrap_or_default();
    if authority.contains('@') {
        return Err(
            "a tool's URL holds no user name or password: use a header with a secret".to_owned(),
        );
    }
    check_authority(authority)
}

fn check_authority(authority: &str) -> Result<(), String> {
    let (host, port) = match authority.strip_prefix('[') {
        Some(rest) => {
            let (address, behind) = rest.split_once(']').unwrap_or_default();
            if address.parse::<std::net::Ipv6Addr>().is_err() {
                return Err("what stands in the URL's brackets is no IPv6 address".to_owned());
            }
            match behind {
                "" => ("v6", None),
                _ => ("v6", Some(behind.strip_prefix(':').unwrap_or_default())),
            }
        }
        None => match authority.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (authority, None),
        },
    };
    let host_is_sound = !host.is_empty()
        && host
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_'));
    if !host_is_sound {
        return Err("the URL's host is missing or holds what a host cannot".to_owned());
    }
    match port {
        Some(port)
            if port.parse::<u16>().unwrap_or_default() == 0
                || !port.bytes().all(|byte| byte.is_ascii_digit()) =>
        {
            Err("the URL's port must be a number from 1 to 65535".to_owned())
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn read(value: &Value) -> Result<HttpTarget, Vec<String>> {
        let mut flaws = Flaws::default();
        let target = Fields::of(value, "", &mut flaws)
            .and_then(|fields| HttpTarget::read(&fields, Method::Post, &mut flaws));
        flaws.none_in(target).map(Option::unwrap).map_err(|found| {
            found
                .into_iter()
                .map(|v| format!("{}: {}", v.pointer, v.message))
                .collect()
        })
    }

    #[test]
    fn urls() {
        for url in [
            "https://pay.example/charges",
            "http://localhost:8787",
            "HTTP://127.0.0.1:1/a?b=c&d=%20",
            "https://[::1]:80/x",
            "https://{{ secrets.HOST }}/x?k={{ secrets.KEY }}",
            "{{ secrets.WEBHOOK }}",
        ] {
            assert_eq!(
                read(&json!({ "url": url })).map(|target| target.url),
                Ok(url.to_owned())
            );
        }
        for (url, expected) in [
            ("", "is absolute"),
            ("/relative", "is absolute"),
            ("ftp://a/b", "is absolute"),
            ("javascript:alert(1)", "is absolute"),
            ("https://", "host is missing"),
            ("https:///path", "host is missing"),
            ("https://u:p@host/", "no user name"),
            ("https://good.example\\@evil/", "byte 0x5c"),
            ("https://a/b#c", "no fragment"),
            ("https://a b/", "byte 0x20"),
            ("https://é/", "byte 0xc3"),
            ("https://a/\nb", "byte 0x0a"),
            ("https://%61/", "what a host cannot"),
            ("https://a:0/", "port"),
            ("https://a:+1/", "port"),
            ("https://a:99999/", "port"),
            ("https://[::1/", "no IPv6"),
            ("https://a/{{ input.x }}", "only {{ secrets.NAME }}"),
            ("https://a/{{", "has no }}"),
            ("{{ secrets.U }}#x", "no fragment"),
        ] {
            let found = read(&json!({ "url": url })).unwrap_err();
            assert!(
                found[0].starts_with("/url: ") && found[0].contains(expected),
                "{url}: {found:?}"
            );
        }
    }

    #[test]
    fn headers() {
        let target = read(&json!({ "url": "https://a/", "headers": {
            "Authorization": "Bearer {{ secrets.B }}", "X-Key": "{{secrets.A}}{{secrets.B}}" } }))
        .unwrap();
        assert_eq!(target.secret_names(), ["B", "A"]);
        for (name, value, expected) in [
            ("bad name", "x", "cannot be the name"),
            ("", "x", "cannot be the name"),
            ("Idempotency-Key", "x", "not the tool's to set"),
            ("TraceParent", "x", "not the tool's to set"),
            ("Dormouse-Run-Id", "x", "not the tool's to set"),
            ("host", "x", "not the tool's to set"),
            ("Content-Length", "1", "not the tool's to set"),
            ("X", "a\r\nY: b", "on one line"),
            ("X", "a\u{0}", "on one line"),
            ("X", "é", "visible ASCII"),
            ("X", "{{ input.token }}", "only {{ secrets.NAME }}"),
        ] {
            let found =
                read(&json!({ "url": "https://a/", "headers": { name: value } })).unwrap_err();
            assert!(found[0].contains(expected), "{name}: {found:?}");
        }
        let twice =
            read(&json!({ "url": "https://a/", "headers": { "x": "1", "X": "2", "y": 3 } }))
                .unwrap_err();
        assert_eq!(
            twice,
            [
                "/headers/X: this header is named twice",
                "/headers/y: a header's value must be a string"
            ]
        );
        assert!(read(&json!({ "url": "https://a/", "method": "HEAD" })).is_err());
        assert!(read(&json!({ "method": "GET" })).is_err());
    }
}
