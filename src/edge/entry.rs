//! The Worker's three entries. Nothing is decided here.

use std::cell::Cell;
use std::panic::AssertUnwindSafe;
use std::rc::Rc;

use futures::future::{join_all, select};
use js_sys::{Array, Promise};
use wasm_bindgen::{JsCast, JsValue, prelude::wasm_bindgen};
use worker_sys::{Context, MessageBatch};

use crate::flow::work::{self, Delivery};
use crate::flow::{Verdict, index, stray, sweep};
use crate::http::{self, Body, Request, Response};
use crate::ports::World;
use crate::words::TenantId;
use crate::words::limits::REQUEST_BODY_BYTES_MAX;

use super::caller_fetch;
use super::guard::{self, guarded};
use super::js::{self, Fault};
use super::live::LiveBody;
use super::queues;
use super::world::Edge;

/// Before anything else: a panic says where it was. Its text goes to the log and to nobody else.
#[wasm_bindgen(start)]
pub fn start() {
    std::panic::set_hook(Box::new(|info| {
        js::console_error(&format!("panic: {info}"))
    }));
}

#[wasm_bindgen]
pub async fn fetch(request: JsValue, env: JsValue, ctx: Context) -> Result<JsValue, JsValue> {
    AssertUnwindSafe(async move {
        let _ = ctx;
        match guarded("fetch", answer(request, env)).await {
            Ok(Ok(response)) => Ok(response),
            Ok(Err(fault)) => {
                js::console_error(&format!("fetch: {}", fault.message));
                Err(js::error("internal error"))
            }
            Err(guard::Panicked) => Err(js::error("internal error")),
        }
    })
    .await
}

#[wasm_bindgen(module = "/src/edge/io.mjs")]
extern "C" {
    #[wasm_bindgen(catch, js_name = read)]
    fn read_raw(request: &JsValue, bytes_max: f64) -> Result<Promise, JsValue>;

    #[wasm_bindgen(catch, js_name = respond)]
    fn respond_raw(status: u16, headers: &str, body: Option<&str>) -> Result<JsValue, JsValue>;

    #[wasm_bindgen(catch, js_name = respondLive)]
    fn respond_live_raw(
        status: u16,
        headers: &str,
        begun: &str,
        rest: LiveBody,
    ) -> Result<JsValue, JsValue>;
}

async fn answer(request: JsValue, env: JsValue) -> Result<JsValue, Fault> {
    let read = js::settled(read_raw(&request, REQUEST_BODY_BYTES_MAX as f64)?).await?;
    let read: Array = read.unchecked_into();
    let text = |at: u32| read.get(at).as_string().unwrap_or_default();
    let broken = |what: &str, e: String| Fault {
        message: format!("the request's {what}: {e}"),
        ..Fault::default()
    };
    let parsed = url::Url::parse(&text(1)).map_err(|e| broken("URL", e.to_string()))?;
    let headers = serde_json::from_str(&text(2)).map_err(|e| broken("headers", e.to_string()))?;
    let body = caller_fetch::bytes(read.get(3)).map_or(Body::TooLarge, Body::Bytes);
    let request = Request {
        method: text(0),
        origin: Some(parsed.origin().ascii_serialization()),
        path: parsed.path().to_owned(),
        query: parsed.query().map(str::to_owned),
        headers,
        body,
    };
    let world = Edge::new(env);
    #[cfg(feature = "test-seams")]
    if world.config.test_seams && request.path.starts_with("/dev/") {
        let response = super::seams::respond(&world, request).await;
        return respond(response, world);
    }
    let config = http::Config {
        admin_token: world.config.admin_token.clone(),
        dev_api_key: world.config.dev_api_key.clone(),
        version: env!("CARGO_PKG_VERSION"),
    };
    let response = http::respond(&world, &config, request).await;
    respond(response, world)
}

fn respond(response: Response, world: Edge) -> Result<JsValue, Fault> {
    let headers = serde_json::to_string(&response.headers).unwrap_or_default();
    let status = response.status;
    if let Some(stream) = response.stream {
        let rest = LiveBody::new(stream, world);
        return Ok(respond_live_raw(status, &headers, &response.body, rest)?);
    }
    let body = (!matches!(status, 204 | 304)).then_some(response.body.as_str());
    Ok(respond_raw(status, &headers, body)?)
}

/// Settles each message alone and never fails: a batch that fails is delivered again as a whole.
///
/// Messages are worked on side by side. What is not done when the consumer's patience ends goes on
/// in the background and is acknowledged: the run's own lease and alarm see to it from then on.
#[wasm_bindgen]
pub async fn queue(batch: MessageBatch, env: JsValue, ctx: Context) -> Result<JsValue, JsValue> {
    AssertUnwindSafe(async move {
        let name = queues::name(&batch);
        match queues::deliveries(&batch) {
            Ok(deliveries) => {
                let world = Rc::new(Edge::new(env));
                if guarded("queue", consume(&name, deliveries, world, &ctx))
                    .await
                    .is_err()
                {
                    batch.retry_all(JsValue::UNDEFINED).ok();
                }
            }
            Err(fault) => js::console_error(&format!("a batch cannot be read: {}", fault.message)),
        }
        Ok(JsValue::UNDEFINED)
    })
    .await
}

