//! A tenant's database in memory, and the words to talk to it.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use rusqlite::Connection;
use rusqlite::types::{Value as Stored, ValueRef};

use crate::json::{self, Json, Value};
use crate::ports::{
    DeadLetterFilter, DefinitionKind, Fault, Maker, ProjectedDeadLetter, Projection, RunFilter,
    StrayLetter, TenantAnswer, TenantCall,
};
use crate::run::event::{DeadLetterReason, RequestRef};
use crate::sql::{Sql, SqlRow, SqlValue};
use crate::words::{DeadLetterId, RunId, TenantId, Timestamp};

use super::handle;

/// Some day in 2024.
pub const NOON: Timestamp = Timestamp::from_ms(1_733_054_400_000);
pub const DAY_MS: i64 = 86_400_000;

pub struct Db {
    connection: Connection,
    in_transaction: Cell<bool>,
    /// The statement that fails, counted down.
    fails_at: Cell<Option<usize>>,
    statements: RefCell<Vec<String>>,
}

impl Sql for Db {
    fn exec(&self, statement: &str, params: &[SqlValue]) -> Result<Vec<SqlRow>, Fault> {
        self.statements.borrow_mut().push(statement.to_owned());
        match self.fails_at.get() {
            Some(0) => return Err(Fault::new("exec", statement, "the test breaks it")),
            Some(left) => self.fails_at.set(Some(left - 1)),
            None => {}
        }
        assert!(
            params.len() <= 100 && statement.len() < 100_000,
            "the platform refuses it"
        );
        self.run(statement, params)
            .map_err(|error| Fault::new("exec", statement, error.to_string()))
    }

    fn transaction<T>(&self, body: impl FnOnce() -> Result<T, Fault>) -> Result<T, Fault> {
        assert!(
            !self.in_transaction.replace(true),
            "transactions are never nested"
        );
        self.connection.execute_batch("BEGIN").unwrap();
        let result = body();
        self.connection
            .execute_batch(if result.is_ok() { "COMMIT" } else { "ROLLBACK" })
            .unwrap();
        self.in_transaction.set(false);
        result
    }
}

impl Db {
    /// A database that nobody wrote to.
    pub fn empty() -> Self {
        Self {
            connection: Connection::open_in_memory().unwrap(),
            in_transaction: Cell::new(false),
            fails_at: Cell::new(None),
            statements: RefCell::default(),
        }
    }

    /// A tenant that was created.
    pub fn new() -> Self {
        Self::born(NOON)
    }

    pub fn born(now: Timestamp) -> Self {
        let db = Self::empty();
        assert!(matches!(
            db.call(TenantCall::Create { now }),
            TenantAnswer::Done
        ));
        db
    }

    /// A tenant with an agent `buyer`, in its second version.
    pub fn with_buyer() -> Self {
        let db = Self::new();
        for description in ["first", "second"] {
            let planner = serde_json::json!({ "kind": "external" });
            let agent = serde_json::json!({ "description": description, "planner": planner });
            db.call(TenantCall::PutDefinition {
                kind: DefinitionKind::Agent,
                name: "buyer".into(),
                definition: Json::new(agent),
                now: NOON,
            });
        }
        db
    }

    fn run(&self, statement: &str, params: &[SqlValue]) -> rusqlite::Result<Vec<SqlRow>> {
        let mut prepared = self.connection.prepare(statement)?;
        let columns: Rc<[String]> = prepared
            .column_names()
            .into_iter()
            .map(str::to_owned)
            .collect();
        let params = params.iter().map(|param| match param {
            SqlValue::Null => Stored::Null,
            // As on the platform, where a number is a double on its way in.
            SqlValue::Int(value) => Stored::Real(*value as f64),
            SqlValue::Text(text) => Stored::Text(text.clone()),
        });
        let mut rows = prepared.query(rusqlite::params_from_iter(params))?;
        let mut all = Vec::new();
        while let Some(row) = rows.next()? {
            let values = (0..columns.len()).map(|at| match row.get_ref(at).unwrap() {
                ValueRef::Null => SqlValue::Null,
                ValueRef::Integer(value) => SqlValue::Int(value),
                ValueRef::Text(text) => SqlValue::Text(std::str::from_utf8(text).unwrap().into()),
                other => panic!("{statement} gives {other:?}"),
            });
            all.push(SqlRow::new(columns.clone(), values.collect()));
        }
        Ok(all)
    }

