//! The index of a tenant's runs: registered before a run is born, told of it by the run afterwards.
//!
//! A run's id begins with the time it was made at, so the primary key is the order of the list and
//! no other index is paid for. Filters are applied while scanning; a call scans a bounded stretch.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::value::RawValue;

use crate::agent::Agent;
use crate::json::{self, Violation};
use crate::plan::parse_versioned_name;
use crate::ports::{
    DefinitionKind, Fault, Maker, PinnedAgent, Projection, RunFilter, TenantAnswer,
};
use crate::run::event::RequestRef;
use crate::schema;
use crate::sql::{Sql, SqlRow};
use crate::words::limits::TREE_RUNS_MAX;
use crate::words::{RunId, Timestamp};

use super::page::{self, EXAMINED_MAX, Walk, count};
use super::{approvals, broken, dead_letters, definitions, requests, schema as schema_of_tenant};

/// How far the clock that made a run's id may be from the one that wrote its `created_at`.
const CLOCKS_APART_MS: i64 = 60 * 60 * 1_000;

/// A run that is about to be born.
pub struct NewRun {
    pub run_id: RunId,
    pub maker: Maker,
    pub tags: BTreeMap<String, String>,
    /// Of a child: the run at the top, whose descendants are counted.
    pub root_run_id: Option<RunId>,
    pub now: Timestamp,
}

/// One item of the list of runs.
#[derive(Serialize)]
struct RunSummary<'a> {
    run_id: &'a str,
    agent: Option<&'a str>,
    status: &'a str,
    tags: Box<RawValue>,
    created_at: Timestamp,
    updated_at: Timestamp,
    ended_at: Option<Timestamp>,
}

/// Gives a run its place in the index and the client's key its run, in one transaction, and resolves
/// its agent and its tools. Where there is no such agent, or it does not take the input, nothing is
/// written. Rows written: 1, and 1 for a key (see [`requests::insert`]); where the key was used
/// before, 0.
///
/// The earlier run of a key is put back into the index where it was forgotten: whoever asks carries
/// its birth out again.
pub fn register(
    sql: &impl Sql,
    run: NewRun,
    request: Option<&RequestRef>,
) -> Result<TenantAnswer, Fault> {
    sql.transaction(|| {
        let known = match request {
            Some(request) => requests::find(sql, request, run.now)?,
            None => None,
        };
        let reused = |known: &requests::Record| {
            request.is_some_and(|request| known.fingerprint != request.fingerprint)
        };
        if known.as_ref().is_some_and(reused) {
            return Ok(TenantAnswer::KeyReused);
        }
        let fresh = known.is_none();
        let (agent, tools) = match make(sql, &run.maker)? {
            Made::Of(agent, tools) => (agent, tools),
            Made::Unknown if fresh => return Ok(TenantAnswer::UnknownAgent),
            Made::Invalid(violations) if fresh => return Ok(TenantAnswer::Invalid(violations)),
            // It was good when the key was used first.
            Made::Unknown | Made::Invalid(_) => (None, Vec::new()),
        };
        let run_id = match known {
            Some(known) => known
                .run_id
                .ok_or_else(|| broken("registering a run", "requests", "its key made no run"))?,
            None => run.run_id,
        };
        if let Some(root) = &run.root_run_id
            && !count_descendant(sql, root, &run_id)?
        {
            return Ok(TenantAnswer::TreeFull {
                limit: TREE_RUNS_MAX,
            });
        }
        if let (true, Some(request)) = (fresh, request) {
            requests::insert(sql, request, Some(&run_id), run.now)?;
        }
        sql.exec(
            "INSERT INTO runs (run_id, seq, status, agent, tags, created_at, updated_at, quiet_until)
             VALUES (?1, 0, 'queued', ?2, ?3, ?4, ?4, ?4) ON CONFLICT (run_id) DO NOTHING",
            &[
                run_id.as_str().into(),
                agent.as_ref().map(|agent| agent.label.as_str()).into(),
                object(&run.tags)?.into(),
                run.now.into(),
            ],
        )?;
        Ok(TenantAnswer::Registered {
            run_id,
            fresh,
            agent,
            tools: definitions::tools(sql, &tools)?,
        })
    })
}

