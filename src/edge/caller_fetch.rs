//! Calls tools over HTTP: a deadline, every redirect hop checked anew, at most so many bytes read.

use crate::outward::{self, Redirect};
use crate::tool::{Answer, OutboundRequest, Reply, Transport, TransportKind};
use crate::words::limits::VALUE_BYTES_MAX;

use super::js::{self, Fault};
use js_sys::{Array, Object, Promise, Uint8Array};
use wasm_bindgen::{JsCast, JsValue, prelude::wasm_bindgen};

#[wasm_bindgen]
extern "C" {
    #[wasm_bindgen(catch, js_name = fetch)]
    fn fetch_raw(url: &str, init: &Object) -> Result<Promise, JsValue>;

    #[wasm_bindgen(catch, js_namespace = AbortSignal, js_name = timeout)]
    fn abort_after(ms: f64) -> Result<JsValue, JsValue>;

    pub type Stream;
    #[wasm_bindgen(method, catch, js_name = getReader)]
    fn get_reader(this: &Stream) -> Result<Reader, JsValue>;

    type Reader;
    #[wasm_bindgen(method, catch)]
    fn read(this: &Reader) -> Result<Promise, JsValue>;
    #[wasm_bindgen(method, catch)]
    fn cancel(this: &Reader) -> Result<Promise, JsValue>;
}

/// One hop's answer.
struct Hop {
    status: u16,
    /// Names in lower case.
    headers: Vec<(String, String)>,
    /// `None`: longer than a result may be.
    body: Option<Vec<u8>>,
}

impl Hop {
    fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.as_str())
    }
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
            let location = hop.header("location");
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
        return reply(hop);
    }
}

fn reply(hop: Hop) -> Answer {
    let text = |name: &str| hop.header(name).map(str::to_owned);
    let (retry_after, content_type) = (text("retry-after"), text("content-type"));
    match hop.body {
        Some(body) => Answer::Reply(Reply {
            status: hop.status,
            retry_after,
            content_type,
            // Nothing was offered that a tool could have honoured.
            callback_honoured: false,
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
    let init = Object::new();
    js::set(&init, "method", &request.method.as_str().into())?;
    js::set(&init, "redirect", &"manual".into())?;
    js::set(&init, "signal", &abort_after(f64::from(timeout_ms))?)?;
    let headers: Array = request
        .headers
        .iter()
        .map(|(k, v)| Array::of2(&k.into(), &v.into()))
        .collect();
    js::set(&init, "headers", &headers)?;
    if let Some(body) = &request.body {
        js::set(&init, "body", &body.into())?;
    }
    let response = js::settled(fetch_raw(&request.url, &init)?).await?;
    let status = js::get(&response, "status")
        .and_then(|s| s.as_f64())
        .unwrap_or_default() as u16;
    let headers = match js::get(&response, "headers") {
        Some(headers) => js::array_from(&headers)?
            .iter()
            .filter_map(|pair| {
                let pair: Array = pair.unchecked_into();
                Some((pair.get(0).as_string()?, pair.get(1).as_string()?))
            })
            .collect(),
        None => Vec::new(),
    };
    let body = match js::get(&response, "body").filter(|b| !b.is_null()) {
        Some(stream) => read_up_to(&stream.unchecked_into(), VALUE_BYTES_MAX).await?,
        None => Some(Vec::new()),
    };
    Ok(Hop {
        status,
        headers,
        body,
    })
}

/// Reads a body to its end. `None`: it is longer than `max`, and the rest was refused.
pub async fn read_up_to(stream: &Stream, max: usize) -> Result<Option<Vec<u8>>, Fault> {
    let reader = stream.get_reader()?;
    let mut body = Vec::new();
    loop {
        let part = js::settled(reader.read()?).await?;
        if js::get(&part, "done").is_none_or(|done| done.is_truthy()) {
            return Ok(Some(body));
        }
        let Some(Ok(chunk)) = js::get(&part, "value").map(JsCast::dyn_into::<Uint8Array>) else {
            continue;
        };
        let room = max - body.len();
        if chunk.length() as usize > room {
            // The rest is refused; an error of the cancelling itself says nothing new.
            if let Ok(cancelled) = reader.cancel() {
                let _ = js::settled(cancelled).await;
            }
            return Ok(None);
        }
        body.extend(chunk.to_vec());
    }
}
