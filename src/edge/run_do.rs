//! The Durable Object of a run: its SQLite table, its alarm, and the home that lives in it.

use std::cell::RefCell;
use std::panic::AssertUnwindSafe;
use std::rc::Rc;

use wasm_bindgen::{JsValue, prelude::wasm_bindgen};
use worker_sys::DurableObjectState;

use crate::flow::home::{Home, LogStore, Outcome};
use crate::flow::log_table::LogTable;
use crate::flow::relay::relay;
use crate::ports::{Failpoint, Fault, Projection, Queue, RunAnswer, RunCall, World};
use crate::run::Row;
#[cfg(feature = "test-seams")]
use crate::sql::Sql;
use crate::words::{RunId, TenantId, Timestamp};

use super::guard;
use super::js;
use super::storage::Store;
use super::world::Edge;

/// When the alarm could not do its work, it tries again after this long.
const ALARM_RETRY_MS: i64 = 2_000;

/// One run. wasm-bindgen asks for unwind safety of what an exported method borrows: a panic makes
/// the wrapper drop the whole object, and the next call folds the log anew.
#[wasm_bindgen]
pub struct RunObject {
    inner: AssertUnwindSafe<Rc<Inner>>,
}

struct Inner {
    state: DurableObjectState,
    log: RunLog,
    home: RefCell<Home>,
    world: Edge,
}

#[wasm_bindgen]
impl RunObject {
    #[wasm_bindgen(constructor)]
    pub fn new(state: DurableObjectState, env: JsValue) -> Result<RunObject, JsValue> {
        let store = Store::of(&state).map_err(|e| js::error(&e.message))?;
        let inner = Inner {
            state,
            log: RunLog {
                table: LogTable::new(store),
            },
            home: RefCell::default(),
            world: Edge::new(env),
        };
        Ok(RunObject {
            inner: AssertUnwindSafe(Rc::new(inner)),
        })
    }

    /// `RunCall` in, `Result<RunAnswer, Fault>` out, both as JSON text, within one turn.
    pub fn call(&self, text: &str) -> Result<JsValue, JsValue> {
        let inner = self.inner.0.clone();
        let answer = guard::guarded_now("run", || inner.call(text));
        match answer {
            Ok(answer) => Ok(JsValue::from_str(&answer)),
            Err(guard::Panicked) => Err(js::error("internal error")),
        }
    }

    /// Never fails but when nothing can be stored: then the platform tries again.
    pub async fn alarm(&self) -> Result<(), JsValue> {
        AssertUnwindSafe(self.inner.0.clone().wake()).await
    }
}

impl Inner {
    fn call(self: &Rc<Self>, text: &str) -> String {
        let answer = self.handle(text);
        serde_json::to_string(&answer).unwrap_or_else(|e| {
            let fault = Fault::new("answer", "run", e.to_string());
            serde_json::to_string(&Err::<RunAnswer, _>(fault)).unwrap_or_default()
        })
    }

    fn handle(self: &Rc<Self>, text: &str) -> Result<RunAnswer, Fault> {
        let call: RunCall = serde_json::from_str(text)
            .map_err(|e| Fault::new("read the call of", "run", e.to_string()))?;
        let mut home = self.home.try_borrow_mut().map_err(|_| busy())?;
        let (now, random) = (self.world.now(), self.draw());
        let Outcome {
            answer,
            projections,
        } = home.handle(&self.log, call, now, random)?;
        drop(home);
        if !projections.is_empty() {
            let inner = self.clone();
            let told = guard::background("index", async move { inner.tell(projections).await });
            // A promise that cannot be held on to runs all the same, and the alarm tells again.
            self.state.wait_until(&told).ok();
        }
        Ok(answer)
    }

    async fn wake(self: Rc<Self>) -> Result<(), JsValue> {
        let inner = self.clone();
        let worked = guard::guarded("run alarm", async move { inner.alarm().await }).await;
        match worked {
            Ok(Ok(())) => Ok(()),
            Ok(Err(fault)) => self.wake_again(&fault.to_string()),
            Err(guard::Panicked) => self.wake_again("it panicked"),
        }
    }

