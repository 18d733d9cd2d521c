//! The tables of a tenant, and whether the tenant exists.
//!
//! A written row and each entry of an index cost the same, a thousand times what a read row costs.
//! So nothing has a secondary index, and tables of small rows are `WITHOUT ROWID`: one row written
//! for an insert where a table with a hidden rowid would write its key's index too. Definitions and
//! dead letters keep the rowid (two rows for an insert): SQLite reads a whole record to compare it
//! in a `WITHOUT ROWID` table, and theirs are large and rarely written.

use crate::ports::{Fault, TenantAnswer};
use crate::sql::Sql;
use crate::words::Timestamp;

/// What the tables of this release are called by a later one that must change them.
const SCHEMA_VERSION: i64 = 1;

/// One statement each: a batch would hide which of them failed.
const TABLES: [&str; 9] = [
    // One row. `sweep_below`: where the sweeper goes on; see `sweep`.
    "CREATE TABLE IF NOT EXISTS tenant (
        id INTEGER PRIMARY KEY CHECK (id = 1),
        schema_version INTEGER NOT NULL,
        created_at INTEGER NOT NULL,
        sweep_below TEXT
    ) STRICT",
    // The latest version of each name. A deleted name keeps its row, so that numbering goes on.
    "CREATE TABLE IF NOT EXISTS definition_names (
        kind TEXT NOT NULL,
        name TEXT NOT NULL,
        version INTEGER NOT NULL,
        created_at INTEGER NOT NULL,
        deleted INTEGER NOT NULL,
        PRIMARY KEY (kind, name)
    ) STRICT, WITHOUT ROWID",
    "CREATE TABLE IF NOT EXISTS definitions (
        kind TEXT NOT NULL,
        name TEXT NOT NULL,
        version INTEGER NOT NULL,
        created_at INTEGER NOT NULL,
        definition TEXT NOT NULL,
        PRIMARY KEY (kind, name, version)
    ) STRICT",
    // The index of runs. `seq` is 0 while the run was only registered. Before `quiet_until` nothing
    // need be heard of the run.
    "CREATE TABLE IF NOT EXISTS runs (
        run_id TEXT NOT NULL PRIMARY KEY,
        seq INTEGER NOT NULL,
        status TEXT NOT NULL,
        agent TEXT,
        tags TEXT NOT NULL,
        created_at INTEGER NOT NULL,
        updated_at INTEGER NOT NULL,
        quiet_until INTEGER NOT NULL,
        ended_at INTEGER
    ) STRICT, WITHOUT ROWID",
    // Clients' keys. The day comes first, so that old ones are found without a further index.
    "CREATE TABLE IF NOT EXISTS requests (
        day INTEGER NOT NULL,
        route TEXT NOT NULL,
        key TEXT NOT NULL,
        fingerprint TEXT NOT NULL,
        run_id TEXT,
        status INTEGER,
        body TEXT,
        PRIMARY KEY (day, route, key)
    ) STRICT, WITHOUT ROWID",
    // `form` says what `body` is: `shown`, a run's letter as clients see it; `json` or `text`, the
    // envelope of a stray one. The large column is last, so that a scan need not walk over it.
    "CREATE TABLE IF NOT EXISTS dead_letters (
        dead_letter_id TEXT NOT NULL PRIMARY KEY,
        run_id TEXT,
        form TEXT NOT NULL,
        reason TEXT NOT NULL,
        status TEXT NOT NULL,
        created_at INTEGER,
        settled_at INTEGER,
        comment TEXT,
        request_route TEXT,
        request_key TEXT,
        request_fingerprint TEXT,
        message TEXT,
        errors TEXT,
        body TEXT NOT NULL
    ) STRICT",
    "CREATE TABLE IF NOT EXISTS keys (
        key_id TEXT NOT NULL PRIMARY KEY,
        name TEXT NOT NULL,
        role TEXT NOT NULL,
        secret_sha256 TEXT NOT NULL,
        created_at INTEGER NOT NULL,
        revoked_at INTEGER
    ) STRICT, WITHOUT ROWID",
    APPROVALS,
    TREES,
];

/// The approvals of the tenant's runs, as clients see them.
pub const APPROVALS: &str = "CREATE TABLE IF NOT EXISTS approvals (
        approval_id TEXT NOT NULL PRIMARY KEY,
        run_id TEXT NOT NULL,
        status TEXT NOT NULL,
        body TEXT NOT NULL
    ) STRICT";

/// How many runs have been started below a run, on all levels together.
pub const TREES: &str = "CREATE TABLE IF NOT EXISTS trees (
        root_run_id TEXT NOT NULL PRIMARY KEY,
        started INTEGER NOT NULL
    ) STRICT, WITHOUT ROWID";

/// The models that failed last, and until when they rest.
pub const MODELS: &str = "CREATE TABLE IF NOT EXISTS models (
        model TEXT NOT NULL PRIMARY KEY,
        failures INTEGER NOT NULL,
        rests_until INTEGER NOT NULL
    ) STRICT, WITHOUT ROWID";

/// Makes a table that tenants of an earlier release do not have.
pub fn ensure(sql: &impl Sql, table: &str) -> Result<(), Fault> {
    sql.exec(table, &[]).map(drop)
}

/// Makes the tenant: `Done`, or `Exists` where it was made before. Rows written: 1, and the tables'.
pub fn create(sql: &impl Sql, now: Timestamp) -> Result<TenantAnswer, Fault> {
    if is_created(sql)? {
        return Ok(TenantAnswer::Exists);
    }
    sql.transaction(|| {
        for table in TABLES {
            sql.exec(table, &[])?;
        }
        sql.exec(
            "INSERT INTO tenant (id, schema_version, created_at) VALUES (1, ?1, ?2)",
            &[SCHEMA_VERSION.into(), now.into()],
        )?;
        Ok(TenantAnswer::Done)
    })
}

/// Whether the tenant was made. The table and its row are made together, so the table tells. Reads
/// the dozen rows of SQLite's own list of tables, writes nothing.
pub fn is_created(sql: &impl Sql) -> Result<bool, Fault> {
    has_table(sql, "tenant")
}

pub fn has_table(sql: &impl Sql, name: &str) -> Result<bool, Fault> {
    let found = sql.exec(
        "SELECT name FROM sqlite_master WHERE type = 'table' AND name = ?1",
        &[name.into()],
    )?;
    Ok(!found.is_empty())
}
