//! Which addresses a tool call may go to, and what becomes of it at a redirect.
//!
//! The URL standard's parser does the reading, so every spelling of an address (decimal, octal,
//! hexadecimal, mapped into IPv6) is the address it stands for. A name that resolves inwards cannot
//! be seen here: on Cloudflare the platform does not route to private networks.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use url::{Host, Url};

use crate::tool::{Method, OutboundRequest};

/// Redirects that are followed.
pub const REDIRECTS_MAX: u32 = 5;

/// Headers that go along to another origin: those of the engine, none of the tool's own.
const HEADERS_FOR_ANYONE: [&str; 8] = [
    "accept",
    "content-type",
    "user-agent",
    "traceparent",
    "idempotency-key",
    "dormouse-run-id",
    "dormouse-step-index",
    "dormouse-attempt",
];

/// Why an address is not called. Names the rule, not what is behind the address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Blocked {
    #[error("the address is not an absolute http or https URL")]
    NotHttp,
    #[error(
        "the address is inward (loopback, private, link-local or reserved), and ALLOWED_INWARD_HOSTS does not name it"
    )]
    Inward,
    #[error("the redirect leaves https for http")]
    Downgrade,
}

/// Whether a URL may be called. `allowed_inward` holds hosts or `host:port`s, in lower case.
pub fn check(url: &str, allowed_inward: &[String]) -> Result<Url, Blocked> {
    let url = Url::parse(url).map_err(|_| Blocked::NotHttp)?;
    let host = match (url.scheme(), url.host()) {
        ("http" | "https", Some(host)) => host,
        _ => return Err(Blocked::NotHttp),
    };
    if is_inward(&host) && !is_allowed(&url, &host, allowed_inward) {
        return Err(Blocked::Inward);
    }
    Ok(url)
}

fn is_allowed(url: &Url, host: &Host<&str>, allowed_inward: &[String]) -> bool {
    let name = host.to_string();
    let with_port = format!("{name}:{}", url.port_or_known_default().unwrap_or(0));
    allowed_inward
        .iter()
        .any(|allowed| *allowed == name || *allowed == with_port)
}

fn is_inward(host: &Host<&str>) -> bool {
    match host {
        Host::Domain(name) => is_inward_name(name),
        Host::Ipv4(address) => is_inward_v4(*address),
        Host::Ipv6(address) => is_inward_v6(*address),
    }
}

/// Names that resolve inwards by convention, and bare names, which only a local resolver knows.
fn is_inward_name(name: &str) -> bool {
    const SUFFIXES: [&str; 7] = [
        "localhost",
        "local",
        "internal",
        "intranet",
        "lan",
        "home.arpa",
        "onion",
    ];
    let name = name.trim_end_matches('.').to_ascii_lowercase();
    let under = |suffix: &str| {
        name.strip_suffix(suffix)
            .is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
    };
    !name.contains('.') || SUFFIXES.iter().any(|suffix| under(suffix))
}

/// The blocks of the IANA special-purpose registry that are not globally reachable.
/// https://www.iana.org/assignments/iana-ipv4-special-registry/
fn is_inward_v4(address: Ipv4Addr) -> bool {
    let [a, b, c, _] = address.octets();
    address.is_loopback()
        || address.is_private()
        || address.is_link_local()
        || address.is_broadcast()
        || address.is_documentation()
        || address.is_multicast()
        || a == 0
        || a >= 240
        || (a == 100 && (64..128).contains(&b))
        || (a == 192 && b == 0 && c == 0)
        || (a == 198 && (18..20).contains(&b))
}

/// https://www.iana.org/assignments/iana-ipv6-special-registry/
fn is_inward_v6(address: Ipv6Addr) -> bool {
    let [s0, s1, s2, s3, s4, s5, s6, s7] = address.segments();
    let v4_in = |high: u16, low: u16| {
        is_inward_v4(Ipv4Addr::from((u32::from(high) << 16) | u32::from(low)))
    };
    // Mapped and compatible (::/96), translated (64:ff9b::/96) and 6to4 carry an IPv4 address.
    let carries_v4 =
        s0 == 0 && s1 == 0 && s2 == 0 && s3 == 0 && s4 == 0 && (s5 == 0xffff || s5 == 0);
    let translated = s0 == 0x64 && s1 == 0xff9b;
    match IpAddr::V6(address) {
        address if address.is_loopback() || address.is_unspecified() => true,
        address if address.is_multicast() => true,
        _ if carries_v4 => v4_in(s6, s7),
        _ if translated => s2 != 0 || v4_in(s6, s7),
        _ if s0 == 0x2002 => v4_in(s1, s2),
        _ => {
            (s0 & 0xfe00) == 0xfc00
                || (s0 & 0xffc0) == 0xfe80
                || (s0 & 0xffc0) == 0xfec0
                || s0 == 0x0100
                || (s0 == 0x2001 && (s1 < 0x0200 || s1 == 0x0db8))
                || s0 == 0x5f00
        }
    }
}

