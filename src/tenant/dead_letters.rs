//! Dead letters of a tenant in one list: those of its runs, as the runs tell of them, and stray ones
//! that no run could take, which are kept and settled here.

use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};

use crate::json::{self, Value};
use crate::ports::{DeadLetterFilter, Fault, ProjectedDeadLetter, StrayLetter, TenantAnswer};
use crate::run::event::{DeadLetterReason, RequestRef};
use crate::sql::{Sql, SqlRow};
use crate::words::limits::ROW_BYTES_MAX;
use crate::words::{DeadLetterId, RunId, Timestamp};

use super::broken;
use super::page::{self, EXAMINED_MAX, Walk, count};

/// The `form` of a row: what its `body` is.
const SHOWN: &str = "shown";
const ENVELOPE_JSON: &str = "json";
const ENVELOPE_TEXT: &str = "text";

/// The status of a letter that nobody has settled.
const OPEN: &str = "open";

const BY_ID: &str = "SELECT dead_letter_id, run_id, form, reason, status, created_at, settled_at,
        request_route, request_key, request_fingerprint, message, errors, body
    FROM dead_letters WHERE dead_letter_id = ?1";

/// A stray letter as clients see it, with the members of a run's letter.
#[derive(Serialize)]
struct StrayView<'a> {
    dead_letter_id: &'a str,
    status: &'a str,
    reason: &'a str,
    message: &'a str,
    run_id: Option<&'a str>,
    step_index: Option<u32>,
    envelope: Box<RawValue>,
    errors: Box<RawValue>,
    /// No tool was ever called for it.
    attempts: [u8; 0],
    created_at: Timestamp,
    settled_at: Option<Timestamp>,
}

/// Keeps a stray letter: `Done`, also where it was kept before. Rows written: 2 or 0.
pub fn keep(sql: &impl Sql, letter: &StrayLetter) -> Result<TenantAnswer, Fault> {
    let subject = letter.dead_letter_id.as_str();
    let run_id = letter.envelope.get("run_id").and_then(Value::as_str);
    let run_id = run_id.filter(|text| RunId::parse(text).is_ok());
    // Text that was not JSON is kept as it came: escaped, it may take six times its bytes.
    let (form, body) = match &*letter.envelope {
        Value::String(text) => (ENVELOPE_TEXT, text.clone()),
        envelope => (ENVELOPE_JSON, json::write(envelope)),
    };
    let errors = serde_json::to_string(&letter.errors)
        .map_err(|error| broken("keeping a dead letter", subject, error))?;
    if body.len() + errors.len() + letter.message.len() > ROW_BYTES_MAX {
        return Err(broken(
            "keeping a dead letter",
            subject,
            "it does not fit a row",
        ));
    }
    sql.exec(
        "INSERT INTO dead_letters
            (dead_letter_id, run_id, form, reason, status, created_at, message, errors, body)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9) ON CONFLICT (dead_letter_id) DO NOTHING",
        &[
            subject.into(),
            run_id.into(),
            form.into(),
            reason_text(letter.reason)?.into(),
            OPEN.into(),
            letter.now.into(),
            letter.message.as_str().into(),
            errors.into(),
            body.into(),
        ],
    )?;
    Ok(TenantAnswer::Done)
}

/// Takes what a run says of one of its letters; once it is settled it is never open again. Rows written: 2
/// for a new letter, 1 for a changed one, else 0.
pub fn project(sql: &impl Sql, run_id: &RunId, letter: &ProjectedDeadLetter) -> Result<(), Fault> {
    let shown = letter.shown.get();
    if shown.len() > ROW_BYTES_MAX {
        let subject = letter.dead_letter_id.as_str();
        return Err(broken(
            "indexing a dead letter",
            subject,
            "it does not fit a row",
        ));
    }
    sql.exec(
        "INSERT INTO dead_letters (dead_letter_id, run_id, form, reason, status, body)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6)
         ON CONFLICT (dead_letter_id) DO UPDATE
            SET reason = excluded.reason, status = excluded.status, body = excluded.body
            WHERE form = excluded.form AND run_id = excluded.run_id AND status = 'open'
              AND (status <> excluded.status OR body <> excluded.body)",
        &[
            letter.dead_letter_id.as_str().into(),
            run_id.as_str().into(),
            SHOWN.into(),
            reason_text(letter.reason)?.into(),
            letter.status.as_str().into(),
            shown.into(),
        ],
    )?;
    Ok(())
}

