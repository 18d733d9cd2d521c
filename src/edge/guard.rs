//! A panic becomes a value at every entry (with panic=unwind; with panic=abort this is a plain await).
use crate::edge::js;
use futures::FutureExt;
use js_sys::Promise;
use std::{future::Future, panic::AssertUnwindSafe};
use wasm_bindgen::JsValue;
use wasm_bindgen_futures::future_to_promise;

/// The work panicked. Says nothing more: the panic hook has told the log where and why.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Panicked;

pub async fn guarded<T>(place: &str, work: impl Future<Output = T>) -> Result<T, Panicked> {
    AssertUnwindSafe(work).catch_unwind().await.map_err(|_| {
        js::console_error(&format!("it was in {place}"));
        Panicked
    })
}

pub fn guarded_now<T>(place: &str, work: impl FnOnce() -> T) -> Result<T, Panicked> {
    std::panic::catch_unwind(AssertUnwindSafe(work)).map_err(|_| {
        js::console_error(&format!("it was in {place}"));
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
