//! A run's log, as clients read it.

use std::fmt::Write;

use serde_json::json;

use crate::json::{self, Json};
use crate::ports::{Fault, RunOp, RunResult, World};
use crate::words::limits::LIST_LIMIT_MAX;
use crate::words::{RunId, TenantId};

use super::headers::LogForm;
use super::page::digits;
use super::problem::{INVALID_RUN, NOT_ACCEPTABLE, Problem};
use super::runs::{ask, unexpected_of_run};
use super::{Call, Response};

/// Where an answer of lines ends, to be gone on with by its `Link`.
const LINES_BYTES_MAX: usize = 4_194_304;
const LINES_MAX: usize = 2_000;

pub async fn events<W: World>(
    call: &Call<'_, W>,
    tenant_id: &TenantId,
) -> Result<Response, Problem> {
    let run_id = call.run_id()?;
    let number = "the number of an entry, from 0";
    let after = call.query.parsed("after", number, digits)?;
    let cursor = call.query.parsed("cursor", number, digits)?;
    if after.is_some() && cursor.is_some() {
        return Err(Problem::query(
            "cursor",
            "says the same as after: give one of them",
        ));
    }
    let after = after.or(cursor).unwrap_or(0);
    match call.headers.log_form() {
        LogForm::Json => {
            let limit = call.query.limit()?;
            let log = log_page(call.world, tenant_id, &run_id, after, limit).await?;
            let items: Vec<String> = log.entries.iter().map(|entry| json::write(entry)).collect();
            let items = items.join(",");
            let next = log
                .next
                .map_or("null".to_owned(), |next| format!("\"{next}\""));
            let last_seq = log.last_seq;
            let body =
                format!(r#"{{"items":[{items}],"next_cursor":{next},"last_seq":{last_seq}}}"#);
            Ok(Response::json(200, body).header("vary", "accept"))
        }
        LogForm::Lines => lines(call, tenant_id, &run_id, after).await,
        LogForm::EventStream => Err(Problem::new(
            NOT_ACCEPTABLE,
            "a log is offered as application/json and as application/x-ndjson",
        )
        .with(
            "offered",
            json!(["application/json", "application/x-ndjson"]),
        )),
    }
}

/// A line an entry: the log to its end, or to where the answer grows large.
async fn lines<W: World>(
    call: &Call<'_, W>,
    tenant_id: &TenantId,
    run_id: &RunId,
    after: u64,
) -> Result<Response, Problem> {
    let wanted = call.query.limit_given()?.unwrap_or(LINES_MAX);
    let mut text = String::new();
    let mut count = 0;
    let mut next = Some(after);
    while let Some(after) = next {
        let limit = wanted.saturating_sub(count).min(LIST_LIMIT_MAX);
        if limit == 0 || text.len() >= LINES_BYTES_MAX {
            break;
        }
        let log = log_page(call.world, tenant_id, run_id, after, limit).await?;
        for entry in &log.entries {
            // Writing to a string does not fail.
            let _ = writeln!(text, "{}", **entry);
        }
        count += log.entries.len();
        next = log.next;
    }
    let response =
        Response::new(200, "application/x-ndjson; charset=utf-8", text).header("vary", "accept");
    Ok(match next {
        None => response,
        Some(next) => response.header(
            "link",
            format!("</v1/runs/{run_id}/events?after={next}>; rel=\"next\""),
        ),
    })
}

/// A piece of a log.
struct LogPage {
    entries: Vec<Json>,
    last_seq: u64,
    /// After which entry to go on. None: this piece reaches the log's end.
    next: Option<u64>,
}

async fn log_page<W: World>(
    world: &W,
    tenant_id: &TenantId,
    run_id: &RunId,
    after: u64,
    limit: usize,
) -> Result<LogPage, Problem> {
    let op = RunOp::Events { after, limit };
    let answered = ask(world, tenant_id, run_id, op, INVALID_RUN).await?;
    let RunResult::Events {
        entries, last_seq, ..
    } = answered
    else {
        return Err(unexpected_of_run("read the log", run_id));
    };
    let reached = after.saturating_add(entries.len() as u64);
    if entries.is_empty() && after < last_seq {
        return Err(Fault {
            retryable: false,
            ..Fault::new(
                "read the log",
                run_id.as_str(),
                format!("nothing came after {after}"),
            )
        }
        .into());
    }
    Ok(LogPage {
        entries,
        last_seq,
        next: (reached < last_seq).then_some(reached),
    })
}
