//! A world in memory: real runs and real tenants, and nothing between them and the API.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use crate::flow::home::{Home, LogStore};
use crate::flow::log_table::LogTable;
use crate::json::{self, Value};
use crate::ports::{Failpoint, Fault, Queue, RunAnswer, RunCall, TenantAnswer, TenantCall, World};
use crate::run::Row;
use crate::signed::Signer;
use crate::tenant::testing::Db;
use crate::tool::{Answer, OutboundRequest, Transport, TransportKind};
use crate::words::{RunId, TenantId, Timestamp, sha256};

use super::{Body, Config, Request, Response, respond};

pub const DEV: &str = "dev-key";
pub const ADMIN: &str = "operator-token";

pub struct Log(LogTable<Db>);

impl Default for Log {
    fn default() -> Self {
        Self(LogTable::new(Db::empty()))
    }
}

impl LogStore for Log {
    fn load(&self) -> Result<Vec<Row>, Fault> {
        self.0.load()
    }

    fn page(&self, seq: u64, limit: usize) -> Result<Vec<Row>, Fault> {
        self.0.page(seq, limit)
    }

    fn page_back(&self, seq: u64, limit: usize) -> Result<Vec<Row>, Fault> {
        self.0.page_back(seq, limit)
    }

    fn append(&self, rows: &[Row]) -> Result<(), Fault> {
        self.0.append(rows)
    }

    fn set_alarm(&self, _: Timestamp) -> Result<(), Fault> {
        Ok(())
    }

    fn clear_alarm(&self) -> Result<(), Fault> {
        Ok(())
    }

    fn bar(&self, tenant_id: &TenantId, parent_run_id: &RunId) -> Result<(), Fault> {
        self.0.bar(tenant_id, parent_run_id)
    }

    fn is_barred(&self, tenant_id: &TenantId, parent_run_id: &RunId) -> Result<bool, Fault> {
        self.0.is_barred(tenant_id, parent_run_id)
    }
}

pub struct Fake {
    pub config: Config,
    signer: Signer,
    now: Cell<Timestamp>,
    drawn: Cell<u64>,
    pub runs: RefCell<BTreeMap<RunId, (Home, Log)>>,
    pub tenants: RefCell<BTreeMap<TenantId, Db>>,
    pub tenant_calls: Cell<usize>,
    pub logged: RefCell<Vec<String>>,
    /// Whether objects can be reached.
    pub is_down: Cell<bool>,
    /// The pauses that were made.
    pub slept_ms: RefCell<Vec<i64>>,
}

impl Fake {
    pub fn new() -> Self {
        let config = Config {
            admin_token: Some(ADMIN.to_owned()),
            dev_api_key: Some(DEV.to_owned()),
            version: "0.0.0",
        };
        Self {
            config,
            signer: Signer::new([ADMIN.to_owned()]).unwrap(),
            now: Cell::new(Timestamp::from_ms(1_800_000_000_000)),
            drawn: Cell::new(0),
            runs: RefCell::default(),
            tenants: RefCell::default(),
            tenant_calls: Cell::new(0),
            logged: RefCell::default(),
            is_down: Cell::new(false),
            slept_ms: RefCell::default(),
        }
    }

    fn reach(&self, subject: &str) -> Result<(), Fault> {
        if self.is_down.get() {
            Err(Fault::new("call", subject, "it is down"))
        } else {
            Ok(())
        }
    }
}

impl World for Fake {
    fn now(&self) -> Timestamp {
        self.now.set(self.now.get().plus_ms(1));
        self.now.get()
    }

    fn random(&self) -> [u8; 32] {
        self.drawn.set(self.drawn.get() + 1);
        sha256(&self.drawn.get().to_be_bytes())
    }

    async fn run(&self, run_id: &RunId, call: &RunCall) -> Result<RunAnswer, Fault> {
        self.reach(run_id.as_str())?;
        let call = serde_json::from_str(&serde_json::to_string(call).unwrap()).unwrap();
        let outcome = {
            let mut runs = self.runs.borrow_mut();
            let (home, log) = runs.entry(run_id.clone()).or_default();
            home.handle(log, call, self.now(), 7)?
        };
        if let Some(first) = outcome.projections.first() {
            let tenants = self.tenants.borrow();
            let tenant = tenants.get(&first.tenant_id).unwrap();
            tenant.call(TenantCall::Project {
                projections: outcome.projections,
            });
        }
        Ok(outcome.answer)
    }

    async fn tenant(&self, tenant_id: &TenantId, call: &TenantCall) -> Result<TenantAnswer, Fault> {
        self.reach(tenant_id.as_str())?;
        self.tenant_calls.set(self.tenant_calls.get() + 1);
        let call = serde_json::from_str(&serde_json::to_string(call).unwrap()).unwrap();
        let mut tenants = self.tenants.borrow_mut();
        tenants
            .entry(tenant_id.clone())
            .or_insert_with(Db::empty)
            .try_call(call)
    }

    async fn send(&self, _: Queue, _: &[String]) -> Result<(), Fault> {
        Ok(())
    }

    async fn outcome(&self, _: &str) -> Result<Option<String>, Fault> {
        Ok(None)
    }

    async fn put_outcome(&self, _: &str, _: &str) -> Result<(), Fault> {
        Ok(())
    }

    async fn ask_platform_model(&self, _: &str, _: &str, _: i64) -> Answer {
        Answer::Transport(Transport {
            kind: TransportKind::Blocked,
            message: "there is no binding AI".to_owned(),
        })
    }

    async fn call_tool(&self, _: &OutboundRequest) -> Answer {
        Answer::Transport(Transport {
            kind: TransportKind::Refused,
            message: String::new(),
        })
    }

    fn secret(&self, _: &TenantId, _: &str) -> Option<String> {
        None
    }

