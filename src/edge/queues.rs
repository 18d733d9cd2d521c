//! Queues: text bodies both ways, one message at a time.
use crate::edge::js::{self, Fault};
use js_sys::{Array, Object, Promise};
use wasm_bindgen::{JsCast, JsValue, prelude::wasm_bindgen};

#[wasm_bindgen]
extern "C" {
    pub type Queue;

    #[wasm_bindgen(method, catch, js_name = send)]
    fn send_raw(this: &Queue, body: &JsValue, options: &Object) -> Result<Promise, JsValue>;

    #[wasm_bindgen(method, catch, js_name = sendBatch)]
    fn send_batch_raw(this: &Queue, messages: &Array, options: &Object)
    -> Result<Promise, JsValue>;
}

fn as_text() -> Result<Object, JsValue> {
    let options = Object::new();
    js::set(&options, "contentType", &"text".into())?;
    Ok(options)
}

pub async fn send(queue: &Queue, body: &str) -> Result<(), Fault> {
    let sent = queue.send_raw(&body.into(), &as_text()?)?;
    js::settled(sent).await.map(drop)
}

/// The caller keeps to 100 messages and 256,000 bytes.
pub async fn send_batch(queue: &Queue, bodies: &[&str]) -> Result<(), Fault> {
    let list = Array::new();
    for body in bodies {
        let entry = as_text()?;
        js::set(&entry, "body", &(*body).into())?;
        list.push(&entry);
    }
    let sent = queue.send_batch_raw(&list, &Object::new())?;
    js::settled(sent).await.map(drop)
}

/// A delivered message, read without trust: a body that cannot be read is empty.
pub struct Delivery {
    pub attempts: u32,
    pub body: String,
    message: worker_sys::Message,
}

impl Delivery {
    /// The first of `ack` and `retry` wins.
    pub fn ack(&self) {
        let _ = self.message.ack();
    }

    pub fn retry(&self, delay_seconds: u32) {
        let options = Object::new();
        let _ = js::set(&options, "delaySeconds", &delay_seconds.into());
        let _ = self.message.retry(options.into());
    }
}

pub fn deliveries(batch: &worker_sys::MessageBatch) -> Result<Vec<Delivery>, Fault> {
    let messages = batch.messages()?;
    Ok(messages
        .iter()
        .map(|value| {
            let message: worker_sys::Message = value.unchecked_into();
            Delivery {
                attempts: js::get(&message, "attempts")
                    .and_then(|n| n.as_f64())
                    .unwrap_or(1.0) as u32,
                body: message
                    .body()
                    .map_or_else(|_| String::new(), |body| text_of(&body)),
                message,
            }
        })
        .collect())
}

/// A body as it came, or as near as text comes to it: what is no text was not sent by this Worker,
/// and is kept for a person.
fn text_of(body: &JsValue) -> String {
    let bytes = body
        .dyn_ref::<js_sys::Uint8Array>()
        .map(js_sys::Uint8Array::to_vec)
        .or_else(|| Some(js_sys::Uint8Array::new(body.dyn_ref::<js_sys::ArrayBuffer>()?).to_vec()));
    if let Some(bytes) = bytes {
        return String::from_utf8_lossy(&bytes).into_owned();
    }
    let text = body.as_string();
    text.or_else(|| js::stringify(body)).unwrap_or_default()
}

pub fn name(batch: &worker_sys::MessageBatch) -> String {
    batch.queue().map(String::from).unwrap_or_default()
}
