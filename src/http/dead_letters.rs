//! Dead letters: what could not be carried out, listed and settled.
//!
//! One of a run is in the run's log, and the run itself shows and settles it. A stray one holds an
//! envelope that no run took, and its tenant does.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::flow::front::{offer_envelope, settle_dead_letter, tools_of};
use crate::json::{self, Json, Value, Violation};
use crate::ports::{
    DeadLetterFilter, Fault, RunCall, RunOp, RunResult, TenantAnswer, TenantCall, World,
};
use crate::run::event::{DeadLetterReason, PinnedTool, RequestRef, Settlement};
use crate::schema;
use crate::words::limits::LIST_LIMIT_MAX;
use crate::words::{DeadLetterId, RunId, TenantId};

use super::page::{bad_cursor, page};
use super::problem::{INVALID_SETTLEMENT, NO_STEP, Problem};
use super::{Call, Response, fits, unexpected};

const STATUSES: [&str; 4] = ["open", "redelivered", "resolved", "discarded"];
const REASONS: [&str; 10] = [
    "invalid_envelope",
    "invalid_arguments",
    "unknown_tool",
    "rejected_by_tool",
    "retries_exhausted",
    "outcome_unknown",
    "invalid_result",
    "fan_out_limit",
    "undeliverable",
    "child_failed",
];
const OPEN: &str = "open";

/// Letters of one answer together; the first is always given.
const PAGE_BYTES_MAX: usize = 4_000_000;
/// How often a tenant is asked for the stray letters of one run; each time it looks at thousands.
const INDEX_PAGES_MAX: usize = 20;

pub async fn list<W: World>(call: &Call<'_, W>, tenant_id: &TenantId) -> Result<Response, Problem> {
    let query = &call.query;
    let among = |known: &'static [&'static str]| {
        move |text: &str| known.contains(&text).then(|| text.to_owned())
    };
    let filter = DeadLetterFilter {
        run_id: query.parsed("run_id", "the id of a run", |text| RunId::parse(text).ok())?,
        reason: query.parsed(
            "reason",
            &format!("one of {}", REASONS.join(", ")),
            among(&REASONS),
        )?,
        status: query.parsed(
            "status",
            &format!("one of {}", STATUSES.join(", ")),
            among(&STATUSES),
        )?,
    };
    if let Some(run_id) = filter.run_id.clone() {
        return list_of_run(call, tenant_id, &run_id, filter).await;
    }
    let (limit, cursor) = (query.limit()?, query.cursor());
    let list = TenantCall::ListDeadLetters {
        filter,
        limit,
        cursor,
    };
    match call.world.tenant(tenant_id, &list).await? {
        TenantAnswer::Items { items, next_cursor } => Ok(page(&items, next_cursor.as_deref())),
        TenantAnswer::BadCursor => Err(bad_cursor()),
        _ => Err(unexpected("list dead letters", tenant_id)),
    }
}

/// What a list goes by.
#[derive(Deserialize)]
struct Listed {
    dead_letter_id: DeadLetterId,
    status: String,
    reason: String,
}

/// The letters of one run, as the run itself knows them, and the stray ones that name it. A foreign
/// run has none, like a missing one.
async fn list_of_run<W: World>(
    call: &Call<'_, W>,
    tenant_id: &TenantId,
    run_id: &RunId,
    filter: DeadLetterFilter,
) -> Result<Response, Problem> {
    let limit = call.query.limit()?;
    // The id of the last letter given: ids sort by time.
    let below = call
        .query
        .get("cursor")
        .map(DeadLetterId::parse)
        .transpose();
    let below = below.map_err(|_| bad_cursor())?;
    let of_run = RunCall {
        tenant_id: tenant_id.clone(),
        op: RunOp::DeadLetters,
    };
    let shown = match call.world.run(run_id, &of_run).await?.result {
        Ok(RunResult::DeadLetters(shown)) => shown,
        _ => Vec::new(),
    };
    let mut letters: BTreeMap<DeadLetterId, Box<RawValue>> = BTreeMap::new();
    let mut known = Vec::new();
    for item in shown {
        let listed = listed(&item, tenant_id)?;
        known.push(listed.dead_letter_id.clone());
        let matches = filter
            .status
            .as_ref()
            .is_none_or(|status| *status == listed.status)
            && filter
                .reason
                .as_ref()
                .is_none_or(|reason| *reason == listed.reason);
        if matches {
            letters.insert(listed.dead_letter_id, item);
        }
    }
    for item in indexed(call, tenant_id, filter).await? {
        let listed = listed(&item, tenant_id)?;
        // The index may be behind: what the run knows, it knows better.
        if !known.contains(&listed.dead_letter_id) {
            letters.insert(listed.dead_letter_id, item);
        }
    }
    let mut given = Vec::new();
    let mut bytes = 0_usize;
    let mut last = None;
    let mut next_cursor = None;
    let wanted = letters.into_iter().rev();
    for (id, item) in wanted.filter(|(id, _)| below.as_ref().is_none_or(|below| id < below)) {
        bytes = bytes.saturating_add(item.get().len());
        if given.len() == limit || (bytes > PAGE_BYTES_MAX && !given.is_empty()) {
            next_cursor = last;
            break;
        }
        given.push(item);
        last = Some(id);
    }
    Ok(page(&given, next_cursor.as_ref().map(DeadLetterId::as_str)))
}

