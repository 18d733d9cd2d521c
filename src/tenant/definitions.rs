//! Tools and agents: each name has versions 1, 2, …, and a version never changes.

use std::collections::BTreeMap;

use crate::json::{self, Json};
use crate::ports::{Definition, DefinitionKind, Fault, TenantAnswer};
use crate::run::event::PinnedTool;
use crate::sql::{Sql, SqlRow};
use crate::words::Timestamp;
use crate::words::limits::ROW_BYTES_MAX;

use super::broken;
use super::page::{self, Walk, count};

/// Keeps a definition: the latest version where it says the same, else the next. Numbering goes on
/// after a deletion. Rows written: 3 or 0.
pub fn put(
    sql: &impl Sql,
    kind: DefinitionKind,
    name: String,
    definition: Json,
    now: Timestamp,
) -> Result<TenantAnswer, Fault> {
    let text = json::write(&definition);
    if text.len() > ROW_BYTES_MAX {
        return Err(broken(
            "keeping a definition",
            &name,
            "it does not fit a row",
        ));
    }
    sql.transaction(|| {
        if let Some(latest) = latest(sql, kind, &name)?
            && json::same(&latest.definition, &definition)
        {
            return Ok(TenantAnswer::Definition(latest));
        }
        let named = sql.exec(
            "INSERT INTO definition_names (kind, name, version, created_at, deleted)
             VALUES (?1, ?2, 1, ?3, 0)
             ON CONFLICT (kind, name) DO UPDATE
                SET version = version + 1, created_at = excluded.created_at, deleted = 0
             RETURNING version",
            &[kind_text(kind).into(), name.as_str().into(), now.into()],
        )?;
        let version = match named.first() {
            Some(row) => row.int("version")?,
            None => return Err(broken("keeping a definition", &name, "it got no version")),
        };
        sql.exec(
            "INSERT INTO definitions (kind, name, version, created_at, definition)
             VALUES (?1, ?2, ?3, ?4, ?5)",
            &[
                kind_text(kind).into(),
                name.as_str().into(),
                version.into(),
                now.into(),
                text.into(),
            ],
        )?;
        Ok(TenantAnswer::Definition(Definition {
            version: version_number(version)?,
            name,
            definition,
            created_at: now,
            fresh: true,
        }))
    })
}

/// The latest version of a live name, or any version a name ever had. Rows read: 2.
pub fn get(
    sql: &impl Sql,
    kind: DefinitionKind,
    name: &str,
    version: Option<u64>,
) -> Result<TenantAnswer, Fault> {
    let found = match version {
        None => latest(sql, kind, name)?,
        Some(version) => exact(sql, kind, name, version)?,
    };
    Ok(found.map_or(TenantAnswer::NotFound, TenantAnswer::Definition))
}

/// Live names, those whose latest version is newest first. Rows read: the names of the kind, and the
/// definitions given.
pub fn list(
    sql: &impl Sql,
    kind: DefinitionKind,
    limit: usize,
    cursor: Option<&str>,
) -> Result<TenantAnswer, Fault> {
    let limit = page::clamp(limit);
    let walk = Walk::new(sql, "definitions", &kind)?;
    let (before, name) = match cursor {
        None => (Timestamp::MAX.ms(), page::TOP.to_owned()),
        Some(cursor) => match walk.position(cursor)?.and_then(place) {
            Some(place) => place,
            None => return Ok(TenantAnswer::BadCursor),
        },
    };
    let found = sql.exec(
        "SELECT n.name, n.created_at, octet_length(d.definition) AS bytes
         FROM definition_names AS n JOIN definitions AS d
           ON d.kind = n.kind AND d.name = n.name AND d.version = n.version
         WHERE n.kind = ?1 AND n.deleted = 0 AND (n.created_at, n.name) < (?2, ?3)
         ORDER BY n.created_at DESC, n.name DESC LIMIT ?4",
        &[
            kind_text(kind).into(),
            before.into(),
            name.into(),
            count(limit.saturating_add(1)).into(),
        ],
    )?;
    let taken = page::fitting(&found, limit)?;
    let mut items = Vec::with_capacity(taken);
    for row in found.iter().take(taken) {
        let name = row.text("name")?;
        let item = latest(sql, kind, name)?;
        items.push(item.ok_or_else(|| broken("listing definitions", name, "it is gone"))?);
    }
    let next_cursor = match items.last() {
        Some(last) if taken < found.len() => {
            Some(walk.cursor(&format!("{}~{}", last.created_at.ms(), last.name))?)
        }
        _ => None,
    };
    Ok(TenantAnswer::Definitions { items, next_cursor })
}

