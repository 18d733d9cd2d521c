//! A panic becomes a value at every entry (with panic=unwind; with panic=abort this is a plain await).
use crate::edge::js;
use futures::FutureExt;
use js_sys::Promise;
use std::{future::Future, panic::AssertUnwindSafe};
use wasm_bindgen::JsValue;
use wasm_bindgen_futures::future_to_promise;

/// The work panicked. Says nothing more: the message went to the log.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Panicked;

pub async fn guarded<T>(place: &str, work: impl Future<Output = T>) -> Result<T, Panicked> {
    AssertUnwindSafe(work)
        .catch_unwind()
        .await
        .map_err(|payload| {
            let text = payload
                .downcast_ref::<String>()
                .map(String::as_str)
                .or_else(|| payload.downcast_ref::<&str>().copied())
                .unwrap_or("no text");
            js::console_error(&format!("panic in {place}: {text}"));
            Panicked
        })
}

pub fn guarded_now<T>(place: &str, work: impl FnOnce() -> T) -> Result<T, Panicked> {
    std::panic::catch_unwind(AssertUnwindSafe(work)).map_err(|_| {
        js::console_error(&format!("panic in {place}"));
        Panicked
    })
}

/// A promise that always fulfils, for `waitUntil`: a rejected one would retry a whole queue batch.
pub fn background(place: &'static str, work: impl Future<Output = ()> + 'static) -> Promise {
    future_to_promise(AssertUnwindSafe(async move {
        let _ = guarded(place, work).await;
        Ok(JsValue::UNDEFINED)
    }))
}