/// What the tenant's index has for a filter.
async fn indexed<W: World>(
    call: &Call<'_, W>,
    tenant_id: &TenantId,
    filter: DeadLetterFilter,
) -> Result<Vec<Box<RawValue>>, Problem> {
    let mut all = Vec::new();
    let mut cursor = None;
    for _ in 0..INDEX_PAGES_MAX {
        let filter = filter.clone();
        let list = TenantCall::ListDeadLetters {
            filter,
            limit: LIST_LIMIT_MAX,
            cursor,
        };
        let answer = call.world.tenant(tenant_id, &list).await?;
        let TenantAnswer::Items { items, next_cursor } = answer else {
            return Err(unexpected("list dead letters", tenant_id));
        };
        all.extend(items);
        cursor = next_cursor;
        if cursor.is_none() {
            break;
        }
    }
    Ok(all)
}

fn listed(item: &RawValue, tenant_id: &TenantId) -> Result<Listed, Problem> {
    serde_json::from_str(item.get()).map_err(|error| unreadable(tenant_id, &error.to_string()))
}

fn unreadable(tenant_id: &TenantId, message: &str) -> Problem {
    let fault = Fault::new("read a dead letter", tenant_id.as_str(), message);
    Fault {
        retryable: false,
        ..fault
    }
    .into()
}

pub async fn get<W: World>(call: &Call<'_, W>, tenant_id: &TenantId) -> Result<Response, Problem> {
    let id = dead_letter_id(call)?;
    let shown = match find(call, tenant_id, &id).await? {
        Found::Stray(shown) => shown,
        // The index is told late, and may have left the envelope out.
        Found::OfRun(run_id, shown) => live(call, tenant_id, &run_id, &id).await.unwrap_or(shown),
    };
    Ok(Response::json(200, shown.get().to_owned()))
}

pub async fn redeliver<W: World>(
    call: &Call<'_, W>,
    tenant_id: &TenantId,
) -> Result<Response, Problem> {
    let id = dead_letter_id(call)?;
    let request = call.request_ref(format!("POST /v1/dead-letters/{id}/redeliver"))?;
    let payload = call.body.get("payload");
    fits("a repaired payload", payload)?;
    invalid(schema::validate("redeliver-request", &call.body))?;
    let (run_id, shown) = match find(call, tenant_id, &id).await? {
        Found::Stray(shown) => return redeliver_stray(call, tenant_id, id, &shown, request).await,
        Found::OfRun(run_id, shown) => (run_id, shown),
    };
    if let Some(payload) = payload {
        invalid(schema::validate_at("tool.requested", payload, "/payload"))?;
    }
    let tools = tools(call, tenant_id, &run_id, &id, &shown).await?;
    let payload = payload.cloned().map(Json::new);
    settle(
        call,
        tenant_id,
        &run_id,
        id,
        Settlement::Redelivered { payload, tools },
        request,
    )
    .await
}

pub async fn resolve<W: World>(
    call: &Call<'_, W>,
    tenant_id: &TenantId,
) -> Result<Response, Problem> {
    let id = dead_letter_id(call)?;
    let request = call.request_ref(format!("POST /v1/dead-letters/{id}/resolve"))?;
    fits("a result", call.body.get("result"))?;
    invalid(schema::validate("resolve-request", &call.body))?;
    let Found::OfRun(run_id, _) = find(call, tenant_id, &id).await? else {
        let detail = "no run took the letter's envelope, so there is no step to give a result to";
        return Err(Problem::new(NO_STEP, detail));
    };
    let result = Json::new(call.body.get("result").cloned().unwrap_or_default());
    settle(
        call,
        tenant_id,
        &run_id,
        id,
        Settlement::Resolved { result },
        request,
    )
    .await
}

