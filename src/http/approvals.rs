//! Approvals: one tenant's inbox, and the answers of its people.

use serde_json::value::RawValue;

use crate::decide::Answer;
use crate::json::{Json, Value, Violation};
use crate::ports::{ApprovalFilter, RunOp, RunResult, TenantAnswer, TenantCall, World};
use crate::run::event::{Decision, RequestRef};
use crate::schema;
use crate::signed::LinkClaims;
use crate::words::{ApprovalId, DurationMs, RunId, TenantId, Timestamp};

use super::auth::Caller;
use super::once::{Begun, begin, finish};
use super::page::{bad_cursor, page};
use super::problem::{INVALID_DECISION, INVALID_LINK, Problem, UNAVAILABLE};
use super::runs::{ask, unexpected_of_run};
use super::{Call, Response, fits, unexpected};

const STATUSES: [&str; 5] = ["pending", "approved", "rejected", "expired", "cancelled"];
/// How long a link is good for when nobody says.
const LINK_MS_DEFAULT: i64 = 7 * 86_400_000;
const LINK_MS_MAX: i64 = 365 * 86_400_000;

pub async fn list<W: World>(call: &Call<'_, W>, tenant_id: &TenantId) -> Result<Response, Problem> {
    let query = &call.query;
    let status = |text: &str| STATUSES.contains(&text).then(|| text.to_owned());
    let filter = ApprovalFilter {
        run_id: query.parsed("run_id", "the id of a run", |text| RunId::parse(text).ok())?,
        status: query.parsed("status", &format!("one of {}", STATUSES.join(", ")), status)?,
    };
    let list = TenantCall::ListApprovals {
        filter,
        limit: query.limit()?,
        cursor: query.cursor(),
    };
    match call.world.tenant(tenant_id, &list).await? {
        TenantAnswer::Items { items, next_cursor } => Ok(page(&items, next_cursor.as_deref())),
        TenantAnswer::BadCursor => Err(bad_cursor()),
        _ => Err(unexpected("list approvals", tenant_id)),
    }
}

pub async fn get<W: World>(call: &Call<'_, W>, tenant_id: &TenantId) -> Result<Response, Problem> {
    let id = approval_id(call)?;
    let run_id = run_of(call.world, tenant_id, &id).await?;
    let shown = look(call.world, tenant_id, &run_id, &id).await?;
    Ok(Response::json(200, shown.get().to_owned()))
}

pub async fn decide<W: World>(call: &Call<'_, W>, caller: &Caller) -> Result<Response, Problem> {
    let id = approval_id(call)?;
    let request = call.request_ref(format!("POST /v1/approvals/{id}"))?;
    fits("the data of a decision", call.body.get("data"))?;
    schema::validate("decision-request", &call.body)
        .map_err(|errors| Problem::invalid(INVALID_DECISION, errors))?;
    let decision = match call.body.get("decision").and_then(Value::as_str) {
        Some("approved") => Decision::Approved,
        _ => Decision::Rejected,
    };
    let answer = Answer {
        decision,
        data: call.body.get("data").cloned().map(Json::new),
        comment: call.text("comment"),
        decided_by: call
            .text("decided_by")
            .unwrap_or_else(|| caller.name.clone()),
        via: Some(caller.name.clone()),
    };
    let tenant_id = &caller.tenant_id;
    let run_id = run_of(call.world, tenant_id, &id).await?;
    let (shown, replayed) = answer_it(call.world, tenant_id, &run_id, &id, answer, request).await?;
    Ok(Response::json(200, shown.get().to_owned()).replayed(replayed))
}