/// Letters that match, newest first. Rows read: at most twice [`EXAMINED_MAX`], and those given.
pub fn list(
    sql: &impl Sql,
    filter: &DeadLetterFilter,
    limit: usize,
    cursor: Option<&str>,
) -> Result<TenantAnswer, Fault> {
    let limit = page::clamp(limit);
    let walk = Walk::new(sql, "dead_letters", filter)?;
    let below = match cursor {
        None => page::TOP,
        Some(cursor) => match walk.position(cursor)? {
            Some(position) => position,
            None => return Ok(TenantAnswer::BadCursor),
        },
    };
    // The bodies are measured here, and read one by one for what is given.
    let found = sql.exec(
        "SELECT dead_letter_id, bytes
         FROM (SELECT dead_letter_id, run_id, reason, status, octet_length(body) AS bytes
               FROM dead_letters WHERE dead_letter_id < ?1
               ORDER BY dead_letter_id DESC LIMIT ?2)
         WHERE (?3 IS NULL OR run_id = ?3) AND (?4 IS NULL OR reason = ?4)
           AND (?5 IS NULL OR status = ?5)
         ORDER BY dead_letter_id DESC LIMIT ?6",
        &[
            below.into(),
            count(EXAMINED_MAX).into(),
            filter.run_id.as_ref().map(RunId::as_str).into(),
            filter.reason.as_deref().into(),
            filter.status.as_deref().into(),
            count(limit.saturating_add(1)).into(),
        ],
    )?;
    let taken = page::fitting(&found, limit)?;
    let mut items = Vec::with_capacity(taken);
    for row in found.iter().take(taken) {
        let id = row.text("dead_letter_id")?;
        let letter = sql.exec(BY_ID, &[id.into()])?;
        let letter = letter
            .first()
            .ok_or_else(|| broken("listing dead letters", id, "it is gone"))?;
        items.push(shown(letter)?);
    }
    let last = found.get(taken.saturating_sub(1));
    let position = match last {
        Some(last) if taken < found.len() => Some(last.text("dead_letter_id")?.to_owned()),
        _ => page::examined_to(sql, "dead_letters", "dead_letter_id", below, "")?,
    };
    let next_cursor = position
        .map(|position| walk.cursor(&position))
        .transpose()?;
    Ok(TenantAnswer::Items { items, next_cursor })
}

/// Where a letter is: `DeadLetterFound` with the run whose log holds it, or with none for a stray
/// one. Rows read: 1.
pub fn find(sql: &impl Sql, id: &DeadLetterId) -> Result<TenantAnswer, Fault> {
    match sql.exec(BY_ID, &[id.as_str().into()])?.first() {
        Some(row) => found(row),
        None => Ok(TenantAnswer::NotFound),
    }
}

/// Settles a stray letter, once. `DeadLetterFound` with the letter as it then is, and the same again
/// for the same request; `KeyReused` where the client's key settled it with another body;
/// `AlreadySettled`; `NotFound` where there is no stray letter of that id. Rows written: 1 or 0.
pub fn settle(
    sql: &impl Sql,
    id: &DeadLetterId,
    status: &str,
    comment: Option<String>,
    request: Option<&RequestRef>,
    now: Timestamp,
) -> Result<TenantAnswer, Fault> {
    sql.transaction(|| {
        let rows = sql.exec(BY_ID, &[id.as_str().into()])?;
        let Some(row) = rows.first() else {
            return Ok(TenantAnswer::NotFound);
        };
        if row.text("form")? == SHOWN {
            return Ok(TenantAnswer::NotFound);
        }
        if row.text("status")? != OPEN {
            return settled_before(row, request);
        }
        sql.exec(
            "UPDATE dead_letters SET status = ?2, settled_at = ?3, comment = ?4,
                request_route = ?5, request_key = ?6, request_fingerprint = ?7
             WHERE dead_letter_id = ?1",
            &[
                id.as_str().into(),
                status.into(),
                now.into(),
                comment.into(),
                request.map(|request| request.route.as_str()).into(),
                request.map(|request| request.key.as_str()).into(),
                request.map(|request| request.fingerprint.as_str()).into(),
            ],
        )?;
        find(sql, id)
    })
}

fn settled_before(row: &SqlRow, request: Option<&RequestRef>) -> Result<TenantAnswer, Fault> {
    if let Some(request) = request
        && row.text_or_null("request_route")? == Some(request.route.as_str())
        && row.text_or_null("request_key")? == Some(request.key.as_str())
    {
        let same = row.text("request_fingerprint")? == request.fingerprint;
        return if same {
            found(row)
        } else {
            Ok(TenantAnswer::KeyReused)
        };
    }
    Ok(TenantAnswer::AlreadySettled {
        status: row.text("status")?.to_owned(),
        at: row.time("settled_at")?,
    })
}

fn found(row: &SqlRow) -> Result<TenantAnswer, Fault> {
    let of_run = row.text("form")? == SHOWN;
    Ok(TenantAnswer::DeadLetterFound {
        run_id: if of_run {
            Some(row.word("run_id")?)
        } else {
            None
        },
        shown: shown(row)?,
    })
}

/// A letter as clients see it.
fn shown(row: &SqlRow) -> Result<Box<RawValue>, Fault> {
    let id = row.text("dead_letter_id")?;
    let unwritable = |error| broken("showing a dead letter", id, error);
    let envelope = match row.text("form")? {
        SHOWN => return row.json("body"),
        ENVELOPE_TEXT => to_raw_value(row.text("body")?).map_err(unwritable)?,
        _ => row.json("body")?,
    };
    to_raw_value(&StrayView {
        dead_letter_id: id,
        status: row.text("status")?,
        reason: row.text("reason")?,
        message: row.text("message")?,
        run_id: row.text_or_null("run_id")?,
        step_index: None,
        envelope,
        errors: row.json("errors")?,
        attempts: [],
        created_at: row.time("created_at")?,
        settled_at: row.time_or_null("settled_at")?,
    })
    .map_err(unwritable)
}

/// A reason as it is written everywhere.
fn reason_text(reason: DeadLetterReason) -> Result<String, Fault> {
    match serde_json::to_value(reason) {
        Ok(Value::String(text)) => Ok(text),
        Ok(_) => Err(broken("writing a reason", "reason", "it is not a string")),
        Err(error) => Err(broken("writing a reason", "reason", error)),
    }
}
