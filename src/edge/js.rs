//! Small, total helpers over JavaScript values.
use std::cell::RefCell;
use std::panic::AssertUnwindSafe;

use js_sys::{Promise, Reflect};
use wasm_bindgen::{JsCast, JsValue, prelude::wasm_bindgen};
use wasm_bindgen_futures::JsFuture;

#[wasm_bindgen]
extern "C" {
    #[wasm_bindgen(js_namespace = console, js_name = error)]
    pub fn console_error(text: &str);

    #[wasm_bindgen(catch, js_name = setTimeout)]
    fn set_timeout(callback: &js_sys::Function, ms: f64) -> Result<JsValue, JsValue>;

    #[wasm_bindgen(js_name = clearTimeout)]
    fn clear_timeout(id: &JsValue);
}

/// What a JavaScript exception said, for logs and for the caller's own error type.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Fault {
    pub name: String,
    pub message: String,
    /// Set by the platform on errors of object calls: a new try on a new stub may succeed.
    pub retryable: bool,
    /// Set by the platform when the object is overloaded: do not try again at once.
    pub overloaded: bool,
}

impl From<JsValue> for Fault {
    fn from(value: JsValue) -> Self {
        if let Some(text) = value.as_string() {
            return Fault {
                message: text,
                ..Fault::default()
            };
        }
        let text = |key| {
            get(&value, key)
                .and_then(|v| v.as_string())
                .unwrap_or_default()
        };
        let flag = |key| get(&value, key).is_some_and(|v| v.is_truthy());
        Fault {
            name: text("name"),
            message: text("message"),
            retryable: flag("retryable"),
            overloaded: flag("overloaded"),
        }
    }
}

/// A property, or `None` where it is absent, undefined or cannot be read.
pub fn get(of: &JsValue, key: &str) -> Option<JsValue> {
    Reflect::get(of, &JsValue::from_str(key))
        .ok()
        .filter(|v| !v.is_undefined())
}

pub fn set(of: &js_sys::Object, key: &str, value: &JsValue) -> Result<(), JsValue> {
    Reflect::set(of, &JsValue::from_str(key), value).map(|_| ())
}

/// Awaits anything that is a promise or behaves like one (an RPC promise does).
pub async fn settled(promise: Promise) -> Result<JsValue, Fault> {
    JsFuture::from(promise).await.map_err(Fault::from)
}

/// A wait inside one request. Never a run's timer. Dropped early, it leaves no timer behind.
pub async fn pause(ms: u32) -> Result<(), Fault> {
    let timer = AssertUnwindSafe(RefCell::new(Timer(None)));
    let promise = Promise::new(
        &mut |resolve, reject| match set_timeout(&resolve, f64::from(ms)) {
            Ok(id) => timer.borrow_mut().0 = Some(id),
            Err(e) => {
                let _ = reject.call1(&JsValue::UNDEFINED, &e);
            }
        },
    );
    settled(promise).await.map(|_| ())
}

struct Timer(Option<JsValue>);

impl Drop for Timer {
    fn drop(&mut self) {
        if let Some(id) = &self.0 {
            clear_timeout(id);
        }
    }
}

/// Milliseconds since 1970. On the deployed platform the clock moves only with I/O.
pub fn now_ms() -> i64 {
    js_sys::Date::now() as i64
}

/// Casts a binding of `env` without asking for its class.
pub fn binding<T: JsCast>(env: &JsValue, name: &str) -> Result<T, Fault> {
    get(env, name)
        .map(JsCast::unchecked_into)
        .ok_or_else(|| Fault {
            message: format!("no binding {name}"),
            ..Fault::default()
        })
}

#[wasm_bindgen]
extern "C" {
    #[wasm_bindgen(js_namespace = console, js_name = log)]
    pub fn console_log(text: &str);
}

/// An exception for JavaScript, whose text may be seen by anyone.
pub fn error(text: &str) -> JsValue {
    js_sys::Error::new(text).into()
}

#[wasm_bindgen]
extern "C" {
    #[wasm_bindgen(catch, js_namespace = JSON, js_name = stringify)]
    fn stringify_raw(value: &JsValue) -> Result<JsValue, JsValue>;
}

/// As JSON text, where it has any.
pub fn stringify(value: &JsValue) -> Option<String> {
    stringify_raw(value).ok()?.as_string()
}