    fn wake_again(&self, why: &str) -> Result<(), JsValue> {
        js::console_error(&format!("an alarm will be tried again: {why}"));
        let at = self.world.now().plus_ms(ALARM_RETRY_MS);
        self.log.set_alarm(at).map_err(|e| js::error(&e.message))
    }

    async fn alarm(self: &Rc<Self>) -> Result<(), Fault> {
        self.world.pass(Failpoint::AlarmEntered).await?;
        let woken = {
            let mut home = self.home.try_borrow_mut().map_err(|_| busy())?;
            home.wake(&self.log, self.world.now(), self.draw())?
        };
        relay(&self.world, &woken.messages).await;
        if woken.projections.is_empty() {
            return Ok(());
        }
        self.send(&woken.projections).await
    }

    async fn tell(&self, projections: Vec<Projection>) {
        if let Err(fault) = self.send(&projections).await {
            self.world
                .log(&format!("the index will be told by the alarm: {fault}"));
        }
    }

    async fn send(&self, projections: &[Projection]) -> Result<(), Fault> {
        let texts: Vec<String> = projections
            .iter()
            .map(serde_json::to_string)
            .collect::<Result<_, _>>()
            .map_err(|e| Fault::new("write a projection of", "run", e.to_string()))?;
        self.world.send(Queue::Events, &texts).await?;
        if let (Ok(mut home), Some(last)) = (self.home.try_borrow_mut(), projections.last()) {
            home.projected(last.seq);
        }
        Ok(())
    }

    fn draw(&self) -> u64 {
        let [b0, b1, b2, b3, b4, b5, b6, b7, ..] = self.world.random();
        u64::from_le_bytes([b0, b1, b2, b3, b4, b5, b6, b7])
    }
}

fn busy() -> Fault {
    Fault::new(
        "enter",
        "run",
        "the object is in the middle of another turn",
    )
}

/// The log's table and the alarm: what the home needs of the object.
struct RunLog {
    table: LogTable<Store>,
}

impl LogStore for RunLog {
    fn load(&self) -> Result<Vec<Row>, Fault> {
        self.table.load()
    }

    fn page(&self, seq: u64, limit: usize) -> Result<Vec<Row>, Fault> {
        self.table.page(seq, limit)
    }

    fn page_back(&self, seq: u64, limit: usize) -> Result<Vec<Row>, Fault> {
        self.table.page_back(seq, limit)
    }

    fn append(&self, rows: &[Row]) -> Result<(), Fault> {
        self.table.append(rows)
    }

    fn set_alarm(&self, at: Timestamp) -> Result<(), Fault> {
        self.table.sql().set_alarm(at)
    }

    fn clear_alarm(&self) -> Result<(), Fault> {
        self.table.sql().delete_alarm()
    }

    fn bar(&self, tenant_id: &TenantId, parent_run_id: &RunId) -> Result<(), Fault> {
        self.table.bar(tenant_id, parent_run_id)
    }

    fn is_barred(&self, tenant_id: &TenantId, parent_run_id: &RunId) -> Result<bool, Fault> {
        self.table.is_barred(tenant_id, parent_run_id)
    }

    #[cfg(feature = "test-seams")]
    fn clock_offset_ms(&self) -> i64 {
        let moved = self
            .table
            .sql()
            .exec("SELECT ms FROM clock", &[])
            .unwrap_or_default();
        moved
            .first()
            .and_then(|row| row.int("ms").ok())
            .unwrap_or(0)
    }

    #[cfg(feature = "test-seams")]
    fn set_clock_offset_ms(&self, ms: i64) -> Result<(), Fault> {
        let sql = self.table.sql();
        sql.exec(
            "CREATE TABLE IF NOT EXISTS clock (id INTEGER PRIMARY KEY, ms INTEGER)",
            &[],
        )?;
        sql.exec(
            "INSERT OR REPLACE INTO clock (id, ms) VALUES (0, ?1)",
            &[ms.into()],
        )
        .map(drop)
    }
}
