//! A tenant's API keys. Of a key's secret only the digest is known here.

use crate::ports::{Fault, TenantAnswer};
use crate::sql::Sql;
use crate::words::{KeyId, Timestamp};

/// Adds a key: `Done`, again where the same is asked twice; `Exists` where the id is another key's.
/// Rows written: 1 or 0.
pub fn create(
    sql: &impl Sql,
    key_id: &KeyId,
    name: &str,
    role: &str,
    secret_sha256: &str,
    now: Timestamp,
) -> Result<TenantAnswer, Fault> {
    let same = sql.exec(
        "SELECT secret_sha256 FROM keys WHERE key_id = ?1",
        &[key_id.as_str().into()],
    )?;
    if let Some(row) = same.first() {
        let again = constant_time_eq(row.text("secret_sha256")?, secret_sha256);
        return Ok(if again {
            TenantAnswer::Done
        } else {
            TenantAnswer::Exists
        });
    }
    sql.exec(
        "INSERT INTO keys (key_id, name, role, secret_sha256, created_at)
         VALUES (?1, ?2, ?3, ?4, ?5)",
        &[
            key_id.as_str().into(),
            name.into(),
            role.into(),
            secret_sha256.into(),
            now.into(),
        ],
    )?;
    Ok(TenantAnswer::Done)
}

/// Ends a key: `Done`, also where it had ended; `NotFound` where there was none. Rows written: 1 or 0.
pub fn revoke(sql: &impl Sql, key_id: &KeyId, now: Timestamp) -> Result<TenantAnswer, Fault> {
    let rows = sql.exec(
        "SELECT revoked_at FROM keys WHERE key_id = ?1",
        &[key_id.as_str().into()],
    )?;
    let Some(row) = rows.first() else {
        return Ok(TenantAnswer::NotFound);
    };
    if row.int_or_null("revoked_at")?.is_none() {
        sql.exec(
            "UPDATE keys SET revoked_at = ?2 WHERE key_id = ?1",
            &[key_id.as_str().into(), now.into()],
        )?;
    }
    Ok(TenantAnswer::Done)
}

/// Who holds a key that is in force and whose secret has this digest: `Key`, else `NotFound`. Asked
/// with every request: reads 1 row, writes none.
pub fn check(sql: &impl Sql, key_id: &KeyId, secret_sha256: &str) -> Result<TenantAnswer, Fault> {
    let rows = sql.exec(
        "SELECT role, secret_sha256 FROM keys WHERE key_id = ?1 AND revoked_at IS NULL",
        &[key_id.as_str().into()],
    )?;
    match rows.first() {
        Some(row) if constant_time_eq(row.text("secret_sha256")?, secret_sha256) => {
            Ok(TenantAnswer::Key {
                role: row.text("role")?.to_owned(),
            })
        }
        _ => Ok(TenantAnswer::NotFound),
    }
}

/// Whether two texts are the same, in a time that tells only their lengths.
fn constant_time_eq(a: &str, b: &str) -> bool {
    let differing = a
        .bytes()
        .zip(b.bytes())
        .fold(0, |differing, (a, b)| differing | (a ^ b));
    a.len() == b.len() && std::hint::black_box(differing) == 0
}
