//! Runs: started, found, looked at.

use crate::flow::front::{Start, start_run};
use crate::flow::relay;
use crate::json::{self, Value, Violation, pointer};
use crate::plan::parse_versioned_name;
use crate::ports::{Fault, RunFilter, RunOp, RunResult, TenantAnswer, TenantCall, World};
use crate::schema;
use crate::words::limits::{DEFINITION_BYTES_MAX, TAG_VALUE_BYTES_MAX};
use crate::words::{Name, RunId, TenantId, Timestamp};

use super::page::{bad_cursor, page};
use super::problem::{INVALID_RUN, Kind, Problem};
use super::{Call, Response, fits, unexpected};

const STATUSES: [&str; 8] = [
    "queued",
    "running",
    "waiting",
    "blocked",
    "paused",
    "completed",
    "failed",
    "cancelled",
];

pub async fn start<W: World>(
    call: &Call<'_, W>,
    tenant_id: &TenantId,
) -> Result<Response, Problem> {
    let request = call.request_ref("POST /v1/runs")?;
    fits("the input of a run", call.body.get("input"))?;
    if call
        .body
        .get("plan")
        .is_some_and(|plan| json::bytes_len(plan) > DEFINITION_BYTES_MAX)
    {
        return Err(Problem::too_large("a plan", DEFINITION_BYTES_MAX));
    }
    let invalid = |errors| Problem::invalid(INVALID_RUN, errors);
    schema::validate("run-request", &call.body).map_err(invalid)?;
    tags_fit(&call.body).map_err(invalid)?;
    let start = Start {
        tenant_id: tenant_id.clone(),
        body: call.body.clone(),
        request,
        traceparent: Some(call.span.to_owned()),
        origin: call.origin.map(str::to_owned),
    };
    let started = start_run(call.world, start).await;
    let started = started.map_err(|refused| Problem::refused(refused, INVALID_RUN))?;
    let location = format!("/v1/runs/{}", started.run_id);
    if let (false, Some(wait_s)) = (started.replayed, call.headers.prefer_wait_s())
        && let Some(ended) = ended_within(call, tenant_id, &started.run_id, wait_s).await
    {
        return Ok(Response::json(200, ended)
            .header("location", location)
            .header("preference-applied", format!("wait={wait_s}")));
    }
    Ok(Response::json(202, started.shown.get().to_owned())
        .header("location", location)
        .replayed(started.replayed))
}

/// The run, if it ends in time. A preference binds nobody: whatever fails here is no failure.
async fn ended_within<W: World>(
    call: &Call<'_, W>,
    tenant_id: &TenantId,
    run_id: &RunId,
    wait_s: u32,
) -> Option<String> {
    const PAUSE_MS_MAX: i64 = 500;
    let until = call.world.now().plus_ms(i64::from(wait_s) * 1_000);
    let mut pause_ms = 20;
    loop {
        let left_ms = until.ms_since(call.world.now());
        if left_ms <= 0 {
            return None;
        }
        call.world.sleep(pause_ms.min(left_ms)).await;
        pause_ms = (pause_ms * 2).min(PAUSE_MS_MAX);
        let shown = ask(call.world, tenant_id, run_id, RunOp::View, INVALID_RUN).await;
        let RunResult::Shown(shown) = shown.ok()? else {
            return None;
        };
        let run = json::read_stored(shown.get().as_bytes()).ok()?;
        if run.get("ended_at").is_some_and(Value::is_string) {
            return Some(shown.get().to_owned());
        }
    }
}

/// The schema counts characters; the bound is of bytes.
fn tags_fit(body: &Value) -> Result<(), Vec<Violation>> {
    let Some(Value::Object(tags)) = body.get("tags") else {
        return Ok(());
    };
    let too_long = tags.iter().filter(|(_, value)| {
        value
            .as_str()
            .is_some_and(|text| text.len() > TAG_VALUE_BYTES_MAX)
    });
    let message = format!("a tag's value may have at most {TAG_VALUE_BYTES_MAX} bytes");
    let errors: Vec<_> = too_long
        .map(|(name, _)| Violation::new(pointer::push("/tags", name), message.as_str()))
        .collect();
    if errors.is_empty() {
        Ok(())
    } else {
        Err(errors)
    }
}

pub async fn get<W: World>(call: &Call<'_, W>, tenant_id: &TenantId) -> Result<Response, Problem> {
    let run_id = call.run_id()?;
    match ask(call.world, tenant_id, &run_id, RunOp::View, INVALID_RUN).await? {
        RunResult::Shown(shown) => Ok(Response::json(200, shown.get().to_owned())),
        _ => Err(unexpected_of_run("look", &run_id)),
    }
}

pub async fn list<W: World>(call: &Call<'_, W>, tenant_id: &TenantId) -> Result<Response, Problem> {
    let query = &call.query;
    let one_of = |text: &str| STATUSES.contains(&text).then(|| text.to_owned());
    let agent = |text: &str| parse_versioned_name(text).map(|_| text.to_owned());
    let mut filter = RunFilter {
        status: query.parsed("status", &format!("one of {}", STATUSES.join(", ")), one_of)?,
        agent: query.parsed("agent", "an agent's name, or name@version", agent)?,
        created_after: query.parsed(
            "created_after",
            "an RFC 3339 time, percent-encoded",
            |text| Timestamp::parse(text).ok(),
        )?,
        ..RunFilter::default()
    };
    for (name, value) in query.beginning_with("tag.") {
        if Name::parse(name).is_err() || value.len() > TAG_VALUE_BYTES_MAX {
            let parameter = format!("tag.{name}");
            return Err(Problem::query(&parameter, "is no tag that a run can have"));
        }
        filter.tags.insert(name.to_owned(), value.to_owned());
    }
    let list = TenantCall::ListRuns {
        filter,
        limit: query.limit()?,
        cursor: query.cursor(),
    };
    match call.world.tenant(tenant_id, &list).await? {
        TenantAnswer::Items { items, next_cursor } => Ok(page(&items, next_cursor.as_deref())),
        TenantAnswer::BadCursor => Err(bad_cursor()),
        _ => Err(unexpected("list runs", tenant_id)),
    }
}

/// Asks a run's object; a refusal is a problem.
pub async fn ask<W: World>(
    world: &W,
    tenant_id: &TenantId,
    run_id: &RunId,
    op: RunOp,
    invalid: Kind,
) -> Result<RunResult, Problem> {
    let answered = relay::ask(world, tenant_id, run_id, op).await?;
    answered.map_err(|refusal| Problem::refusal(refusal, invalid))
}

pub fn unexpected_of_run(operation: &str, run_id: &RunId) -> Problem {
    Fault {
        retryable: false,
        ..Fault::new(operation, run_id.as_str(), "got an answer of another kind")
    }
    .into()
}
