//! The Durable Object of a tenant: the tenant's book, kept in its SQLite.

use std::panic::AssertUnwindSafe;
use std::rc::Rc;

use wasm_bindgen::{JsValue, prelude::wasm_bindgen};
use worker_sys::DurableObjectState;

use crate::ports::{Fault, TenantAnswer, TenantCall};
use crate::tenant;

use super::guard;
use super::js;
use super::storage::Store;

#[wasm_bindgen]
pub struct TenantObject {
    store: AssertUnwindSafe<Rc<Store>>,
}

#[wasm_bindgen]
impl TenantObject {
    #[wasm_bindgen(constructor)]
    pub fn new(state: DurableObjectState, _env: JsValue) -> Result<TenantObject, JsValue> {
        let store = Store::of(&state).map_err(|e| js::error(&e.message))?;
        Ok(TenantObject {
            store: AssertUnwindSafe(Rc::new(store)),
        })
    }

    /// `TenantCall` in, `Result<TenantAnswer, Fault>` out, both as JSON text, within one turn.
    pub fn call(&self, text: &str) -> Result<JsValue, JsValue> {
        let store = self.store.0.clone();
        let answer = guard::guarded_now("tenant", || handle(&store, text));
        let Ok(answer) = answer else {
            return Err(js::error("internal error"));
        };
        serde_json::to_string(&answer)
            .map(|text| JsValue::from_str(&text))
            .map_err(|_| js::error("internal error"))
    }

    /// A tenant sets no alarm.
    pub async fn alarm(&self) -> Result<(), JsValue> {
        Ok(())
    }
}

fn handle(store: &Store, text: &str) -> Result<TenantAnswer, Fault> {
    let call: TenantCall = serde_json::from_str(text)
        .map_err(|e| Fault::new("read the call of", "tenant", e.to_string()))?;
    tenant::handle(store, call)
}
