//! Pages of a list: how far one call looks, and the cursor that goes on from there.

use serde::Serialize;

use crate::ports::Fault;
use crate::sql::{Sql, SqlRow};
use crate::words::limits::LIST_LIMIT_MAX;
use crate::words::sha256_hex;

use super::broken;

/// Rows one call examines at most. A filter that matches little ends a page early, with a cursor.
pub const EXAMINED_MAX: usize = 2_000;
/// Bytes of large items in one page; the first item is always given. With 200 envelopes of full
/// size a page would not fit the isolate's memory.
pub const PAGE_BYTES_MAX: i64 = 4_000_000;
/// Sorts after every id and before nothing.
pub const TOP: &str = "~";

/// Characters of a cursor's check.
const CHECK_LEN: usize = 16;

/// What a cursor is good for: this list of this tenant under this filter.
#[derive(Serialize)]
pub struct Walk<'a, F> {
    list: &'a str,
    tenant_created_at: i64,
    filter: &'a F,
}

impl<'a, F: Serialize> Walk<'a, F> {
    /// Reads one row: the tenant's birth tells its cursors from other tenants'.
    pub fn new(sql: &impl Sql, list: &'a str, filter: &'a F) -> Result<Self, Fault> {
        let rows = sql.exec("SELECT created_at FROM tenant", &[])?;
        let row = rows
            .first()
            .ok_or_else(|| broken("listing", list, "the tenant has no row"))?;
        Ok(Self {
            list,
            tenant_created_at: row.int("created_at")?,
            filter,
        })
    }

    /// The cursor of what comes after `position`, which is the full sort key of the last item.
    pub fn cursor(&self, position: &str) -> Result<String, Fault> {
        Ok(format!("{position}.{}", self.check(position)?))
    }

    /// The position a cursor holds. `None`: it was not made by [`Self::cursor`] of the same walk.
    pub fn position<'c>(&self, cursor: &'c str) -> Result<Option<&'c str>, Fault> {
        let Some((position, check)) = cursor.rsplit_once('.') else {
            return Ok(None);
        };
        Ok((self.check(position)? == check).then_some(position))
    }

    fn check(&self, position: &str) -> Result<String, Fault> {
        // JSON, so that no two walks and positions run together into one text.
        let subject = serde_json::to_string(&(self, position))
            .map_err(|error| broken("making a cursor", self.list, error))?;
        let mut check = sha256_hex(subject.as_bytes());
        check.truncate(CHECK_LEN);
        Ok(check)
    }
}

/// A limit within the contract's bounds.
pub fn clamp(limit: usize) -> usize {
    limit.clamp(1, LIST_LIMIT_MAX)
}

/// How many of `found` a page takes: at most `limit` and, by their `bytes` columns, about
/// [`PAGE_BYTES_MAX`].
pub fn fitting(found: &[SqlRow], limit: usize) -> Result<usize, Fault> {
    let mut total = 0_i64;
    for (count, row) in found.iter().take(limit).enumerate() {
        total = total.saturating_add(row.int("bytes")?);
        if total > PAGE_BYTES_MAX && count > 0 {
            return Ok(count);
        }
    }
    Ok(found.len().min(limit))
}

/// Where a page that examined [`EXAMINED_MAX`] rows of `table` below `below` goes on. `None`: there
/// was nothing further. Rows read: those examined.
pub fn examined_to(
    sql: &impl Sql,
    table: &str,
    id: &str,
    below: &str,
    from: &str,
) -> Result<Option<String>, Fault> {
    let rows = sql.exec(
        &format!(
            "SELECT {id} AS id FROM {table} WHERE {id} < ?1 AND {id} >= ?2
             ORDER BY {id} DESC LIMIT 2 OFFSET ?3"
        ),
        &[below.into(), from.into(), count(EXAMINED_MAX - 1).into()],
    )?;
    match rows.as_slice() {
        [last, _next] => Ok(Some(last.text("id")?.to_owned())),
        _ => Ok(None),
    }
}

/// A count as SQLite takes it.
pub fn count(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}
