//! The headers that mean something here.

use core::fmt;

use crate::words::limits::IDEMPOTENCY_KEY_BYTES_MAX;
use crate::words::{SpanId, TraceId};

use super::page::digits;
use super::problem::{INVALID_HEADER, Problem, UNSUPPORTED_MEDIA_TYPE};

/// A request's headers, by lower-case names.
#[derive(Clone, Copy, Debug)]
pub struct Headers<'r>(pub &'r [(String, String)]);

/// The longest that an answer is held: well below what clients and proxies wait.
const PREFER_WAIT_S_MAX: u32 = 30;

/// What HTTP clients say of a body when nobody told them what it is: `curl -d`, `fetch` with a
/// string, and the like. The body is read as JSON all the same.
const SAID_BY_DEFAULT: [&str; 3] = [
    "application/x-www-form-urlencoded",
    "text/plain",
    "application/octet-stream",
];

impl<'r> Headers<'r> {
    /// The value of a header that was sent once; of one that was sent more than once, none is right.
    pub fn once(&self, name: &str) -> Option<&'r str> {
        let mut values = self
            .0
            .iter()
            .filter(|(known, _)| known == name)
            .map(|(_, v)| v.as_str());
        let first = values.next();
        if values.next().is_some() { None } else { first }
    }

    /// The `Idempotency-Key`, if there is one: bare, or as a structured field's string. The quotes
    /// are not part of the key.
    pub fn idempotency_key(&self) -> Result<Option<String>, Problem> {
        const NAME: &str = "idempotency-key";
        let wrong = |message: &str| {
            Problem::new(INVALID_HEADER, format!("the Idempotency-Key {message}"))
                .with("header", "Idempotency-Key")
        };
        if !self.0.iter().any(|(name, _)| name == NAME) {
            return Ok(None);
        }
        let text = self
            .once(NAME)
            .ok_or_else(|| wrong("may be sent once"))?
            .trim();
        let key = if text.starts_with('"') {
            unquote(text).ok_or_else(|| wrong("begins with a quote and is no quoted string"))?
        } else {
            text.to_owned()
        };
        if key.is_empty() {
            return Err(wrong("is empty"));
        }
        if key.len() > IDEMPOTENCY_KEY_BYTES_MAX {
            return Err(wrong(&format!(
                "may have at most {IDEMPOTENCY_KEY_BYTES_MAX} bytes"
            )));
        }
        if key.chars().any(char::is_control) {
            return Err(wrong("holds a control character"));
        }
        Ok(Some(key))
    }

    /// The `Last-Event-ID` of a client that comes back to an event stream: the number of the entry
    /// that it saw last.
    pub fn last_event_id(&self) -> Result<Option<u64>, Problem> {
        const NAME: &str = "last-event-id";
        if !self.0.iter().any(|(name, _)| name == NAME) {
            return Ok(None);
        }
        let number = self.once(NAME).and_then(|text| digits(text.trim()));
        number.map(Some).ok_or_else(|| {
            let detail = "the Last-Event-ID must be the number of an entry, sent once";
            Problem::new(INVALID_HEADER, detail).with("header", "Last-Event-ID")
        })
    }

    /// The seconds of `Prefer: wait=N` (RFC 7240), at most [`PREFER_WAIT_S_MAX`].
    pub fn prefer_wait_s(&self) -> Option<u32> {
        let preferences = self.0.iter().filter(|(name, _)| name == "prefer");
        let wait = preferences
            .flat_map(|(_, value)| value.split(','))
            .find_map(|preference| preference.trim().strip_prefix("wait="))?;
        let wait_s: u32 = wait.trim().parse().ok()?;
        Some(wait_s.min(PREFER_WAIT_S_MAX))
    }

    /// Refuses a body that is said to be something else than JSON. Without the header it is taken
    /// to be JSON, which its reader will find out.
    pub fn require_json(&self) -> Result<(), Problem> {
        let mut values = self.0.iter().filter(|(name, _)| name == "content-type");
        let all_json = values.all(|(_, value)| {
            let essence = essence(value);
            essence.is_empty()
                || essence == "application/json"
                || (essence.starts_with("application/") && essence.ends_with("+json"))
                || SAID_BY_DEFAULT.contains(&essence.as_str())
        });
        if all_json {
            return Ok(());
        }
        Err(Problem::new(
            UNSUPPORTED_MEDIA_TYPE,
            "the body must be sent as application/json",
        ))
    }

    /// Which form of a log the client would rather have. What it names and is not known is passed
    /// over; where nothing is left it gets JSON.
    pub fn log_form(&self) -> LogForm {
        let accepted = self.0.iter().filter(|(name, _)| name == "accept");
        let mut best: Option<(u16, LogForm)> = None;
        for part in accepted.flat_map(|(_, value)| value.split(',')) {
            let form = match essence(part).as_str() {
                "application/json" | "application/*" | "*/*" => LogForm::Json,
                "application/x-ndjson" => LogForm::Lines,
                "text/event-stream" => LogForm::EventStream,
                _ => continue,
            };
            let weight = weight(part);
            if weight > 0 && best.is_none_or(|(most, _)| weight > most) {
                best = Some((weight, form));
            }
        }
        best.map_or(LogForm::Json, |(_, form)| form)
    }
}