/// Counts a new run below `root`. False: there are as many as there may be. One that is registered
/// again is not counted again.
fn count_descendant(sql: &impl Sql, root: &RunId, run_id: &RunId) -> Result<bool, Fault> {
    let known = sql.exec(
        "SELECT run_id FROM runs WHERE run_id = ?1",
        &[run_id.as_str().into()],
    )?;
    if !known.is_empty() {
        return Ok(true);
    }
    schema_of_tenant::ensure(sql, schema_of_tenant::TREES)?;
    let counted = sql.exec(
        "INSERT INTO trees (root_run_id, started) VALUES (?1, 1)
         ON CONFLICT (root_run_id) DO UPDATE SET started = started + 1 WHERE started < ?2
         RETURNING started",
        &[root.as_str().into(), TREE_RUNS_MAX.into()],
    )?;
    Ok(!counted.is_empty())
}

/// What a run is made of, resolved.
enum Made {
    Of(Option<PinnedAgent>, Vec<String>),
    Unknown,
    Invalid(Vec<Violation>),
}

fn make(sql: &impl Sql, maker: &Maker) -> Result<Made, Fault> {
    let (reference, input) = match maker {
        Maker::Plan { tools } => return Ok(Made::Of(None, tools.clone())),
        Maker::Agent { reference, input } => (reference, input),
    };
    let Some(named) = parse_versioned_name(reference) else {
        return Ok(Made::Unknown);
    };
    let version = named.version.map(u64::from);
    let found = definitions::get(sql, DefinitionKind::Agent, named.name, version)?;
    let TenantAnswer::Definition(found) = found else {
        return Ok(Made::Unknown);
    };
    let label = format!("{}@{}", found.name, found.version);
    let agent = Agent::parse(&found.definition)
        .map_err(|flaws| broken("reading an agent", &label, json::sentence(&flaws)))?;
    if let Some(wanted) = &agent.input_schema
        && let Err(violations) = schema::validate_with(wanted, input, "/input")
    {
        return Ok(Made::Invalid(violations));
    }
    let definition = found.definition;
    Ok(Made::Of(
        Some(PinnedAgent { label, definition }),
        agent.tools_needed(),
    ))
}

/// Takes what runs say of themselves, all or nothing: of a run itself the longest log is true; a dead
/// letter or an approval is settled once, so what says that it is not yet changes nothing. Rows written:
/// 1 for each run that has news, 1 for each dead letter or approval that changed, 2 for a new one.
pub fn project(sql: &impl Sql, projections: &[Projection]) -> Result<TenantAnswer, Fault> {
    sql.transaction(|| {
        for projection in projections {
            update(sql, projection)?;
            for letter in &projection.dead_letters {
                dead_letters::project(sql, &projection.run_id, letter)?;
            }
            for approval in &projection.approvals {
                approvals::project(sql, &projection.run_id, approval)?;
            }
        }
        Ok(TenantAnswer::Done)
    })
}

