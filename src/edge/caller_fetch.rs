//! Calls tools over HTTP: a deadline, every redirect hop checked anew, at most so many bytes read.

use crate::outward::{self, Redirect};
use crate::tool::{Answer, OutboundRequest, Reply, Transport, TransportKind, callback_honoured};
use crate::words::limits::VALUE_BYTES_MAX;

use super::js::{self, Fault};
use js_sys::{Array, Promise, Uint8Array};
use wasm_bindgen::{JsCast, JsValue, prelude::wasm_bindgen};

#[wasm_bindgen(module = "/src/edge/io.mjs")]
extern "C" {
    #[wasm_bindgen(catch, js_name = call)]
    fn call_raw(
        url: &str,
        method: &str,
        headers: &str,
        body: Option<&str>,
        timeout_ms: f64,
        bytes_max: f64,
    ) -> Result<Promise, JsValue>;
}

/// One hop's answer.
struct Hop {
    status: u16,
    retry_after: Option<String>,
    content_type: Option<String>,
    location: Option<String>,
    callback: Option<String>,
    hints: Vec<(String, String)>,
    /// `None`: longer than a result may be.
    body: Option<Vec<u8>>,
}

/// Makes one call of a tool, redirects included, within its timeout.
pub async fn call_tool(request: &OutboundRequest, allowed_inward: &[String]) -> Answer {
    let deadline_ms = js::now_ms().saturating_add(request.timeout_ms);
    let mut request = request.clone();
    let mut hops = 0;
    loop {
        let url = match outward::check(&request.url, allowed_inward) {
            Ok(url) => url,
            Err(blocked) => return transport(TransportKind::Blocked, blocked.to_string()),
        };
        let left_ms = u32::try_from(deadline_ms - js::now_ms()).unwrap_or(0);
        let hop = match fetch(&request, left_ms).await {
            Ok(hop) => hop,
            Err(fault) => return failed(&request, &fault),
        };
        hops += 1;
        if (300..400).contains(&hop.status) && hops <= outward::REDIRECTS_MAX {
            let location = hop.location.as_deref();
            match outward::redirect(&request, &url, hop.status, location, allowed_inward) {
                Redirect::Follow(next) => {
                    request = *next;
                    continue;
                }
                Redirect::Blocked(blocked) => {
                    return transport(TransportKind::Blocked, blocked.to_string());
                }
                Redirect::Answer => {}
            }
        }
        return reply(hop, offers_callback(&request));
    }
}

/// A redirect to another origin takes the callback's address away: a 202 from there waits for nothing.
fn offers_callback(request: &OutboundRequest) -> bool {
    let name = |(name, _): &(String, String)| name.eq_ignore_ascii_case("dormouse-callback");
    request.headers.iter().any(name)
}

fn reply(hop: Hop, offered: bool) -> Answer {
    match hop.body {
        Some(body) => Answer::Reply(Reply {
            status: hop.status,
            retry_after: hop.retry_after,
            content_type: hop.content_type,
            hints: hop.hints,
            callback_honoured: offered && callback_honoured(hop.callback.as_deref()),
            body,
        }),
        None => transport(
            TransportKind::TooLarge {
                limit: VALUE_BYTES_MAX,
            },
            format!("the answer is larger than {VALUE_BYTES_MAX} bytes"),
        ),
    }
}

/// What the platform's exception means. It tells little apart: what is not known to have failed
/// before anything was sent counts as cut off on the way.
fn failed(request: &OutboundRequest, fault: &Fault) -> Answer {
    let text = fault.message.to_ascii_lowercase();
    let kind = if fault.name == "TimeoutError" || fault.name == "AbortError" {
        TransportKind::TimedOut
    } else if text.contains("refused") {
        TransportKind::Refused
    } else if text.contains("dns") || text.contains("resolve") {
        TransportKind::Dns
    } else if text.contains("tls") || text.contains("certificate") {
        TransportKind::Tls
    } else {
        TransportKind::Closed
    };
    let message = match kind {
        TransportKind::TimedOut => {
            format!(
                "no answer from {} within {} ms",
                request.loggable_url, request.timeout_ms
            )
        }
        _ => format!("{}: {}", request.loggable_url, request.mask(&fault.message)),
    };
    transport(kind, message)
}

fn transport(kind: TransportKind, message: String) -> Answer {
    Answer::Transport(Transport { kind, message })
}

/// A deadline passed is `Err` with the name `TimeoutError`.
async fn fetch(request: &OutboundRequest, timeout_ms: u32) -> Result<Hop, Fault> {
    let headers = serde_json::to_string(&request.headers).map_err(|e| Fault {
        message: e.to_string(),
        ..Fault::default()
    })?;
    let called = call_raw(
        &request.url,
        request.method.as_str(),
        &headers,
        request.body.as_deref(),
        f64::from(timeout_ms),
        VALUE_BYTES_MAX as f64,
    )?;
    let answer: Array = js::settled(called).await?.unchecked_into();
    let text = |at: u32| answer.get(at).as_string();
    Ok(Hop {
        status: answer.get(0).as_f64().unwrap_or_default() as u16,
        retry_after: text(1),
        content_type: text(2),
        location: text(3),
        callback: text(4),
        hints: text(6)
            .and_then(|hints| serde_json::from_str(&hints).ok())
            .unwrap_or_default(),
        body: bytes(answer.get(5)),
    })
}

/// `None` where the body was too long.
pub fn bytes(value: JsValue) -> Option<Vec<u8>> {
    value
        .dyn_into::<Uint8Array>()
        .ok()
        .map(|bytes| bytes.to_vec())
}