/// The forms in which a run's log can be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogForm {
    Json,
    /// A line an entry.
    Lines,
    EventStream,
}

/// The media type without its parameters.
fn essence(value: &str) -> String {
    value
        .split(';')
        .next()
        .unwrap_or_default()
        .trim()
        .to_ascii_lowercase()
}

/// The `q` of a part of an Accept header, in thousandths.
fn weight(part: &str) -> u16 {
    let q = part.split(';').skip(1).find_map(|parameter| {
        let (name, value) = parameter.split_once('=')?;
        name.trim().eq_ignore_ascii_case("q").then(|| value.trim())
    });
    let Some(q) = q else { return 1_000 };
    let q = q.parse::<f32>().unwrap_or(0.0).clamp(0.0, 1.0);
    (q * 1_000.0) as u16
}

/// The content of a structured field's string (RFC 8941, section 3.3.3).
fn unquote(text: &str) -> Option<String> {
    let mut characters = text.strip_prefix('"')?.chars();
    let mut content = String::new();
    loop {
        match characters.next()? {
            '"' => break,
            '\\' => content.push(characters.next().filter(|c| matches!(c, '"' | '\\'))?),
            character @ ' '..='~' => content.push(character),
            _ => return None,
        }
    }
    characters.next().is_none().then_some(content)
}

/// A place in a trace (W3C Trace Context).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Traceparent {
    trace_id: TraceId,
    span_id: SpanId,
    sampled: bool,
}

impl Traceparent {
    /// None where the text is not valid: then the specification has the trace begun anew.
    pub fn parse(text: &str) -> Option<Self> {
        let mut fields = text.trim().splitn(5, '-');
        let version = fields
            .next()
            .filter(|version| is_hex_pair(version) && *version != "ff")?;
        let trace_id = TraceId::parse(fields.next()?).ok()?;
        let span_id = SpanId::parse(fields.next()?).ok()?;
        let flags = fields.next().filter(|flags| is_hex_pair(flags))?;
        if version == "00" && fields.next().is_some() {
            return None;
        }
        let sampled = u8::from_str_radix(flags, 16).ok()? & 1 == 1;
        Some(Self {
            trace_id,
            span_id,
            sampled,
        })
    }

    /// The span of a request: in the trace of whoever sent it, else in a new one.
    pub fn of_request(headers: Headers<'_>, random: [u8; 32]) -> Self {
        let (trace, rest) = split(random);
        let (span, _) = split(rest);
        let sender = headers.once("traceparent").and_then(Self::parse);
        let (trace_id, sampled) = match sender {
            Some(sender) => (sender.trace_id, sender.sampled),
            None => (TraceId::new(trace), true),
        };
        Self {
            trace_id,
            span_id: SpanId::new(span),
            sampled,
        }
    }
}

impl fmt::Display for Traceparent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let flags = u8::from(self.sampled);
        write!(f, "00-{}-{}-{flags:02x}", self.trace_id, self.span_id)
    }
}