pub async fn discard<W: World>(
    call: &Call<'_, W>,
    tenant_id: &TenantId,
) -> Result<Response, Problem> {
    let id = dead_letter_id(call)?;
    let request = call.request_ref(format!("POST /v1/dead-letters/{id}/discard"))?;
    invalid(schema::validate("discard-request", &call.body))?;
    let comment = call
        .body
        .get("comment")
        .and_then(Value::as_str)
        .map(str::to_owned);
    match find(call, tenant_id, &id).await? {
        Found::OfRun(run_id, _) => {
            settle(
                call,
                tenant_id,
                &run_id,
                id,
                Settlement::Discarded { comment },
                request,
            )
            .await
        }
        Found::Stray(shown) => {
            let was_open = is_open(&read_letter(&shown, tenant_id)?);
            settle_stray(call, tenant_id, id, "discarded", comment, request, was_open).await
        }
    }
}

fn invalid(checked: Result<(), Vec<Violation>>) -> Result<(), Problem> {
    checked.map_err(|errors| Problem::invalid(INVALID_SETTLEMENT, errors))
}

/// The letter that the path names. What is no id names nothing.
fn dead_letter_id<W>(call: &Call<'_, W>) -> Result<DeadLetterId, Problem> {
    DeadLetterId::parse(call.param(0)).map_err(|_| Problem::not_found())
}

/// Whose a letter is, and what the tenant's index shows of it.
enum Found {
    OfRun(RunId, Box<RawValue>),
    Stray(Box<RawValue>),
}

async fn find<W: World>(
    call: &Call<'_, W>,
    tenant_id: &TenantId,
    id: &DeadLetterId,
) -> Result<Found, Problem> {
    let find = TenantCall::FindDeadLetter {
        dead_letter_id: id.clone(),
    };
    match call.world.tenant(tenant_id, &find).await? {
        TenantAnswer::DeadLetterFound {
            run_id: Some(run_id),
            shown,
        } => Ok(Found::OfRun(run_id, shown)),
        TenantAnswer::DeadLetterFound {
            run_id: None,
            shown,
        } => Ok(Found::Stray(shown)),
        TenantAnswer::NotFound => Err(Problem::not_found()),
        _ => Err(unexpected("find a dead letter", tenant_id)),
    }
}

/// A letter as its run knows it, if the run can be asked.
async fn live<W: World>(
    call: &Call<'_, W>,
    tenant_id: &TenantId,
    run_id: &RunId,
    id: &DeadLetterId,
) -> Option<Box<RawValue>> {
    let op = RunOp::DeadLetter {
        dead_letter_id: id.clone(),
    };
    let of_run = RunCall {
        tenant_id: tenant_id.clone(),
        op,
    };
    match call.world.run(run_id, &of_run).await {
        Ok(answer) => match answer.result {
            Ok(RunResult::Shown(shown)) => Some(shown),
            _ => None,
        },
        Err(fault) => {
            call.world.log(&format!(
                "a dead letter is shown as it was indexed: {fault}"
            ));
            None
        }
    }
}

/// Definitions that the run may not have: of the tool that the repaired payload names, or of the one
/// that there was none of.
async fn tools<W: World>(
    call: &Call<'_, W>,
    tenant_id: &TenantId,
    run_id: &RunId,
    id: &DeadLetterId,
    indexed: &RawValue,
) -> Result<BTreeMap<String, PinnedTool>, Problem> {
    let tool_of = |payload: &Value| payload.get("tool")?.as_str().map(str::to_owned);
    let name = match call.body.get("payload") {
        Some(payload) => tool_of(payload),
        None if reason(indexed) == Some(DeadLetterReason::UnknownTool) => {
            let live = live(call, tenant_id, run_id, id).await;
            let letter = live
                .map(|shown| read_letter(&shown, tenant_id))
                .transpose()?;
            letter.and_then(|letter| tool_of(letter.pointer("/envelope/payload")?))
        }
        None => None,
    };
    match name {
        Some(name) => Ok(tools_of(call.world, tenant_id, vec![name]).await?),
        None => Ok(BTreeMap::new()),
    }
}

fn reason(shown: &RawValue) -> Option<DeadLetterReason> {
    #[derive(Deserialize)]
    struct Reason {
        reason: DeadLetterReason,
    }
    serde_json::from_str::<Reason>(shown.get())
        .ok()
        .map(|letter| letter.reason)
}