    /// Carries a call out as it arrives: by way of its text form.
    pub fn call(&self, call: TenantCall) -> TenantAnswer {
        self.try_call(call).unwrap()
    }

    pub fn try_call(&self, call: TenantCall) -> Result<TenantAnswer, Fault> {
        let text = serde_json::to_string(&call).unwrap();
        let answer = handle(self, serde_json::from_str(&text).unwrap())?;
        Ok(serde_json::from_str(&serde_json::to_string(&answer).unwrap()).unwrap())
    }

    /// The same, and how many rows it wrote. In tables that have neither a hidden rowid nor an index
    /// this is what the platform counts.
    pub fn counted(&self, call: TenantCall) -> (TenantAnswer, i64) {
        let before = self.number("SELECT total_changes()");
        let answer = self.call(call);
        (answer, self.number("SELECT total_changes()") - before)
    }

    pub fn number(&self, query: &str) -> i64 {
        self.connection
            .query_row(query, [], |row| row.get(0))
            .unwrap()
    }

    /// Everything in the database, as text.
    pub fn dump(&self) -> String {
        let tables = self
            .run("SELECT name FROM sqlite_master WHERE type = 'table'", &[])
            .unwrap();
        let mut dump = String::new();
        for table in tables {
            let name = table.text("name").unwrap().to_owned();
            for row in self.run(&format!("SELECT * FROM {name}"), &[]).unwrap() {
                dump.push_str(&format!("{name} {row:?}\n"));
            }
        }
        dump
    }

    /// Carries a call out with each of its statements failing once, and checks that a failure leaves
    /// nothing written. Then without a failure.
    pub fn call_all_or_nothing(&self, call: impl Fn() -> TenantCall) -> TenantAnswer {
        let before = self.dump();
        for statement in 0.. {
            self.fails_at.set(Some(statement));
            let result = self.try_call(call());
            self.fails_at.set(None);
            match result {
                Err(_) => assert_eq!(self.dump(), before, "after statement {statement}"),
                Ok(answer) => return answer,
            }
        }
        panic!("there is no end of statements")
    }

    /// The query plans of all statements carried out so far that look for rows.
    pub fn plans(&self) -> Vec<(String, String)> {
        let mut statements = self.statements.borrow().clone();
        statements.sort();
        statements.dedup();
        let explained = statements
            .into_iter()
            .filter(|statement| !statement.contains("CREATE"));
        explained
            .map(|statement| {
                let params = statement.matches('?').count();
                let explain = format!("EXPLAIN QUERY PLAN {statement}");
                let mut prepared = self.connection.prepare(&explain).unwrap();
                assert!(prepared.parameter_count() <= params);
                let mut rows = prepared.raw_query();
                let mut plan = String::new();
                while let Some(row) = rows.next().unwrap() {
                    plan.push_str(&row.get::<_, String>("detail").unwrap());
                    plan.push('\n');
                }
                (statement, plan)
            })
            .collect()
    }

    /// Walks a list of runs to its end. `between` happens after each page.
    pub fn walk_runs(
        &self,
        filter: &RunFilter,
        limit: usize,
        mut between: impl FnMut(&Db),
    ) -> Vec<Value> {
        let mut all = Vec::new();
        let mut cursor = None;
        for _page in 0..1_000 {
            let call = TenantCall::ListRuns {
                filter: filter.clone(),
                limit,
                cursor,
            };
            let (items, next) = self.items(call);
            assert!(items.len() <= limit);
            all.extend(items);
            between(self);
            match next {
                Some(next) => cursor = Some(next),
                None => return all,
            }
        }
        panic!("the list has no end");
    }

    pub fn letters(&self, filter: DeadLetterFilter) -> Vec<Value> {
        self.items(TenantCall::ListDeadLetters {
            filter,
            limit: 200,
            cursor: None,
        })
        .0
    }

