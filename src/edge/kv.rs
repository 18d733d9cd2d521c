//! The KV namespace of settled outcomes.

use js_sys::{Object, Promise};
use wasm_bindgen::{JsValue, prelude::wasm_bindgen};

use super::js::{self, Fault};

#[wasm_bindgen]
extern "C" {
    type Namespace;

    #[wasm_bindgen(method, catch, js_name = get)]
    fn get_raw(this: &Namespace, key: &str) -> Result<Promise, JsValue>;

    #[wasm_bindgen(method, catch, js_name = put)]
    fn put_raw(
        this: &Namespace,
        key: &str,
        value: &str,
        options: &Object,
    ) -> Result<Promise, JsValue>;
}

const BINDING: &str = "OUTCOMES";

pub async fn get(env: &JsValue, key: &str) -> Result<Option<String>, Fault> {
    let namespace = js::binding::<Namespace>(env, BINDING)?;
    Ok(js::settled(namespace.get_raw(key)?).await?.as_string())
}

pub async fn put(env: &JsValue, key: &str, value: &str, ttl_s: u32) -> Result<(), Fault> {
    let namespace = js::binding::<Namespace>(env, BINDING)?;
    let options = Object::new();
    js::set(&options, "expirationTtl", &ttl_s.into())?;
    js::settled(namespace.put_raw(key, value, &options)?)
        .await
        .map(drop)
}