fn update(sql: &impl Sql, projection: &Projection) -> Result<(), Fault> {
    let said = projection.quiet_until.unwrap_or(projection.updated_at);
    let quiet_until = said.max(projection.updated_at);
    sql.exec(
        "INSERT INTO runs
            (run_id, seq, status, agent, tags, created_at, updated_at, ended_at, quiet_until)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)
         ON CONFLICT (run_id) DO UPDATE
            SET seq = excluded.seq, status = excluded.status, agent = excluded.agent,
                tags = excluded.tags, created_at = excluded.created_at,
                updated_at = excluded.updated_at, ended_at = excluded.ended_at,
                quiet_until = excluded.quiet_until
            WHERE excluded.seq > runs.seq
               OR (excluded.seq = runs.seq AND (excluded.quiet_until > runs.quiet_until
                   OR excluded.ended_at IS NOT runs.ended_at))",
        &[
            projection.run_id.as_str().into(),
            i64::try_from(projection.seq).unwrap_or(i64::MAX).into(),
            projection.status.as_str().into(),
            projection.agent.as_deref().into(),
            object(&projection.tags)?.into(),
            projection.created_at.into(),
            projection.updated_at.into(),
            projection.ended_at.into(),
            quiet_until.into(),
        ],
    )?;
    Ok(())
}

/// Runs that match, newest first. Rows read: at most twice [`EXAMINED_MAX`], and the tags' members
/// where tags are asked for.
pub fn list(
    sql: &impl Sql,
    filter: &RunFilter,
    limit: usize,
    cursor: Option<&str>,
) -> Result<TenantAnswer, Fault> {
    let limit = page::clamp(limit);
    let walk = Walk::new(sql, "runs", filter)?;
    let below = match cursor {
        None => page::TOP,
        Some(cursor) => match walk.position(cursor)? {
            Some(position) => position,
            None => return Ok(TenantAnswer::BadCursor),
        },
    };
    // No run made before this can have been created after the filter's time.
    let from = filter.created_after.map_or_else(String::new, |after| {
        RunId::new(after.plus_ms(-CLOCKS_APART_MS), [0; 10]).to_string()
    });
    let mut found = sql.exec(
        "SELECT run_id, agent, status, tags, created_at, updated_at, ended_at
         FROM (SELECT * FROM runs WHERE run_id < ?1 AND run_id >= ?2
               ORDER BY run_id DESC LIMIT ?3) AS r
         WHERE (?4 IS NULL OR status = ?4)
           AND (?5 IS NULL OR agent = ?5 OR substr(agent, 1, length(?5) + 1) = ?5 || '@')
           AND (?6 IS NULL OR created_at > ?6)
           AND (?7 = '{}' OR NOT EXISTS (
                SELECT 1 FROM json_each(?7) AS asked WHERE NOT EXISTS (
                    SELECT 1 FROM json_each(r.tags) AS tag
                    WHERE tag.key = asked.key AND tag.value = asked.value)))
         ORDER BY run_id DESC LIMIT ?8",
        &[
            below.into(),
            from.as_str().into(),
            count(EXAMINED_MAX).into(),
            filter.status.as_deref().into(),
            filter.agent.as_deref().into(),
            filter.created_after.into(),
            object(&filter.tags)?.into(),
            count(limit.saturating_add(1)).into(),
        ],
    )?;
    let more = found.len() > limit;
    found.truncate(limit);
    let position = match found.last() {
        Some(last) if more => Some(last.text("run_id")?.to_owned()),
        _ => page::examined_to(sql, "runs", "run_id", below, &from)?,
    };
    Ok(TenantAnswer::Items {
        items: found.iter().map(summary).collect::<Result<_, _>>()?,
        next_cursor: position
            .map(|position| walk.cursor(&position))
            .transpose()?,
    })
}

fn summary(row: &SqlRow) -> Result<Box<RawValue>, Fault> {
    let run_id = row.text("run_id")?;
    serde_json::value::to_raw_value(&RunSummary {
        run_id,
        agent: row.text_or_null("agent")?,
        status: row.text("status")?,
        tags: row.json("tags")?,
        created_at: row.time("created_at")?,
        updated_at: row.time("updated_at")?,
        ended_at: row.time_or_null("ended_at")?,
    })
    .map_err(|error| broken("listing runs", run_id, error))
}

/// Tags as a JSON object.
fn object(tags: &BTreeMap<String, String>) -> Result<String, Fault> {
    serde_json::to_string(tags).map_err(|error| broken("writing tags", "tags", error))
}
