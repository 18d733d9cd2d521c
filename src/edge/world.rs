//! The world as it is: the flow's ports over the Worker's bindings.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use js_sys::Promise;
use serde::Serialize;
use serde::de::DeserializeOwned;
use wasm_bindgen::{JsValue, prelude::wasm_bindgen};

use crate::ports::{Failpoint, Fault, Queue, RunAnswer, RunCall, TenantAnswer, TenantCall, World};
use crate::signed::Signer;
use crate::tool::{Answer, OutboundRequest};
use crate::words::{RunId, TenantId, Timestamp};

use super::config::{self, Config};
use super::js;
use super::{caller_ai, caller_fetch};
use super::{kv, queues};

/// How long an outcome is kept in KV: longer than any message of its step can be under way.
const OUTCOME_TTL_S: u32 = 14 * 24 * 3600;
/// Tries of an object call that the platform says may be tried again.
const CALL_TRIES: u32 = 3;
const CALL_RETRY_MS: u32 = 50;
/// Limits of one `sendBatch`, less a margin.
/// https://developers.cloudflare.com/queues/platform/limits/
const BATCH_MESSAGES_MAX: usize = 100;
const BATCH_BYTES_MAX: usize = 240_000;

#[wasm_bindgen]
extern "C" {
    type Objects;
    #[wasm_bindgen(method, catch, js_name = getByName)]
    fn get_by_name(this: &Objects, name: &str) -> Result<Stub, JsValue>;

    type Stub;
    #[wasm_bindgen(method, catch, js_name = call)]
    fn call_raw(this: &Stub, text: &str) -> Result<Promise, JsValue>;
}

pub struct Edge {
    pub env: JsValue,
    pub config: Config,
    drawn: Cell<u64>,
    /// The object asked last: a worker asks the same run again and again.
    stub: RefCell<Option<(&'static str, String, Rc<Stub>)>>,
}

impl Edge {
    pub fn new(env: JsValue) -> Self {
        let config = Config::read(&env);
        Self {
            env,
            config,
            drawn: Cell::new(0),
            stub: RefCell::new(None),
        }
    }

    /// One call of an object, text in and text out.
    async fn call<C: Serialize, A: DeserializeOwned>(
        &self,
        binding: &'static str,
        operation: &str,
        name: &str,
        call: &C,
    ) -> Result<A, Fault> {
        let broken = |message: String| Fault::new(operation, name, message);
        let text = serde_json::to_string(call).map_err(|e| broken(e.to_string()))?;
        let mut tries = 0;
        let answer = loop {
            tries += 1;
            match self.call_once(binding, name, &text).await {
                Ok(answer) => break answer,
                Err(fault) if fault.retryable && !fault.overloaded && tries < CALL_TRIES => {
                    js::pause(CALL_RETRY_MS * tries).await.ok();
                }
                Err(fault) => return Err(broken(fault.message)),
            }
        };
        // Counted apart from serde's own limit: what is nested deeply stands inside raw values.
        serde_json::from_str::<Result<A, Fault>>(&answer).map_err(|e| broken(e.to_string()))?
    }

    async fn call_once(
        &self,
        binding: &'static str,
        name: &str,
        text: &str,
    ) -> Result<String, js::Fault> {
        let answered = self.ask(binding, name, text).await;
        if answered.is_err() {
            // A stub that failed stays broken.
            self.stub.replace(None);
        }
        answered
    }

    async fn ask(
        &self,
        binding: &'static str,
        name: &str,
        text: &str,
    ) -> Result<String, js::Fault> {
        let stub = self.stub(binding, name)?;
        let answer = js::settled(stub.call_raw(text)?).await?;
        answer.as_string().ok_or_else(|| js::Fault {
            message: "the object did not answer with text".into(),
            ..js::Fault::default()
        })
    }

    fn stub(&self, binding: &'static str, name: &str) -> Result<Rc<Stub>, js::Fault> {
        if let Some((kept_binding, kept_name, stub)) = &*self.stub.borrow()
            && *kept_binding == binding
            && kept_name == name
        {
            return Ok(stub.clone());
        }
        let stub = Rc::new(js::binding::<Objects>(&self.env, binding)?.get_by_name(name)?);
        self.stub
            .replace(Some((binding, name.to_owned(), stub.clone())));
        Ok(stub)
    }
}

fn fault(operation: &str, subject: &str) -> impl FnOnce(js::Fault) -> Fault {
    move |fault| {
        Fault::new(
            operation,
            subject,
            format!("{} {}", fault.name, fault.message),
        )
    }
}

pub fn queue_binding(queue: Queue) -> &'static str {
    match queue {
        Queue::Plan => "PLAN",
        Queue::Work => "WORK",
        Queue::Events => "EVENTS",
        Queue::Dead => "DEAD",
    }
}

