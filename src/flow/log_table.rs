//! A run's log as a table: one row a turn.

use std::cell::Cell;

use crate::ports::Fault;
use crate::run::Row;
use crate::sql::{Sql, SqlRow, SqlValue};
use crate::words::{RunId, TenantId};

use super::home::PAGE_BYTES_MAX;

/// Rows that are loaded at a time: what is under way from the database stands in memory several
/// times, so a long log comes in pieces.
const LOADED_ROWS_MAX: usize = 1_000;

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
        let mut loaded: Vec<Row> = Vec::new();
        loop {
            let seq = loaded.last().map_or(0, |row| row.seq);
            let piece = self.page_in("seq > ?1", "ASC", seq, LOADED_ROWS_MAX)?;
            let bytes: usize = piece.iter().map(|row| row.body.len()).sum();
            let is_last = piece.len() < LOADED_ROWS_MAX && bytes < PAGE_BYTES_MAX;
            loaded.extend(piece);
            if is_last {
                return Ok(loaded);
            }
        }
    }

    /// The rows from the one that holds entry `seq` on: at most `limit`, and no more once they hold
    /// [`PAGE_BYTES_MAX`], but always one beside the first.
    pub fn page(&self, seq: u64, limit: usize) -> Result<Vec<Row>, Fault> {
        let from = "seq >= (SELECT max(seq) FROM log WHERE seq <= ?1)";
        self.page_in(from, "ASC", seq, limit)
    }

    /// The rows up to the one that holds entry `seq`, in order: at most `limit`, the last ones, and
    /// no more once they hold [`PAGE_BYTES_MAX`], but always one beside the last.
    pub fn page_back(&self, seq: u64, limit: usize) -> Result<Vec<Row>, Fault> {
        self.page_in("seq <= ?1", "DESC", seq, limit)
    }

    fn page_in(&self, from: &str, order: &str, seq: u64, limit: usize) -> Result<Vec<Row>, Fault> {
        if !self.exists()? {
            return Ok(Vec::new());
        }
        // Sizes first: a body is only read when its row is of the page.
        let statement = format!(
            "SELECT log.seq, log.body FROM (
               SELECT seq, row_number() OVER (ORDER BY seq {order}) AS place,
                 sum(bytes) OVER (ORDER BY seq {order}) - bytes AS before
               FROM (SELECT seq, octet_length(body) AS bytes FROM log
                     WHERE {from} ORDER BY seq {order} LIMIT ?2)
             ) AS near JOIN log ON log.seq = near.seq
             WHERE before < ?3 OR place = 2 ORDER BY log.seq"
        );
        let params = [int(seq), int(limit as u64), int(PAGE_BYTES_MAX as u64)];
        rows(self.sql.exec(&statement, &params)?)
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
