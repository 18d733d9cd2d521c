//! Asks the platform's own models, by the binding `AI`.
//! https://developers.cloudflare.com/workers-ai/configuration/bindings/

use js_sys::{Array, Promise};
use wasm_bindgen::{JsCast, JsValue, prelude::wasm_bindgen};

use crate::tool::{Answer, Reply, Transport, TransportKind};
use crate::words::limits::VALUE_BYTES_MAX;

use super::js::{self, Fault};

/// As it stands in `wrangler.toml`.
const BINDING: &str = "AI";

#[wasm_bindgen(module = "/src/edge/io.mjs")]
extern "C" {
    #[wasm_bindgen(catch, js_name = askAi)]
    fn ask_raw(ai: &JsValue, model: &str, input: &str, timeout_ms: f64)
    -> Result<Promise, JsValue>;
}

pub async fn ask(env: &JsValue, model: &str, input: &str, timeout_ms: i64) -> Answer {
    let Some(ai) = js::get(env, BINDING) else {
        let message = format!(
            "the deployment has no binding {BINDING}: add [ai] with binding = \"{BINDING}\" to wrangler.toml"
        );
        return transport(TransportKind::Blocked, message);
    };
    match answered(&ai, model, input, timeout_ms).await {
        Ok((status, text)) if text.len() <= VALUE_BYTES_MAX => Answer::Reply(Reply {
            status,
            retry_after: None,
            content_type: Some("application/json".to_owned()),
            hints: Vec::new(),
            callback_honoured: false,
            body: text.into_bytes(),
        }),
        Ok(_) => {
            let limit = VALUE_BYTES_MAX;
            let message = format!("the answer is larger than {limit} bytes");
            transport(TransportKind::TooLarge { limit }, message)
        }
        Err(fault) if fault.name == "TimeoutError" => {
            let message = format!("no answer from {model} within {timeout_ms} ms");
            transport(TransportKind::TimedOut, message)
        }
        Err(fault) => transport(TransportKind::Closed, fault.message),
    }
}

async fn answered(
    ai: &JsValue,
    model: &str,
    input: &str,
    timeout_ms: i64,
) -> Result<(u16, String), Fault> {
    let asked = ask_raw(ai, model, input, timeout_ms as f64)?;
    let answer: Array = js::settled(asked).await?.unchecked_into();
    let status = answer.get(0).as_f64().unwrap_or_default() as u16;
    Ok((status, answer.get(1).as_string().unwrap_or_default()))
}

fn transport(kind: TransportKind, message: String) -> Answer {
    Answer::Transport(Transport { kind, message })
}
