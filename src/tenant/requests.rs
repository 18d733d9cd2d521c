//! Clients' idempotency keys: a request under a key that is known is not carried out twice.
//!
//! A key is one of a route: the pair is the record's key, never a joined text. The fingerprint is
//! compared before anything else, so a key that was used for another body is refused whatever became
//! of the first request.
//!
//! Records are stored under the day they were made on, and looked up on each day of the retention.
//! That costs a few seeks a lookup and makes the old ones the first of the table: no index pays for
//! their removal.

use crate::ports::{Fault, TenantAnswer};
use crate::run::event::RequestRef;
use crate::sql::Sql;
use crate::words::limits::{IDEMPOTENCY_RETENTION_MS, ROW_BYTES_MAX};
use crate::words::{RunId, Timestamp};

use super::broken;

const DAY_MS: i64 = 24 * 60 * 60 * 1_000;
/// A record of this many days ago may still be in its retention.
const DAYS: i64 = IDEMPOTENCY_RETENTION_MS / DAY_MS;
/// Expired records removed with each new one: more than come in, so they never pile up.
const EXPIRED_PER_INSERT: i64 = 20;

const _: () = assert!(
    DAYS == 7 && IDEMPOTENCY_RETENTION_MS % DAY_MS == 0,
    "FIND names seven days"
);

/// Tomorrow too: the clock of whoever wrote the record may have been ahead.
const FIND: &str = "SELECT day, fingerprint, run_id, status, body FROM requests
    WHERE day IN (?1 + 1, ?1, ?1 - 1, ?1 - 2, ?1 - 3, ?1 - 4, ?1 - 5, ?1 - 6, ?1 - 7)
      AND route = ?2 AND key = ?3
    ORDER BY day DESC LIMIT 1";

/// A request that was begun under a key.
pub struct Record {
    day: i64,
    pub fingerprint: String,
    /// The run it made, if it made one.
    pub run_id: Option<RunId>,
    /// The status and body it was answered with, once it was.
    pub answer: Option<(u16, String)>,
}

/// The record of a request's key. Rows read: at most 9.
pub fn find(sql: &impl Sql, request: &RequestRef, now: Timestamp) -> Result<Option<Record>, Fault> {
    find_on(sql, request, day_of(now))
}

fn find_on(sql: &impl Sql, request: &RequestRef, day: i64) -> Result<Option<Record>, Fault> {
    let rows = sql.exec(
        FIND,
        &[
            day.into(),
            request.route.as_str().into(),
            request.key.as_str().into(),
        ],
    )?;
    let Some(row) = rows.first() else {
        return Ok(None);
    };
    let status = row.int_or_null("status")?.map(u16::try_from).transpose();
    let status = status.map_err(|error| broken("reading a row", "status", error))?;
    let body = row.text_or_null("body")?.map(str::to_owned);
    Ok(Some(Record {
        day: row.int("day")?,
        fingerprint: row.text("fingerprint")?.to_owned(),
        run_id: match row.text_or_null("run_id")? {
            Some(_) => Some(row.word("run_id")?),
            None => None,
        },
        answer: status.zip(body),
    }))
}

/// Keeps a key that [`find`] did not find. Within a transaction. Rows written: 1, and at most
/// [`EXPIRED_PER_INSERT`] expired ones.
pub fn insert(
    sql: &impl Sql,
    request: &RequestRef,
    run_id: Option<&RunId>,
    now: Timestamp,
) -> Result<(), Fault> {
    remove_expired(sql, now, EXPIRED_PER_INSERT)?;
    sql.exec(
        "INSERT INTO requests (day, route, key, fingerprint, run_id) VALUES (?1, ?2, ?3, ?4, ?5)",
        &[
            day_of(now).into(),
            request.route.as_str().into(),
            request.key.as_str().into(),
            request.fingerprint.as_str().into(),
            run_id.map(RunId::as_str).into(),
        ],
    )?;
    Ok(())
}

/// Removes at most `limit` records whose retention is over. Rows read: about three where there are
/// none.
pub fn remove_expired(sql: &impl Sql, now: Timestamp, limit: i64) -> Result<(), Fault> {
    sql.exec(
        "DELETE FROM requests WHERE (day, route, key) IN
            (SELECT day, route, key FROM requests WHERE day < ?1 ORDER BY day LIMIT ?2)",
        &[(day_of(now) - DAYS).into(), limit.into()],
    )?;
    Ok(())
}

/// A request is about to be carried out: `Begun` (also where it was begun and never answered: what
/// it does can be done again), `Answered`, or `KeyReused`.
pub fn begin(sql: &impl Sql, request: &RequestRef, now: Timestamp) -> Result<TenantAnswer, Fault> {
    sql.transaction(|| {
        Ok(match find(sql, request, now)? {
            None => {
                insert(sql, request, None, now)?;
                TenantAnswer::Begun
            }
            Some(record) if record.fingerprint != request.fingerprint => TenantAnswer::KeyReused,
            Some(Record {
                answer: Some((status, body)),
                ..
            }) => TenantAnswer::Answered { status, body },
            Some(_) => TenantAnswer::Begun,
        })
    })
}

/// A request was carried out: `Done`. Where it was answered otherwise before, by another who carried
/// it out at the same time, that answer stands and is given: `Answered`. A key that was never begun,
/// or whose retention is over: `NotFound`.
pub fn finish(
    sql: &impl Sql,
    request: &RequestRef,
    status: u16,
    body: &str,
) -> Result<TenantAnswer, Fault> {
    if body.len() > ROW_BYTES_MAX {
        return Err(broken(
            "keeping an answer",
            &request.route,
            "it does not fit a row",
        ));
    }
    let newest = sql.exec("SELECT max(day) AS day FROM requests", &[])?;
    let newest = newest
        .first()
        .map(|row| row.int_or_null("day"))
        .transpose()?
        .flatten();
    let Some(newest) = newest else {
        return Ok(TenantAnswer::NotFound);
    };
    match find_on(sql, request, newest)? {
        None => Ok(TenantAnswer::NotFound),
        Some(record) if record.fingerprint != request.fingerprint => Ok(TenantAnswer::KeyReused),
        Some(Record {
            answer: Some(answer),
            ..
        }) => {
            let same = answer.0 == status && answer.1 == body;
            let (status, body) = answer;
            Ok(if same {
                TenantAnswer::Done
            } else {
                TenantAnswer::Answered { status, body }
            })
        }
        Some(record) => {
            sql.exec(
                "UPDATE requests SET status = ?4, body = ?5
                 WHERE day = ?1 AND route = ?2 AND key = ?3",
                &[
                    record.day.into(),
                    request.route.as_str().into(),
                    request.key.as_str().into(),
                    i64::from(status).into(),
                    body.into(),
                ],
            )?;
            Ok(TenantAnswer::Done)
        }
    }
}

fn day_of(time: Timestamp) -> i64 {
    time.ms().div_euclid(DAY_MS)
}