    fn signer(&self) -> Option<&Signer> {
        Some(&self.signer)
    }

    async fn sleep(&self, ms: i64) {
        self.slept_ms.borrow_mut().push(ms);
        self.now.set(self.now.get().plus_ms(ms));
    }

    fn keeps_every_outcome(&self) -> bool {
        false
    }

    async fn pass(&self, _: Failpoint) -> Result<(), Fault> {
        Ok(())
    }

    fn log(&self, line: &str) {
        self.logged.borrow_mut().push(line.to_owned());
    }
}

/// Runs a future that never waits.
pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("nothing in this world waits"),
    }
}

impl Fake {
    /// Sends a request: `METHOD /path?query`, a key or none, further headers, a body or none.
    pub fn send_with(
        &self,
        line: &str,
        key: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> Response {
        let (method, target) = line.split_once(' ').unwrap();
        let (path, query) = match target.split_once('?') {
            Some((path, query)) => (path, Some(query.to_owned())),
            None => (target, None),
        };
        let mut all = Vec::new();
        if !key.is_empty() {
            all.push(("authorization".to_owned(), format!("Bearer {key}")));
        }
        all.extend(
            headers
                .iter()
                .map(|(n, v)| ((*n).to_owned(), (*v).to_owned())),
        );
        let request = Request {
            method: method.to_owned(),
            origin: Some("https://dormouse.example".to_owned()),
            path: path.to_owned(),
            query,
            headers: all,
            body: Body::Bytes(body.as_bytes().to_vec()),
        };
        let response = block_on(respond(self, &self.config, request));
        assert!(header(&response, "traceparent").is_some(), "{line}");
        self.matches_its_schema(method, path, &response);
        let is_page = path.starts_with("/approvals/");
        if response.status >= 400 && method != "HEAD" && !is_page {
            let problem = read(&response);
            assert_eq!(
                crate::schema::validate("problem", &problem),
                Ok(()),
                "{line} {problem}"
            );
            assert_eq!(problem["status"].to_string(), response.status.to_string());
            let form = header(&response, "content-type");
            assert_eq!(form, Some("application/problem+json; charset=utf-8"));
        }
        response
    }

    /// What was answered is what the schemas promise.
    fn matches_its_schema(&self, method: &str, path: &str, response: &Response) {
        let Ok(found) = super::routes::find(method, path) else {
            return;
        };
        let is_json = header(response, "content-type") == Some("application/json; charset=utf-8");
        if response.status >= 300 || !is_json || method == "HEAD" {
            return;
        }
        let answer = read(response);
        let (schema, is_list) = match (found.route.method, found.route.path) {
            ("GET", "/v1/runs") => ("run-summary", true),
            ("GET", "/v1/runs/{run_id}/events") => ("log-entry", true),
            (_, "/v1/runs/{run_id}/diagnosis") => ("diagnosis", false),
            (_, "/v1/runs/{run_id}/signals/{name}") => ("accepted-signal", false),
            (_, path) if path.starts_with("/v1/runs") => ("run", false),
            ("GET", "/v1/approvals") => ("approval", true),
            (_, "/v1/approvals/{approval_id}") => ("approval", false),
            (_, "/v1/approvals/{approval_id}/links") => ("approval-link", false),
            (_, "/v1/callbacks/{token}") => ("accepted-callback", false),
            (_, "/v1/tools") => ("stored-tool", true),
            (_, "/v1/tools/{name}") => ("stored-tool", false),
            (_, "/v1/agents/{name}") => ("stored-agent", false),
            (_, "/v1/envelopes") => ("accepted-envelopes", false),
            ("GET", "/v1/dead-letters") => ("dead-letter", true),
            (_, path) if path.starts_with("/v1/dead-letters/") => ("dead-letter", false),
            (_, "/v1/tenants/{tenant_id}/keys") => ("key", false),
            _ => return,
        };
        let items = if is_list {
            answer["items"].as_array().unwrap().clone()
        } else {
            vec![answer]
        };
        for item in items {
            let mut flaws = crate::schema::validate(schema, &item)
                .err()
                .unwrap_or_default();
            // The index is not told a run's trace.
            flaws.retain(|flaw| schema != "run-summary" || flaw.pointer != "/trace_id");
            assert_eq!(flaws, [], "{method} {path} {item}");
        }
    }

    pub fn call(&self, line: &str, key: &str, body: &str) -> Response {
        self.send_with(line, key, &[], body)
    }

    /// A request under the tenant `dev`, its status and the JSON of its answer.
    pub fn dev(&self, line: &str, body: &str) -> (u16, Value) {
        let response = self.call(line, DEV, body);
        (response.status, read(&response))
    }

    /// A tenant, and a key of it.
    pub fn tenant_key(&self, tenant_id: &str, role: &str) -> String {
        self.call(
            "POST /v1/tenants",
            ADMIN,
            &format!(r#"{{"tenant_id":"{tenant_id}"}}"#),
        );
        let line = format!("POST /v1/tenants/{tenant_id}/keys");
        let made = self.call(
            &line,
            ADMIN,
            &format!(r#"{{"name":"test","role":"{role}"}}"#),
        );
        assert_eq!(made.status, 201, "{}", made.body);
        read(&made)["key"].as_str().unwrap().to_owned()
    }
}

pub fn header<'r>(response: &'r Response, name: &str) -> Option<&'r str> {
    response
        .headers
        .iter()
        .find(|(known, _)| known == name)
        .map(|(_, value)| value.as_str())
}

pub fn read(response: &Response) -> Value {
    if response.body.is_empty() {
        return Value::Null;
    }
    json::read_stored(response.body.as_bytes())
        .unwrap_or_else(|e| panic!("{e:?}: {}", response.body))
}
