//! Small, total helpers over JavaScript values.
use js_sys::{Promise, Reflect};
use wasm_bindgen::{JsCast, JsValue, prelude::wasm_bindgen};
use wasm_bindgen_futures::JsFuture;

#[wasm_bindgen]
extern "C" {
    /// `Array.from` that may throw (an iterator over a SQL cursor does, when a later row fails).
    #[wasm_bindgen(catch, js_namespace = Array, js_name = from)]
    pub fn array_from(iterable: &JsValue) -> Result<js_sys::Array, JsValue>;

    #[wasm_bindgen(js_namespace = console, js_name = error)]
    pub fn console_error(text: &str);

    #[wasm_bindgen(catch, js_name = setTimeout)]
    fn set_timeout(callback: &js_sys::Function, ms: f64) -> Result<JsValue, JsValue>;
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
    /// The exception was thrown on the other side of an object call.
    pub remote: bool,
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
            remote: flag("remote"),
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

/// A wait inside one request. Never a run's timer.
pub async fn pause(ms: u32) -> Result<(), Fault> {
    let promise = Promise::new(&mut |resolve, reject| {
        if let Err(e) = set_timeout(&resolve, f64::from(ms)) {
            let _ = reject.call1(&JsValue::UNDEFINED, &e);
        }
    });
    settled(promise).await.map(|_| ())
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
    #[wasm_bindgen(js_name = Response)]
    type JsResponse;
    #[wasm_bindgen(constructor, catch, js_class = "Response")]
    fn new_response(body: &JsValue, init: &js_sys::Object) -> Result<JsResponse, JsValue>;
}

/// The name-value pairs of an iterable such as `Headers`.
pub fn pairs(iterable: &JsValue) -> Result<Vec<(String, String)>, Fault> {
    let pairs = array_from(iterable)?;
    let pair = |pair: JsValue| {
        let pair: js_sys::Array = pair.unchecked_into();
        Some((pair.get(0).as_string()?, pair.get(1).as_string()?))
    };
    Ok(pairs.iter().filter_map(pair).collect())
}

/// A `Response` with a text body, or with none where the status forbids one.
pub fn response(status: u16, headers: &[(String, String)], body: &str) -> Result<JsValue, Fault> {
    let init = js_sys::Object::new();
    set(&init, "status", &status.into())?;
    let headers: js_sys::Array = headers
        .iter()
        .map(|(name, value)| js_sys::Array::of2(&name.into(), &value.into()))
        .collect();
    set(&init, "headers", &headers)?;
    let body = if matches!(status, 204 | 304) {
        JsValue::NULL
    } else {
        body.into()
    };
    Ok(JsResponse::new_response(&body, &init)?.into())
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
