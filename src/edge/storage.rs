//! A Durable Object's storage, synchronous, every exception an `Err`.

use std::rc::Rc;

use js_sys::{Array, Promise};
use wasm_bindgen::{JsCast, JsValue, closure::ScopedClosure, prelude::wasm_bindgen};

use crate::ports::Fault;
use crate::sql::{Sql, SqlRow, SqlValue};
use crate::words::Timestamp;

use super::js;

#[wasm_bindgen]
extern "C" {
    #[wasm_bindgen(extends = js_sys::Object)]
    #[derive(Clone)]
    pub type Storage;

    #[wasm_bindgen(method, catch, js_name = transactionSync)]
    fn transaction_sync(
        this: &Storage,
        work: &ScopedClosure<dyn FnMut() -> Result<(), JsValue>>,
    ) -> Result<JsValue, JsValue>;

    #[wasm_bindgen(method, catch, js_name = setAlarm)]
    fn set_alarm_raw(this: &Storage, at_ms: f64) -> Result<Promise, JsValue>;

    #[wasm_bindgen(method, catch, js_name = deleteAlarm)]
    fn delete_alarm_raw(this: &Storage) -> Result<Promise, JsValue>;
}

#[wasm_bindgen(module = "/src/edge/io.mjs")]
extern "C" {
    #[wasm_bindgen(catch, js_name = query)]
    fn query_raw(storage: &Storage, statement: &str, params: &Array) -> Result<JsValue, JsValue>;
}

/// The storage handle that an object keeps. Everything here happens in the turn of the call: no
/// await, one commit.
#[derive(Clone)]
pub struct Store {
    storage: Storage,
}

impl Store {
    pub fn of(state: &worker_sys::DurableObjectState) -> Result<Store, Fault> {
        js::get(state, "storage")
            .map(|storage| Store {
                storage: storage.unchecked_into(),
            })
            .ok_or_else(|| Fault::new("open", "storage", "the object has none"))
    }

    /// Asks for a wake-up; part of the turn's commit. The promise is not awaited: the output gate
    /// holds every answer of this object until the write is safe, or resets the object.
    pub fn set_alarm(&self, at: Timestamp) -> Result<(), Fault> {
        self.storage
            .set_alarm_raw(at.ms() as f64)
            .map(drop)
            .map_err(failed("set the alarm"))
    }

    pub fn delete_alarm(&self) -> Result<(), Fault> {
        self.storage
            .delete_alarm_raw()
            .map(drop)
            .map_err(failed("delete the alarm"))
    }

    fn rows(&self, statement: &str, params: &[SqlValue]) -> Result<Vec<SqlRow>, JsValue> {
        let params = params.iter().map(to_js).collect();
        let found = query_raw(&self.storage, statement, &params)?;
        if found.is_undefined() {
            return Ok(Vec::new());
        }
        let found: Array = found.unchecked_into();
        let names: Array = found.get(0).unchecked_into();
        let columns: Rc<[String]> = names.iter().filter_map(|name| name.as_string()).collect();
        let rows: Array = found.get(1).unchecked_into();
        Ok(rows
            .iter()
            .map(|row| {
                let values: Array = row.unchecked_into();
                SqlRow::new(columns.clone(), values.iter().map(from_js).collect())
            })
            .collect())
    }
}

impl Sql for Store {
    fn exec(&self, statement: &str, params: &[SqlValue]) -> Result<Vec<SqlRow>, Fault> {
        self.rows(statement, params).map_err(failed("query"))
    }

    fn transaction<T>(&self, body: impl FnOnce() -> Result<T, Fault>) -> Result<T, Fault> {
        let mut body = Some(body);
        let mut out = None;
        let mut work = || {
            let Some(body) = body.take() else {
                return Err(JsValue::from_str("called twice"));
            };
            let result = body();
            let failed = result.is_err();
            out = Some(result);
            // Only an exception rolls back.
            if failed {
                Err(JsValue::from_str("rolled back"))
            } else {
                Ok(())
            }
        };
        let thrown = {
            let closure = ScopedClosure::borrow_mut_assert_unwind_safe(&mut work);
            self.storage.transaction_sync(&closure).err()
        };
        match (out, thrown) {
            (Some(Err(fault)), _) => Err(fault),
            (_, Some(exception)) => Err(failed("commit")(exception)),
            (Some(done), None) => done,
            (None, None) => Err(Fault::new(
                "commit",
                "storage",
                "the transaction did not run",
            )),
        }
    }
}

fn failed(operation: &'static str) -> impl FnOnce(JsValue) -> Fault {
    move |exception| Fault::new(operation, "storage", js::Fault::from(exception).message)
}

fn to_js(value: &SqlValue) -> JsValue {
    match value {
        SqlValue::Null => JsValue::NULL,
        SqlValue::Int(number) => JsValue::from_f64(*number as f64),
        SqlValue::Text(text) => JsValue::from_str(text),
    }
}

fn from_js(value: JsValue) -> SqlValue {
    match (value.as_string(), value.as_f64()) {
        (Some(text), _) => SqlValue::Text(text),
        (None, Some(number)) => SqlValue::Int(number as i64),
        (None, None) => SqlValue::Null,
    }
}