/// The sort key in a cursor's position.
fn place(position: &str) -> Option<(i64, String)> {
    let (created_at, name) = position.split_once('~')?;
    Some((created_at.parse().ok()?, name.to_owned()))
}

/// Takes a name out of use; its versions stay readable by number. Rows written: 1.
pub fn delete(sql: &impl Sql, kind: DefinitionKind, name: &str) -> Result<TenantAnswer, Fault> {
    let deleted = sql.exec(
        "UPDATE definition_names SET deleted = 1
         WHERE kind = ?1 AND name = ?2 AND deleted = 0 RETURNING name",
        &[kind_text(kind).into(), name.into()],
    )?;
    Ok(if deleted.is_empty() {
        TenantAnswer::NotFound
    } else {
        TenantAnswer::Done
    })
}

/// Tools by the names asked for, `name` or `name@version`. Those that do not exist are left out.
/// Rows read: 2 a tool.
pub fn tools(sql: &impl Sql, names: &[String]) -> Result<BTreeMap<String, PinnedTool>, Fault> {
    let mut tools = BTreeMap::new();
    for asked in names {
        if tools.contains_key(asked) {
            continue;
        }
        let found = match asked.split_once('@') {
            None => latest(sql, DefinitionKind::Tool, asked)?,
            Some((name, version)) => match version.parse::<u64>() {
                // One spelling of a number: not `+2`, not `02`.
                Ok(number) if number.to_string() == version => {
                    exact(sql, DefinitionKind::Tool, name, number)?
                }
                _ => None,
            },
        };
        if let Some(Definition {
            version,
            definition,
            ..
        }) = found
        {
            tools.insert(
                asked.clone(),
                PinnedTool {
                    version,
                    definition,
                },
            );
        }
    }
    Ok(tools)
}

fn latest(sql: &impl Sql, kind: DefinitionKind, name: &str) -> Result<Option<Definition>, Fault> {
    let rows = sql.exec(
        "SELECT d.name, d.version, d.created_at, d.definition
         FROM definition_names AS n JOIN definitions AS d
           ON d.kind = n.kind AND d.name = n.name AND d.version = n.version
         WHERE n.kind = ?1 AND n.name = ?2 AND n.deleted = 0",
        &[kind_text(kind).into(), name.into()],
    )?;
    rows.first().map(definition).transpose()
}

fn exact(
    sql: &impl Sql,
    kind: DefinitionKind,
    name: &str,
    version: u64,
) -> Result<Option<Definition>, Fault> {
    let rows = sql.exec(
        "SELECT name, version, created_at, definition FROM definitions
         WHERE kind = ?1 AND name = ?2 AND version = ?3",
        &[
            kind_text(kind).into(),
            name.into(),
            i64::try_from(version).unwrap_or(i64::MAX).into(),
        ],
    )?;
    rows.first().map(definition).transpose()
}

fn definition(row: &SqlRow) -> Result<Definition, Fault> {
    let value = json::read_stored(row.text("definition")?.as_bytes());
    let value = value.map_err(|faults| {
        let message = faults
            .first()
            .map(|fault| fault.message.as_str())
            .unwrap_or_default();
        broken("reading a row", "definition", message)
    })?;
    Ok(Definition {
        name: row.text("name")?.to_owned(),
        version: version_number(row.int("version")?)?,
        definition: Json::new(value),
        created_at: row.time("created_at")?,
        fresh: false,
    })
}

fn version_number(version: i64) -> Result<u64, Fault> {
    u64::try_from(version).map_err(|error| broken("reading a row", "version", error))
}

/// How a kind is stored.
fn kind_text(kind: DefinitionKind) -> &'static str {
    match kind {
        DefinitionKind::Tool => "tool",
        DefinitionKind::Agent => "agent",
    }
}
