//! A run's log as a table: one row a turn.

use std::cell::Cell;

use crate::ports::Fault;
use crate::run::Row;
use crate::sql::{Sql, SqlRow, SqlValue};
use crate::words::{RunId, TenantId};

use super::home::PAGE_BYTES_MAX;

/// The table is made with its first row, so that asking for a run that does not exist stores
/// nothing.
pub struct LogTable<S> {
    sql: S,
    exists: Cell<bool>,
}

impl<S: Sql> LogTable<S> {
    pub fn new(sql: S) -> Self {
        Self {
            sql,
            exists: Cell::new(false),
        }
    }

    pub fn sql(&self) -> &S {
        &self.sql
    }

    /// Every row, in order.
    pub fn load(&self) -> Result<Vec<Row>, Fault> {
        if !self.exists()? {
            return Ok(Vec::new());
        }
        rows(
            self.sql
                .exec("SELECT seq, body FROM log ORDER BY seq", &[])?,
        )
    }

    /// The rows from the one that holds entry `seq` on: at most `limit`, and no more once they hold
    /// [`PAGE_BYTES_MAX`], but always one beside the first.
    pub fn page(&self, seq: u64, limit: usize) -> Result<Vec<Row>, Fault> {
        if !self.exists()? {
            return Ok(Vec::new());
        }
        let statement = "SELECT seq, body FROM (
               SELECT seq, body, row_number() OVER (ORDER BY seq) AS place,
                 sum(octet_length(body)) OVER (ORDER BY seq) - octet_length(body) AS before
               FROM log WHERE seq >= (SELECT max(seq) FROM log WHERE seq <= ?1) ORDER BY seq LIMIT ?2
             ) WHERE before < ?3 OR place = 2 ORDER BY seq";
        let params = [int(seq), int(limit as u64), int(PAGE_BYTES_MAX as u64)];
        rows(self.sql.exec(statement, &params)?)
    }

    /// Appends rows, all or none. Costs one written row each.
    pub fn append(&self, rows: &[Row]) -> Result<(), Fault> {
        if !self.exists()? {
            self.sql.exec(
                "CREATE TABLE log (seq INTEGER PRIMARY KEY, body TEXT NOT NULL)",
                &[],
            )?;
            self.exists.set(true);
        }
        let insert = |row: &Row| {
            let params = [int(row.seq), row.body.as_str().into()];
            self.sql
                .exec("INSERT INTO log (seq, body) VALUES (?1, ?2)", &params)
                .map(drop)
        };
        match rows {
            [row] => insert(row),
            rows => self.sql.transaction(|| rows.iter().try_for_each(insert)),
        }
    }

    /// Remembers that the run, which does not exist, is called off by this parent. Costs two written
    /// rows and a table.
    pub fn bar(&self, tenant_id: &TenantId, parent_run_id: &RunId) -> Result<(), Fault> {
        self.sql.exec(
            "CREATE TABLE IF NOT EXISTS barred (tenant_id TEXT NOT NULL, parent_run_id TEXT NOT NULL,
               PRIMARY KEY (tenant_id, parent_run_id)) WITHOUT ROWID",
            &[],
        )?;
        self.sql.exec(
            "INSERT OR IGNORE INTO barred (tenant_id, parent_run_id) VALUES (?1, ?2)",
            &[tenant_id.as_str().into(), parent_run_id.as_str().into()],
        )?;
        Ok(())
    }

    pub fn is_barred(&self, tenant_id: &TenantId, parent_run_id: &RunId) -> Result<bool, Fault> {
        if !self.has_table("barred")? {
            return Ok(false);
        }
        let found = self.sql.exec(
            "SELECT 1 AS barred FROM barred WHERE tenant_id = ?1 AND parent_run_id = ?2",
            &[tenant_id.as_str().into(), parent_run_id.as_str().into()],
        )?;
        Ok(!found.is_empty())
    }

    fn has_table(&self, name: &str) -> Result<bool, Fault> {
        let statement = "SELECT name FROM sqlite_master WHERE name = ?1";
        Ok(!self.sql.exec(statement, &[name.into()])?.is_empty())
    }

    fn exists(&self) -> Result<bool, Fault> {
        if !self.exists.get() {
            self.exists.set(self.has_table("log")?);
        }
        Ok(self.exists.get())
    }
}

fn int(number: u64) -> SqlValue {
    SqlValue::Int(i64::try_from(number).unwrap_or(i64::MAX))
}

fn rows(found: Vec<SqlRow>) -> Result<Vec<Row>, Fault> {
    found
        .iter()
        .map(|row| {
            let seq = u64::try_from(row.int("seq")?).unwrap_or(0);
            Ok(Row {
                seq,
                body: row.text("body")?.to_owned(),
            })
        })
        .collect()
}