async fn consume(name: &str, deliveries: Vec<queues::Delivery>, world: Rc<Edge>, ctx: &Context) {
    match name.rsplit('-').next() {
        Some("events") => index_batch(&world, &deliveries).await,
        Some("dead") => {
            join_all(
                deliveries
                    .iter()
                    .map(|delivery| take_dead(&world, delivery)),
            )
            .await;
        }
        _ => work_batch(deliveries, world, ctx).await,
    }
}

async fn work_batch(deliveries: Vec<queues::Delivery>, world: Rc<Edge>, ctx: &Context) {
    let patience_ms = world.config.consumer_patience_ms;
    let deliveries: Vec<Rc<queues::Delivery>> = deliveries.into_iter().map(Rc::new).collect();
    let promises: Array = deliveries
        .iter()
        .map(|delivery| {
            let (delivery, world) = (delivery.clone(), world.clone());
            guard::background("work", async move {
                let body = delivery.body.as_str();
                let attempts = delivery.attempts;
                // A panic leaves the message to be settled as undone.
                let settled = Unsettled::of(&delivery);
                let verdict = work::work(&*world, Delivery { body, attempts }).await;
                settled.by(verdict);
            })
        })
        .collect();
    let all = Promise::all(&promises);
    let done = Box::pin(js::settled(all.clone()));
    let patience = Box::pin(js::pause(patience_ms));
    if let futures::future::Either::Right(_) = select(done, patience).await {
        ctx.wait_until(&all).ok();
        for delivery in &deliveries {
            delivery.ack();
        }
    }
}

/// A message that is tried again unless it is settled.
struct Unsettled<'a> {
    delivery: &'a queues::Delivery,
    settled: Cell<bool>,
}

impl<'a> Unsettled<'a> {
    const RETRY_S: u32 = 2;

    fn of(delivery: &'a queues::Delivery) -> Self {
        Self {
            delivery,
            settled: Cell::new(false),
        }
    }

    fn by(self, verdict: Verdict) {
        self.settled.set(true);
        match verdict {
            Verdict::Ack => self.delivery.ack(),
            Verdict::Retry { delay_s } => self.delivery.retry(delay_s),
        }
    }
}

impl Drop for Unsettled<'_> {
    fn drop(&mut self) {
        if !self.settled.get() {
            self.delivery.retry(Self::RETRY_S);
        }
    }
}

async fn index_batch(world: &Edge, deliveries: &[queues::Delivery]) {
    const RETRY_S: u32 = 5;
    let bodies: Vec<String> = deliveries
        .iter()
        .map(|delivery| delivery.body.clone())
        .collect();
    let dealt_with = index::index(world, &bodies).await;
    for (delivery, dealt_with) in deliveries.iter().zip(dealt_with) {
        if dealt_with {
            delivery.ack()
        } else {
            delivery.retry(RETRY_S)
        }
    }
}

/// The last stop of what three queues could not deliver.
async fn take_dead(world: &Edge, delivery: &queues::Delivery) {
    const RETRY_S: u32 = 60;
    let body = delivery.body.as_str();
    match work::bury(world, body).await {
        Ok(()) => delivery.ack(),
        Err(fault) => {
            world.log(&format!("a dead message will be tried again: {fault}"));
            delivery.retry(RETRY_S);
        }
    }
}

#[wasm_bindgen]
pub async fn scheduled(_event: JsValue, env: JsValue, _ctx: Context) -> Result<JsValue, JsValue> {
    AssertUnwindSafe(async move {
        let swept = guarded("scheduled", async {
            let world = Edge::new(env);
            sweep_all(&world).await.map(|findings| {
                if let Ok(text) = serde_json::to_string(&findings) {
                    world.log(&format!("sweep {text}"));
                }
            })
        });
        if let Ok(Err(fault)) = swept.await {
            js::console_error(&format!("sweep: {fault}"));
        }
        Ok(JsValue::UNDEFINED)
    })
    .await
}

pub async fn sweep_all(world: &Edge) -> Result<sweep::Findings, crate::ports::Fault> {
    // The local tenant needs no entry in the directory.
    let dev = world
        .config
        .dev_api_key
        .as_ref()
        .and_then(|_| TenantId::parse("dev").ok());
    let also: Vec<TenantId> = dev.into_iter().collect();
    sweep::sweep(world, &stray::directory()?, &also).await
}