impl World for Edge {
    fn now(&self) -> Timestamp {
        Timestamp::from_ms(js::now_ms())
    }

    fn random(&self) -> [u8; 32] {
        let mut bytes = [0; 32];
        if getrandom::fill(&mut bytes).is_err() {
            // Ids must differ even then; nothing that is secret is made of these.
            let drawn = self.drawn.get().wrapping_add(1);
            self.drawn.set(drawn);
            bytes = crate::words::sha256(format!("{}/{drawn}", js::now_ms()).as_bytes());
        }
        bytes
    }

    fn secret_random(&self) -> Result<[u8; 32], Fault> {
        let mut bytes = [0; 32];
        getrandom::fill(&mut bytes)
            .map_err(|e| Fault::new("draw", "random bytes", e.to_string()))?;
        Ok(bytes)
    }

    async fn run(&self, run_id: &RunId, call: &RunCall) -> Result<RunAnswer, Fault> {
        self.call("RUN", "call the run", run_id.as_str(), call)
            .await
    }

    async fn tenant(&self, tenant_id: &TenantId, call: &TenantCall) -> Result<TenantAnswer, Fault> {
        self.call("TENANT", "call the tenant", tenant_id.as_str(), call)
            .await
    }

    async fn send(&self, queue: Queue, bodies: &[String]) -> Result<(), Fault> {
        let name = queue_binding(queue);
        let binding =
            js::binding::<queues::Queue>(&self.env, name).map_err(fault("send to", name))?;
        if let [body] = bodies {
            return queues::send(&binding, body)
                .await
                .map_err(fault("send to", name));
        }
        let mut batch: Vec<&str> = Vec::new();
        let mut bytes = 0;
        for body in bodies {
            let full = batch.len() >= BATCH_MESSAGES_MAX || bytes + body.len() > BATCH_BYTES_MAX;
            if full && !batch.is_empty() {
                queues::send_batch(&binding, &batch)
                    .await
                    .map_err(fault("send to", name))?;
                batch.clear();
                bytes = 0;
            }
            bytes += body.len();
            batch.push(body);
        }
        if batch.is_empty() {
            return Ok(());
        }
        queues::send_batch(&binding, &batch)
            .await
            .map_err(fault("send to", name))
    }

    async fn outcome(&self, key: &str) -> Result<Option<String>, Fault> {
        #[cfg(feature = "test-seams")]
        if let Some(answer) = super::seams::kv_read().await {
            return answer;
        }
        kv::get(&self.env, key)
            .await
            .map_err(fault("read from", "OUTCOMES"))
    }

    async fn put_outcome(&self, key: &str, outcome: &str) -> Result<(), Fault> {
        #[cfg(feature = "test-seams")]
        super::seams::kv_write().await?;
        kv::put(&self.env, key, outcome, OUTCOME_TTL_S)
            .await
            .map_err(fault("write to", "OUTCOMES"))
    }

    async fn ask_platform_model(&self, model: &str, input: &str, timeout_ms: i64) -> Answer {
        caller_ai::ask(&self.env, model, input, timeout_ms).await
    }

    async fn call_tool(&self, request: &OutboundRequest) -> Answer {
        caller_fetch::call_tool(request, &self.config.allowed_inward_hosts).await
    }

    fn secret(&self, tenant_id: &TenantId, name: &str) -> Option<String> {
        config::tenant_secret(&self.env, tenant_id.as_str(), name)
    }

    fn signer(&self) -> Option<&Signer> {
        self.config.signer.as_ref()
    }

    fn public_origin(&self) -> Option<&str> {
        self.config.public_origin.as_deref()
    }

    async fn sleep(&self, ms: i64) {
        js::pause(u32::try_from(ms).unwrap_or(0)).await.ok();
    }

    fn keeps_every_outcome(&self) -> bool {
        self.config.keeps_every_outcome
    }

    #[cfg(not(feature = "test-seams"))]
    async fn pass(&self, _: Failpoint) -> Result<(), Fault> {
        Ok(())
    }

    #[cfg(feature = "test-seams")]
    async fn pass(&self, point: Failpoint) -> Result<(), Fault> {
        super::seams::pass(point).await
    }

    fn log(&self, line: &str) {
        js::console_log(line);
    }
}
