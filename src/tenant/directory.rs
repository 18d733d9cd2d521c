//! The list of all tenants: kept by one object of its own, which is no tenant.

use crate::ports::{Fault, TenantAnswer};
use crate::sql::Sql;
use crate::words::{TenantId, Timestamp};

use super::page::count;
use super::schema::has_table;

/// Ids of one answer at most: each is at most 64 bytes.
const LIMIT_MAX: usize = 1_000;

/// Adds a tenant: `Done`, or `Exists`. Rows written: 1 or 0; the first makes the table.
pub fn add(sql: &impl Sql, tenant_id: &TenantId, now: Timestamp) -> Result<TenantAnswer, Fault> {
    sql.transaction(|| {
        sql.exec(
            "CREATE TABLE IF NOT EXISTS directory (
                tenant_id TEXT NOT NULL PRIMARY KEY,
                created_at INTEGER NOT NULL
            ) STRICT, WITHOUT ROWID",
            &[],
        )?;
        let added = sql.exec(
            "INSERT INTO directory (tenant_id, created_at) VALUES (?1, ?2)
             ON CONFLICT (tenant_id) DO NOTHING RETURNING tenant_id",
            &[tenant_id.as_str().into(), now.into()],
        )?;
        Ok(if added.is_empty() {
            TenantAnswer::Exists
        } else {
            TenantAnswer::Done
        })
    })
}

/// Tenants in the order of their ids, from the one after `after`. Rows read: those given.
pub fn list(sql: &impl Sql, after: Option<&TenantId>, limit: usize) -> Result<TenantAnswer, Fault> {
    if !has_table(sql, "directory")? {
        return Ok(TenantAnswer::Tenants(Vec::new()));
    }
    let rows = sql.exec(
        "SELECT tenant_id FROM directory WHERE tenant_id > ?1 ORDER BY tenant_id LIMIT ?2",
        &[
            after.map_or("", TenantId::as_str).into(),
            count(limit.clamp(1, LIMIT_MAX)).into(),
        ],
    )?;
    let tenants = rows
        .iter()
        .map(|row| row.word("tenant_id"))
        .collect::<Result<_, _>>()?;
    Ok(TenantAnswer::Tenants(tenants))
}