    pub fn items(&self, call: TenantCall) -> (Vec<Value>, Option<String>) {
        match self.call(call) {
            TenantAnswer::Items { items, next_cursor } => (
                items.iter().map(|item| value(item.get())).collect(),
                next_cursor,
            ),
            other => panic!("{other:?}"),
        }
    }
}

pub fn value(text: &str) -> Value {
    json::read(text.as_bytes()).unwrap()
}

pub fn json(text: &str) -> Json {
    Json::new(value(text))
}

pub fn ids(items: &[Value]) -> Vec<&str> {
    items
        .iter()
        .map(|item| item["run_id"].as_str().unwrap())
        .collect()
}

/// The `n`th run of a burst: all made in one millisecond.
pub fn run_id(n: u64) -> RunId {
    run_at(NOON, n)
}

pub fn run_at(at: Timestamp, n: u64) -> RunId {
    let [a, b, c, d, e, f, g, h] = n.to_be_bytes();
    RunId::new(at, [0, 0, a, b, c, d, e, f, g, h])
}

pub fn letter_id(n: u64) -> DeadLetterId {
    DeadLetterId::parse(&run_id(n).as_str().replace("run_", "dl_")).unwrap()
}

pub fn request(route: &str, key: &str, fingerprint: &str) -> RequestRef {
    RequestRef {
        route: route.into(),
        key: key.into(),
        fingerprint: fingerprint.into(),
    }
}

pub fn tags(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs
        .iter()
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
        .collect()
}

/// A run of `buyer`; the tenant must have it.
pub fn register_buyer(run_id: RunId) -> TenantCall {
    TenantCall::Register {
        run_id,
        maker: Maker::Agent {
            reference: "buyer".into(),
            input: Json::null(),
        },
        tags: tags(&[("order", "42")]),
        request: None,
        root_run_id: None,
        now: NOON,
    }
}

pub fn register(run_id: RunId, request: Option<RequestRef>) -> TenantCall {
    register_at(run_id, request, NOON)
}

pub fn register_at(run_id: RunId, request: Option<RequestRef>, now: Timestamp) -> TenantCall {
    TenantCall::Register {
        run_id,
        maker: Maker::Plan { tools: vec![] },
        tags: tags(&[("order", "42")]),
        request,
        root_run_id: None,
        now,
    }
}

pub fn projection(run_id: RunId, seq: u64, status: &str) -> Projection {
    let ended = ["completed", "failed", "cancelled"].contains(&status);
    let updated_at = NOON.plus_ms(i64::try_from(seq).unwrap());
    Projection {
        tenant_id: TenantId::parse("acme").unwrap(),
        run_id,
        seq,
        status: status.into(),
        agent: Some("buyer@2".into()),
        tags: tags(&[("order", "42")]),
        created_at: NOON,
        updated_at,
        ended_at: ended.then_some(updated_at),
        quiet_until: None,
        dead_letters: vec![],
        approvals: Vec::new(),
    }
}

pub fn project(projections: Vec<Projection>) -> TenantCall {
    TenantCall::Project { projections }
}

pub fn projected_letter(n: u64, status: &str) -> ProjectedDeadLetter {
    let shown = format!(
        r#"{{"dead_letter_id":"{}","status":"{status}","n":1E5}}"#,
        letter_id(n)
    );
    ProjectedDeadLetter {
        dead_letter_id: letter_id(n),
        status: status.into(),
        reason: DeadLetterReason::UnknownTool,
        shown: serde_json::value::RawValue::from_string(shown).unwrap(),
    }
}

pub fn stray(n: u64, envelope: Value) -> StrayLetter {
    StrayLetter {
        dead_letter_id: letter_id(n),
        reason: DeadLetterReason::InvalidEnvelope,
        message: "it is no envelope".into(),
        errors: vec![json::Violation::new("/run_id", "is missing")],
        envelope: Json::new(envelope),
        now: NOON,
    }
}

/// A small generator of numbers that look random and are the same each time.
pub struct Dice(pub u64);

impl Dice {
    pub fn roll(&mut self, sides: u64) -> u64 {
        // xorshift64.
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % sides
    }
}