/// What follows from a redirect.
pub enum Redirect {
    /// Call this next.
    Follow(Box<OutboundRequest>),
    /// It is the answer: following it would turn the call into another one.
    Answer,
    Blocked(Blocked),
}

/// Decides on a redirect of a call. A call with a body is repeated only where the status says that
/// method and body stay (307, 308).
pub fn redirect(
    request: &OutboundRequest,
    from: &Url,
    status: u16,
    location: Option<&str>,
    allowed_inward: &[String],
) -> Redirect {
    let stays = matches!(status, 307 | 308);
    let repeats = stays || (request.method == Method::Get && matches!(status, 301..=303));
    let Some(location) = location.filter(|_| repeats) else {
        return Redirect::Answer;
    };
    let Ok(to) = from.join(location) else {
        return Redirect::Answer;
    };
    if from.scheme() == "https" && to.scheme() != "https" {
        return Redirect::Blocked(Blocked::Downgrade);
    }
    if let Err(blocked) = check(to.as_str(), allowed_inward) {
        return Redirect::Blocked(blocked);
    }
    let mut next = request.clone();
    next.url = to.to_string();
    if to.origin() != from.origin() {
        next.headers
            .retain(|(name, _)| HEADERS_FOR_ANYONE.contains(&name.to_ascii_lowercase().as_str()));
    }
    Redirect::Follow(Box::new(next))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inward_addresses_are_blocked_in_every_spelling() {
        let inward = [
            "http://127.0.0.1/",
            "http://127.1/",
            "http://0x7f.1/",
            "http://2130706433/",
            "http://017700000001/",
            "http://0/",
            "http://0.0.0.0/",
            "http://localhost/",
            "http://LOCALHOST./",
            "http://a.localhost/",
            "http://10.0.0.1/",
            "http://172.16.0.1/",
            "http://172.31.255.255/",
            "http://192.168.1.1/",
            "http://169.254.169.254/latest/",
            "http://0xa9fea9fe/",
            "http://100.64.0.1/",
            "http://198.18.0.1/",
            "http://192.0.0.1/",
            "http://224.0.0.1/",
            "http://240.0.0.1/",
            "http://255.255.255.255/",
            "http://[::1]/",
            "http://[::]/",
            "http://[::ffff:127.0.0.1]/",
            "http://[::ffff:a9fe:a9fe]/",
            "http://[::127.0.0.1]/",
            "http://[fe80::1]/",
            "http://[fc00::1]/",
            "http://[fd12::1]/",
            "http://[64:ff9b::7f00:1]/",
            "http://[2002:7f00:1::]/",
            "http://[ff02::1]/",
            "http://[2001:db8::1]/",
            "http://[fec0::1]/",
            "http://metadata/",
            "http://metadata.google.internal/",
            "http://printer.local/",
            "http://①②⑦.0.0.1/",
            "http://127。0。0。1/",
        ];
        for url in inward {
            assert_eq!(check(url, &[]), Err(Blocked::Inward), "{url}");
        }
    }

    #[test]
    fn other_schemes_are_blocked() {
        for url in [
            "ftp://example.com/",
            "file:///etc/passwd",
            "example.com",
            "",
            "javascript:1",
        ] {
            assert_eq!(check(url, &[]), Err(Blocked::NotHttp), "{url}");
        }
    }

    #[test]
    fn outward_addresses_pass() {
        for url in [
            "https://example.com/",
            "http://93.184.216.34/",
            "http://172.32.0.1/",
            "http://[2606:4700::1111]/",
            "http://localhost.example.com/",
            "http://100.128.0.1/",
        ] {
            assert!(check(url, &[]).is_ok(), "{url}");
        }
    }

    #[test]
    fn a_host_or_a_host_with_its_port_can_be_allowed() {
        let allowed = ["127.0.0.1".to_owned(), "localhost:9000".to_owned()];
        assert!(check("http://127.0.0.1:1234/", &allowed).is_ok());
        assert!(check("http://localhost:9000/", &allowed).is_ok());
        assert_eq!(
            check("http://localhost:9001/", &allowed),
            Err(Blocked::Inward)
        );
        assert_eq!(check("http://10.0.0.1/", &allowed), Err(Blocked::Inward));
    }
}
