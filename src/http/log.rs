//! A run's log as clients read it: in pages, in lines, or as it grows.

use serde_json::value::RawValue;

use crate::flow::home::PAGE_BYTES_MAX;
use crate::ports::{Fault, RunOp, RunResult, World};
use crate::words::limits::LIST_LIMIT_MAX;
use crate::words::{RunId, TenantId};

use super::event_stream;
use super::headers::LogForm;
use super::page::{Query, bad_cursor, digits};
use super::problem::{INVALID_RUN, Problem};
use super::runs::{ask, unexpected_of_run};
use super::{Call, Response};

/// Where an answer of lines ends, to be gone on with by its `Link`.
const LINES_BYTES_MAX: usize = 4_194_304;
const LINES_MAX: usize = 2_000;

/// Begins the cursor of a list that is newest first, so that one of the other order is noticed.
const BEFORE: &str = "before.";

/// Which entries of a log are asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Those above this one, oldest first.
    pub after: u64,
    /// Of these, those below this one, newest first.
    pub before: Option<u64>,
}

pub async fn events<W: World>(
    call: &Call<'_, W>,
    tenant_id: &TenantId,
) -> Result<Response, Problem> {
    let run_id = call.run_id()?;
    let wanted = Wanted::of_query(&call.query)?;
    let last_event_id = call.headers.last_event_id()?;
    match call.headers.log_form() {
        LogForm::Json => list(call, tenant_id, &run_id, wanted).await,
        LogForm::Lines => lines(call, tenant_id, &run_id, wanted).await,
        LogForm::EventStream => {
            // On a reconnect the address is the first request's, and only the header knows better.
            let after = last_event_id.unwrap_or(wanted.after);
            let wanted = Wanted { after, ..wanted };
            event_stream::begin(call, tenant_id, run_id, wanted).await
        }
    }
}

async fn list<W: World>(
    call: &Call<'_, W>,
    tenant_id: &TenantId,
    run_id: &RunId,
    wanted: Wanted,
) -> Result<Response, Problem> {
    let limit = call.query.limit()?;
    let page = read(call.world, tenant_id, run_id, wanted, limit).await?;
    let items: Vec<&str> = page.entries.iter().map(|entry| entry.get()).collect();
    let items = items.join(",");
    let next = match page.next {
        Some(next) => format!("\"{}\"", next.cursor()),
        None => "null".to_owned(),
    };
    let last_seq = page.last_seq;
    let body = format!(r#"{{"items":[{items}],"next_cursor":{next},"last_seq":{last_seq}}}"#);
    Ok(Response::json(200, body).header("vary", "accept"))
}

/// A line an entry: all that is wanted, or as far as the answer does not grow large.
async fn lines<W: World>(
    call: &Call<'_, W>,
    tenant_id: &TenantId,
    run_id: &RunId,
    wanted: Wanted,
) -> Result<Response, Problem> {
    let count_max = call.query.limit_given()?.unwrap_or(LINES_MAX);
    let mut text = String::new();
    let mut count = 0;
    let mut next = Some(wanted);
    while let Some(wanted) = next {
        let limit = count_max.saturating_sub(count).min(LIST_LIMIT_MAX);
        if limit == 0 || text.len() + PAGE_BYTES_MAX > LINES_BYTES_MAX {
            break;
        }
        let page = read(call.world, tenant_id, run_id, wanted, limit).await?;
        for entry in &page.entries {
            text.push_str(entry.get());
            text.push('\n');
        }
        count += page.entries.len();
        next = page.next;
    }
    let response =
        Response::new(200, "application/x-ndjson; charset=utf-8", text).header("vary", "accept");
    Ok(match next {
        None => response,
        Some(next) => {
            let query = next.query();
            let link = format!("</v1/runs/{run_id}/events?{query}>; rel=\"next\"");
            response.header("link", link)
        }
    })
}

impl Wanted {
    fn of_query(query: &Query) -> Result<Self, Problem> {
        const NUMBER: &str = "the number of an entry, from 0";
        let newest_first = query.parsed("order", "asc or desc", |text| match text {
            "asc" => Some(false),
            "desc" => Some(true),
            _ => None,
        })?;
        let after = query.parsed("after", NUMBER, digits)?;
        if newest_first == Some(true) {
            let before = match query.get("cursor") {
                None => u64::MAX,
                Some(cursor) => {
                    let number = cursor.strip_prefix(BEFORE).and_then(digits);
                    number.ok_or_else(bad_cursor)?
                }
            };
            return Ok(Self {
                after: after.unwrap_or(0),
                before: Some(before),
            });
        }
        let cursor = query.parsed("cursor", NUMBER, digits)?;
        if after.is_some() && cursor.is_some() {
            return Err(Problem::query(
                "cursor",
                "says the same as after: give one of them",
            ));
        }
        Ok(Self {
            after: after.or(cursor).unwrap_or(0),
            before: None,
        })
    }

    /// What is left of it, once `count` entries of a log were given.
    fn rest(self, count: usize, last_seq: u64) -> Option<Self> {
        let count = count as u64;
        match self.before {
            None => {
                let after = self.after.saturating_add(count);
                (after < last_seq).then_some(Self { after, ..self })
            }
            Some(before) => {
                let before = before.min(last_seq.saturating_add(1)).saturating_sub(count);
                (before > self.after.saturating_add(1)).then_some(Self {
                    before: Some(before),
                    ..self
                })
            }
        }
    }

    fn cursor(self) -> String {
        match self.before {
            None => self.after.to_string(),
            Some(before) => format!("{BEFORE}{before}"),
        }
    }

    fn query(self) -> String {
        match self.before {
            None => format!("after={}", self.after),
            Some(_) => format!("order=desc&after={}&cursor={}", self.after, self.cursor()),
        }
    }
}

/// A piece of a log.
pub struct LogPage {
    pub entries: Vec<Box<RawValue>>,
    pub last_seq: u64,
    /// Of the run.
    pub status: String,
    /// Whether nothing can be added any more.
    pub ended: bool,
    /// With what to go on. None: nothing is left of what was wanted.
    pub next: Option<Wanted>,
}

pub async fn read<W: World>(
    world: &W,
    tenant_id: &TenantId,
    run_id: &RunId,
    wanted: Wanted,
    limit: usize,
) -> Result<LogPage, Problem> {
    let Wanted { after, before } = wanted;
    let op = RunOp::Events {
        after,
        before,
        limit,
    };
    let answered = ask(world, tenant_id, run_id, op, INVALID_RUN).await?;
    let RunResult::Events {
        entries,
        last_seq,
        status,
        ended,
    } = answered
    else {
        return Err(unexpected_of_run("read the log", run_id));
    };
    let next = wanted.rest(entries.len(), last_seq);
    if let (true, Some(next)) = (entries.is_empty(), next) {
        return Err(Fault {
            retryable: false,
            ..Fault::new(
                "read the log",
                run_id.as_str(),
                format!("nothing came of {}", next.query()),
            )
        }
        .into());
    }
    Ok(LogPage {
        entries,
        last_seq,
        status,
        ended,
        next,
    })
}
