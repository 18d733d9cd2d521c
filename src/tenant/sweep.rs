//! What the sweeper looks for: runs that have not ended and of which the index heard nothing for a
//! while. Their object is then asked whether they will wake by themselves.
//!
//! It goes through all runs, a page a call: a tenant with many sleeping runs must not have the same
//! few looked at for ever. Where a page ended is kept in the tenant's row, which is written only when
//! it changes: never while all runs fit one page and few of them are silent. While the page is
//! somewhere among older runs, half of a call is for the newest, where a birth that failed half way
//! shows soon: of those, the ones that fell silent last.

use std::collections::BTreeMap;

use crate::ports::{Fault, TenantAnswer};
use crate::sql::Sql;
use crate::words::{RunId, Timestamp};

use super::page::{self, EXAMINED_MAX, count};
use super::requests;

/// Expired keys of clients that one call removes at most.
const EXPIRED_PER_SWEEP: i64 = 200;
/// Runs one call names at most.
const LIMIT_MAX: usize = 1_000;

/// At most `limit` runs that have not ended and changed last before `before`, the longest silent
/// first. Rows read: at most three times [`EXAMINED_MAX`]. Rows written: 1 where the page moved, and
/// the expired keys removed.
pub fn stale(sql: &impl Sql, before: Timestamp, limit: usize) -> Result<TenantAnswer, Fault> {
    let limit = limit.clamp(1, LIMIT_MAX);
    sql.transaction(|| {
        requests::remove_expired(sql, before, EXPIRED_PER_SWEEP)?;
        let tenant = sql.exec("SELECT sweep_below FROM tenant", &[])?;
        let below = tenant
            .first()
            .map(|row| row.text_or_null("sweep_below"))
            .transpose()?;
        let silent = match below.flatten() {
            // The page begins with the newest.
            None => next_page(sql, None, before, limit)?,
            Some(below) => {
                let mut silent = among_newest(sql, before, limit / 2)?;
                let room = limit.saturating_sub(silent.len()).max(1);
                silent.extend(next_page(sql, Some(below), before, room)?);
                silent
            }
        };
        let mut runs: Vec<_> = silent.into_iter().collect();
        runs.sort_by(|(id_a, at_a), (id_b, at_b)| (at_a, id_a).cmp(&(at_b, id_b)));
        Ok(TenantAnswer::Stale(
            runs.into_iter().map(|(run_id, _)| run_id).collect(),
        ))
    })
}

type Silent = BTreeMap<RunId, Timestamp>;

fn among_newest(sql: &impl Sql, before: Timestamp, limit: usize) -> Result<Silent, Fault> {
    let rows = sql.exec(
        "SELECT run_id, quiet_until
         FROM (SELECT run_id, quiet_until, ended_at FROM runs ORDER BY run_id DESC LIMIT ?1)
         WHERE ended_at IS NULL AND quiet_until < ?2
         ORDER BY quiet_until DESC, run_id DESC LIMIT ?3",
        &[
            count(EXAMINED_MAX).into(),
            before.into(),
            count(limit).into(),
        ],
    )?;
    rows.iter()
        .map(|row| Ok((row.word("run_id")?, row.time("quiet_until")?)))
        .collect()
}

fn next_page(
    sql: &impl Sql,
    stored: Option<&str>,
    before: Timestamp,
    limit: usize,
) -> Result<Silent, Fault> {
    let below = stored.unwrap_or(page::TOP);
    let rows = sql.exec(
        "SELECT run_id, quiet_until
         FROM (SELECT run_id, quiet_until, ended_at FROM runs WHERE run_id < ?1
               ORDER BY run_id DESC LIMIT ?2)
         WHERE ended_at IS NULL AND quiet_until < ?3
         ORDER BY run_id DESC LIMIT ?4",
        &[
            below.into(),
            count(EXAMINED_MAX).into(),
            before.into(),
            count(limit).into(),
        ],
    )?;
    let next = match rows.last() {
        Some(last) if rows.len() >= limit => Some(last.text("run_id")?.to_owned()),
        _ => page::examined_to(sql, "runs", "run_id", below, "")?,
    };
    if next.as_deref() != stored {
        sql.exec("UPDATE tenant SET sweep_below = ?1", &[next.into()])?;
    }
    rows.iter()
        .map(|row| Ok((row.word("run_id")?, row.time("quiet_until")?)))
        .collect()
}

/// Has an ended run looked at again: `Done`, also where there is none. Rows written: 1 or 0.
pub fn reopen(sql: &impl Sql, run_id: &RunId) -> Result<TenantAnswer, Fault> {
    sql.exec(
        "UPDATE runs SET ended_at = NULL WHERE run_id = ?1 AND ended_at IS NOT NULL",
        &[run_id.as_str().into()],
    )?;
    Ok(TenantAnswer::Done)
}

/// Takes a run that was registered and never born out of the index: `Done`, also where there is
/// none. A run that has told of itself is not forgotten: `Exists`. Rows written: 1 or 0.
pub fn forget(sql: &impl Sql, run_id: &RunId) -> Result<TenantAnswer, Fault> {
    let rows = sql.exec(
        "SELECT seq FROM runs WHERE run_id = ?1",
        &[run_id.as_str().into()],
    )?;
    let Some(row) = rows.first() else {
        return Ok(TenantAnswer::Done);
    };
    if row.int("seq")? > 0 {
        return Ok(TenantAnswer::Exists);
    }
    sql.exec(
        "DELETE FROM runs WHERE run_id = ?1",
        &[run_id.as_str().into()],
    )?;
    Ok(TenantAnswer::Done)
}
