//! The inbox of a tenant: what its runs ask people, as the runs told of it.

use serde_json::value::RawValue;

use crate::ports::{ApprovalFilter, Fault, ProjectedApproval, TenantAnswer};
use crate::sql::Sql;
use crate::words::limits::ROW_BYTES_MAX;
use crate::words::{ApprovalId, RunId};

use super::page::{self, EXAMINED_MAX, Walk, count};
use super::{broken, schema};

/// Takes what a run says of one of its approvals; once it is not pending it is never pending again.
/// Rows written: 2 for a new one, 1 for a changed one, else 0.
pub fn project(sql: &impl Sql, run_id: &RunId, approval: &ProjectedApproval) -> Result<(), Fault> {
    let shown = approval.shown.get();
    let id = approval.approval_id.as_str();
    if shown.len() > ROW_BYTES_MAX {
        return Err(broken("indexing an approval", id, "it does not fit a row"));
    }
    schema::ensure(sql, schema::APPROVALS)?;
    sql.exec(
        "INSERT INTO approvals (approval_id, run_id, status, body) VALUES (?1, ?2, ?3, ?4)
         ON CONFLICT (approval_id) DO UPDATE SET status = excluded.status, body = excluded.body
            WHERE run_id = excluded.run_id AND status = 'pending'
              AND (status <> excluded.status OR body <> excluded.body)",
        &[
            id.into(),
            run_id.as_str().into(),
            approval.status.as_str().into(),
            shown.into(),
        ],
    )?;
    Ok(())
}

/// Approvals that match, newest first. Rows read: at most twice [`EXAMINED_MAX`], and those given.
pub fn list(
    sql: &impl Sql,
    filter: &ApprovalFilter,
    limit: usize,
    cursor: Option<&str>,
) -> Result<TenantAnswer, Fault> {
    let limit = page::clamp(limit);
    let walk = Walk::new(sql, "approvals", filter)?;
    let below = match cursor {
        None => page::TOP,
        Some(cursor) => match walk.position(cursor)? {
            Some(position) => position,
            None => return Ok(TenantAnswer::BadCursor),
        },
    };
    if !schema::has_table(sql, "approvals")? {
        return Ok(TenantAnswer::Items {
            items: Vec::new(),
            next_cursor: None,
        });
    }
    // The bodies are measured here, and read one by one for what is given.
    let found = sql.exec(
        "SELECT approval_id, bytes
         FROM (SELECT approval_id, run_id, status, octet_length(body) AS bytes
               FROM approvals WHERE approval_id < ?1 ORDER BY approval_id DESC LIMIT ?2)
         WHERE (?3 IS NULL OR run_id = ?3) AND (?4 IS NULL OR status = ?4)
         ORDER BY approval_id DESC LIMIT ?5",
        &[
            below.into(),
            count(EXAMINED_MAX).into(),
            filter.run_id.as_ref().map(RunId::as_str).into(),
            filter.status.as_deref().into(),
            count(limit.saturating_add(1)).into(),
        ],
    )?;
    let taken = page::fitting(&found, limit)?;
    let mut items: Vec<Box<RawValue>> = Vec::with_capacity(taken);
    for row in found.iter().take(taken) {
        let id = row.text("approval_id")?;
        let body = sql.exec(
            "SELECT body FROM approvals WHERE approval_id = ?1",
            &[id.into()],
        )?;
        let body = body
            .first()
            .ok_or_else(|| broken("listing approvals", id, "it is gone"))?;
        items.push(body.json("body")?);
    }
    let last = found.get(taken.saturating_sub(1));
    let position = match last {
        Some(last) if taken < found.len() => Some(last.text("approval_id")?.to_owned()),
        _ => page::examined_to(sql, "approvals", "approval_id", below, "")?,
    };
    let next_cursor = position
        .map(|position| walk.cursor(&position))
        .transpose()?;
    Ok(TenantAnswer::Items { items, next_cursor })
}

/// Which run asks it, and the approval as it was told last. Rows read: 1.
pub fn find(sql: &impl Sql, id: &ApprovalId) -> Result<TenantAnswer, Fault> {
    if !schema::has_table(sql, "approvals")? {
        return Ok(TenantAnswer::NotFound);
    }
    let rows = sql.exec(
        "SELECT run_id, body FROM approvals WHERE approval_id = ?1",
        &[id.as_str().into()],
    )?;
    match rows.first() {
        Some(row) => Ok(TenantAnswer::ApprovalFound {
            run_id: row.word("run_id")?,
            shown: row.json("body")?,
        }),
        None => Ok(TenantAnswer::NotFound),
    }
}