fn is_hex_pair(text: &str) -> bool {
    text.len() == 2
        && text
            .bytes()
            .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// The two halves of some bytes.
fn split<const ALL: usize, const HALF: usize>(bytes: [u8; ALL]) -> ([u8; HALF], [u8; HALF]) {
    const { assert!(ALL == 2 * HALF, "two halves are the whole") };
    let half = |part: Option<&[u8; HALF]>| part.copied().unwrap_or([0; HALF]);
    (half(bytes.first_chunk()), half(bytes.last_chunk()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(list: &[(&str, &str)]) -> Vec<(String, String)> {
        list.iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect()
    }

    #[test]
    fn an_idempotency_key_is_the_same_bare_and_quoted() {
        for (sent, key) in [
            ("abc", Some("abc")),
            ("\"abc\"", Some("abc")),
            (
                "  8e03978e-40d5-43dd-bc93-6894a57f9324 ",
                Some("8e03978e-40d5-43dd-bc93-6894a57f9324"),
            ),
            (r#""a\"b\\c""#, Some(r#"a"b\c"#)),
            ("a\"b", Some("a\"b")),
            ("订单-7", Some("订单-7")),
            ("", None),
            ("\"\"", None),
            ("\"abc", None),
            (r#""a\bc""#, None),
            ("\"abc\";x=1", None),
            ("a\u{7}b", None),
        ] {
            let list = headers(&[("idempotency-key", sent)]);
            let got = Headers(&list).idempotency_key();
            assert_eq!(got.ok().flatten().as_deref(), key, "{sent:?}");
        }
        let longest = "k".repeat(255);
        let list = headers(&[("idempotency-key", &longest)]);
        assert_eq!(
            Headers(&list).idempotency_key().unwrap(),
            Some(longest.clone())
        );
        let list = headers(&[("idempotency-key", &format!("{longest}k"))]);
        let problem = Headers(&list)
            .idempotency_key()
            .unwrap_err()
            .into_response();
        assert_eq!(problem.status, 400);
        assert!(problem.body.contains("Idempotency-Key"));
        let list = headers(&[("idempotency-key", "a"), ("idempotency-key", "a")]);
        assert!(Headers(&list).idempotency_key().is_err());
        assert_eq!(Headers(&[]).idempotency_key().unwrap(), None);
    }

    #[test]
    fn what_is_surely_not_json_is_refused() {
        for (sent, fine) in [
            ("application/json", true),
            ("Application/JSON; charset=utf-8", true),
            ("application/vnd.acme+json", true),
            ("", true),
            ("text/plain;charset=UTF-8", true),
            ("application/x-www-form-urlencoded", true),
            ("multipart/form-data; boundary=x", false),
            ("application/jsonp", false),
            ("application/cloudevents+xml", false),
        ] {
            let list = headers(&[("content-type", sent)]);
            assert_eq!(Headers(&list).require_json().is_ok(), fine, "{sent}");
        }
    }

    #[test]
    fn the_heaviest_known_form_is_given() {
        for (sent, form) in [
            ("", LogForm::Json),
            ("*/*", LogForm::Json),
            ("text/html", LogForm::Json),
            ("application/x-ndjson", LogForm::Lines),
            (
                "application/json;q=0.5, application/x-ndjson;q=0.9",
                LogForm::Lines,
            ),
            ("application/x-ndjson;q=0", LogForm::Json),
            ("text/event-stream", LogForm::EventStream),
            ("text/event-stream;q=0.1, */*", LogForm::Json),
        ] {
            let list = headers(&[("accept", sent)]);
            assert_eq!(Headers(&list).log_form(), form, "{sent}");
        }
    }

    #[test]
    fn a_trace_is_continued_when_it_is_valid_and_else_begun() {
        const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
        let sent = format!("00-{TRACE}-00f067aa0ba902b7-00");
        let list = headers(&[("traceparent", &sent)]);
        let own = Traceparent::of_request(Headers(&list), [9; 32]).to_string();
        assert_eq!(own, format!("00-{TRACE}-0909090909090909-00"));
        for valid in [
            format!("00-{TRACE}-00f067aa0ba902b7-01"),
            format!("cc-{TRACE}-00f067aa0ba902b7-01-what-the-future-will-be"),
        ] {
            assert!(Traceparent::parse(&valid).is_some(), "{valid}");
        }
        for wrong in [
            "".to_owned(),
            format!("ff-{TRACE}-00f067aa0ba902b7-01"),
            format!("00-{TRACE}-00f067aa0ba902b7-01-x"),
            format!("00-{}-00f067aa0ba902b7-01", TRACE.to_uppercase()),
            format!("00-{}-00f067aa0ba902b7-01", "0".repeat(32)),
            format!("00-{TRACE}-0000000000000000-01"),
            format!("00-{TRACE}-00f067aa0ba902b7-0"),
            format!("00-{TRACE}-00f067aa0ba902b7"),
        ] {
            let list = headers(&[("traceparent", &wrong)]);
            let own = Traceparent::of_request(Headers(&list), [9; 32]).to_string();
            assert_eq!(
                own,
                format!("00-{}-{}-01", "09".repeat(16), "09".repeat(8)),
                "{wrong}"
            );
        }
    }
}