/// Makes a link that a person without a key can follow. Making one changes nothing.
pub async fn link<W: World>(call: &Call<'_, W>, tenant_id: &TenantId) -> Result<Response, Problem> {
    let id = approval_id(call)?;
    let invalid = |errors| Problem::invalid(INVALID_LINK, errors);
    schema::validate("link-request", &call.body).map_err(invalid)?;
    let lasts_ms = match call.body.get("expires_in").and_then(Value::as_str) {
        None => LINK_MS_DEFAULT,
        Some(text) => match DurationMs::parse(text).map(DurationMs::ms) {
            Ok(ms) if (1..=LINK_MS_MAX).contains(&ms) => ms,
            _ => {
                let message = "expected a duration above zero and of at most P365D";
                return Err(invalid(vec![Violation::new("/expires_in", message)]));
            }
        },
    };
    let request = call.request_ref(format!("POST /v1/approvals/{id}/links"))?;
    let run_id = run_of(call.world, tenant_id, &id).await?;
    let before = match &request {
        Some(request) => made_before(call.world, tenant_id, request).await?,
        None => None,
    };
    let replayed = before.is_some();
    let expires_at = match before {
        Some(expires_at) => expires_at,
        None => {
            let shown = look(call.world, tenant_id, &run_id, &id).await?;
            require_pending(&shown, &run_id)?;
            call.world.now().plus_ms(lasts_ms)
        }
    };
    let claims = LinkClaims {
        tenant_id: tenant_id.clone(),
        run_id,
        approval_id: id,
        expires_at,
        decided_by: call.text("decided_by"),
    };
    let signer = call.world.signer();
    let token = signer.and_then(|signer| signer.sign(&claims));
    let token = token.ok_or_else(|| {
        let detail = "this deployment has no key to sign links with: set its secret SIGNING_KEY";
        Problem::new(UNAVAILABLE, detail)
    })?;
    let origin = call.world.public_origin().or(call.origin);
    let origin = origin.unwrap_or_default();
    let body = format!(r#"{{"url":"{origin}/approvals/{token}","expires_at":"{expires_at}"}}"#);
    if let (Some(request), false) = (request, replayed) {
        // The link itself is no record's business: it is signed again from what it is good for.
        finish(call.world, tenant_id, request, 201, &expires_at.to_string()).await;
    }
    Ok(Response::json(201, body).replayed(replayed))
}

/// Until when the link is good that was made before under the same key, if one was.
async fn made_before<W: World>(
    world: &W,
    tenant_id: &TenantId,
    request: &RequestRef,
) -> Result<Option<Timestamp>, Problem> {
    match begin(world, tenant_id, request).await? {
        Begun::Fresh => Ok(None),
        Begun::Before { body, .. } => Ok(Timestamp::parse(&body).ok()),
    }
}

/// The approval that the path names. What is no id names nothing.
fn approval_id<W>(call: &Call<'_, W>) -> Result<ApprovalId, Problem> {
    ApprovalId::parse(call.param(0)).map_err(|_| Problem::not_found())
}

/// Which run asks it.
async fn run_of<W: World>(
    world: &W,
    tenant_id: &TenantId,
    id: &ApprovalId,
) -> Result<RunId, Problem> {
    let find = TenantCall::FindApproval {
        approval_id: id.clone(),
    };
    match world.tenant(tenant_id, &find).await? {
        TenantAnswer::ApprovalFound { run_id, .. } => Ok(run_id),
        TenantAnswer::NotFound => Err(Problem::not_found()),
        _ => Err(unexpected("find an approval", tenant_id)),
    }
}

/// The approval as its run has it.
pub async fn look<W: World>(
    world: &W,
    tenant_id: &TenantId,
    run_id: &RunId,
    id: &ApprovalId,
) -> Result<Box<RawValue>, Problem> {
    let op = RunOp::Approval {
        approval_id: id.clone(),
    };
    match ask(world, tenant_id, run_id, op, INVALID_DECISION).await? {
        RunResult::Shown(shown) => Ok(shown),
        _ => Err(unexpected_of_run("look at an approval", run_id)),
    }
}

/// Gives a person's answer. The approval as it then is, and whether it had been given before.
pub async fn answer_it<W: World>(
    world: &W,
    tenant_id: &TenantId,
    run_id: &RunId,
    id: &ApprovalId,
    answer: Answer,
    request: Option<RequestRef>,
) -> Result<(Box<RawValue>, bool), Problem> {
    let op = RunOp::Answer {
        approval_id: id.clone(),
        answer,
        request,
    };
    match ask(world, tenant_id, run_id, op, INVALID_DECISION).await? {
        RunResult::Done {
            replayed,
            shown: Some(shown),
            ..
        } => Ok((shown, replayed)),
        _ => Err(unexpected_of_run("answer", run_id)),
    }
}

/// What the page and the links go by.
#[derive(serde::Deserialize)]
struct Standing {
    status: String,
    decided_by: Option<String>,
    decided_at: Option<Timestamp>,
}

fn require_pending(shown: &RawValue, run_id: &RunId) -> Result<(), Problem> {
    let standing: Standing = serde_json::from_str(shown.get())
        .map_err(|_| unexpected_of_run("look at an approval", run_id))?;
    if standing.status == "pending" {
        return Ok(());
    }
    let by = standing.decided_by.as_deref();
    Err(Problem::already_decided(
        &standing.status,
        by,
        standing.decided_at,
    ))
}