async fn settle<W: World>(
    call: &Call<'_, W>,
    tenant_id: &TenantId,
    run_id: &RunId,
    id: DeadLetterId,
    settlement: Settlement,
    request: Option<RequestRef>,
) -> Result<Response, Problem> {
    let settled = settle_dead_letter(call.world, tenant_id, run_id, id, settlement, request).await;
    let (shown, replayed) =
        settled.map_err(|refused| Problem::refused(refused, INVALID_SETTLEMENT))?;
    Ok(Response::json(200, shown.get().to_owned()).replayed(replayed))
}

/// Hands a stray letter's envelope in again, repaired. Only what a run takes settles the letter; what
/// is refused again stays the open letter that it is.
async fn redeliver_stray<W: World>(
    call: &Call<'_, W>,
    tenant_id: &TenantId,
    id: DeadLetterId,
    shown: &RawValue,
    request: Option<RequestRef>,
) -> Result<Response, Problem> {
    let letter = read_letter(shown, tenant_id)?;
    let was_open = is_open(&letter);
    if was_open {
        let kept = letter.get("envelope").unwrap_or(&Value::Null);
        let payload = call.body.get("payload");
        let whole = payload.is_some_and(is_whole_envelope);
        let envelope = repaired(kept, payload)?;
        if let Err(mut errors) = offer_envelope(call.world, tenant_id, &envelope).await? {
            if whole {
                errors
                    .iter_mut()
                    .for_each(|error| error.pointer.insert_str(0, "/payload"));
            }
            return Err(Problem::invalid(INVALID_SETTLEMENT, errors));
        }
    }
    settle_stray(call, tenant_id, id, "redelivered", None, request, was_open).await
}

/// The envelope to hand in: the letter's, with the payload given; or the whole envelope that was
/// given as the payload, for a letter whose envelope is wrong elsewhere.
fn repaired(kept: &Value, payload: Option<&Value>) -> Result<Value, Problem> {
    let Some(payload) = payload else {
        return Ok(kept.clone());
    };
    if is_whole_envelope(payload) {
        return Ok(payload.clone());
    }
    let Value::Object(members) = kept else {
        let message = "the letter holds no envelope: give a whole one as the payload";
        let errors = vec![Violation::new("/payload", message)];
        return Err(Problem::invalid(INVALID_SETTLEMENT, errors));
    };
    let mut members = members.clone();
    // The key was made from the payload of before.
    members.shift_remove("idempotency_key");
    members.insert("payload".to_owned(), payload.clone());
    Ok(Value::Object(members))
}

/// No payload of an event that a client may send has these members.
fn is_whole_envelope(payload: &Value) -> bool {
    payload.get("event_type").is_some() && payload.get("payload").is_some()
}

async fn settle_stray<W: World>(
    call: &Call<'_, W>,
    tenant_id: &TenantId,
    id: DeadLetterId,
    status: &str,
    comment: Option<String>,
    request: Option<RequestRef>,
    was_open: bool,
) -> Result<Response, Problem> {
    let settle = TenantCall::SettleStray {
        dead_letter_id: id,
        status: status.to_owned(),
        comment,
        request,
        now: call.world.now(),
    };
    match call.world.tenant(tenant_id, &settle).await? {
        TenantAnswer::DeadLetterFound { shown, .. } => {
            Ok(Response::json(200, shown.get().to_owned()).replayed(!was_open))
        }
        TenantAnswer::AlreadySettled { status, at } => {
            Err(Problem::already_settled(status, at.to_string()))
        }
        TenantAnswer::KeyReused => Err(Problem::key_reused()),
        TenantAnswer::NotFound => Err(Problem::not_found()),
        _ => Err(unexpected("settle a dead letter", tenant_id)),
    }
}

fn is_open(letter: &Value) -> bool {
    letter.get("status").and_then(Value::as_str) == Some(OPEN)
}

fn read_letter(shown: &RawValue, tenant_id: &TenantId) -> Result<Value, Problem> {
    json::read_stored(shown.get().as_bytes())
        .map_err(|flaws| unreadable(tenant_id, &json::sentence(&flaws)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reasons_are_those_of_the_log() {
        for reason in REASONS {
            let text = format!("\"{reason}\"");
            let read: DeadLetterReason = serde_json::from_str(&text).unwrap();
            assert_eq!(serde_json::to_string(&read).unwrap(), text);
        }
    }
}
