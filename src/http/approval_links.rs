//! A person follows a signed link to an approval: sees what is asked, and decides. Looking changes
//! nothing. The token in the path is the authority.

use serde_json::value::RawValue;

use crate::decide;
use crate::json::{Json, Value, Violation};
use crate::ports::World;
use crate::schema;
use crate::signed::LinkClaims;
use crate::words::Timestamp;

use super::approval_page::{
    self, Answer, Decided, Filled, HEADERS, Malformed, Outcome, Shown, Unusable,
};
use super::approvals::{answer_it, look};
use super::problem::{ALREADY_DECIDED, INVALID_DECISION, Problem};
use super::{Body, Request, Response};

/// An approval as the page needs it.
#[derive(serde::Deserialize)]
struct Approval {
    status: String,
    run_id: String,
    step_id: Option<String>,
    prompt: String,
    schema: Option<Json>,
    tool: Option<String>,
    arguments: Option<Json>,
    arguments_digest: Option<String>,
    until: Option<Timestamp>,
    comment: Option<String>,
    decided_by: Option<String>,
    decided_at: Option<Timestamp>,
}

pub async fn follow<W: World>(
    world: &W,
    request: &Request,
    token: &str,
) -> Result<Response, Problem> {
    let claims: Option<LinkClaims> = world.signer().and_then(|signer| signer.open(token));
    let Some(claims) = claims else {
        return Ok(unusable(&Unusable::Forged));
    };
    if claims.expires_at <= world.now() {
        return Ok(unusable(&Unusable::Expired));
    }
    let Some(approval) = find(world, &claims).await? else {
        return Ok(unusable(&Unusable::Forged));
    };
    let action = request.path.as_str();
    match request.method.as_str() {
        "POST" => answer(world, request, &claims, &approval, action).await,
        _ => Ok(page(200, show(&approval, &claims, action, false))),
    }
}

async fn find<W: World>(world: &W, claims: &LinkClaims) -> Result<Option<Approval>, Problem> {
    let LinkClaims {
        tenant_id,
        run_id,
        approval_id,
        ..
    } = claims;
    match look(world, tenant_id, run_id, approval_id).await {
        Ok(shown) => read(&shown).map(Some),
        Err(problem) if problem.kind.status == 404 => Ok(None),
        Err(problem) => Err(problem),
    }
}

fn read(shown: &RawValue) -> Result<Approval, Problem> {
    serde_json::from_str(shown.get()).map_err(|error| {
        crate::ports::Fault {
            retryable: false,
            ..crate::ports::Fault::new("read", "an approval", error.to_string())
        }
        .into()
    })
}

/// Decides once. Whoever comes too late sees what was decided.
async fn answer<W: World>(
    world: &W,
    request: &Request,
    claims: &LinkClaims,
    approval: &Approval,
    action: &str,
) -> Result<Response, Problem> {
    if approval.status != "pending" {
        return Ok(page(409, show(approval, claims, action, true)));
    }
    let Body::Bytes(bytes) = &request.body else {
        return Ok(unusable(&Malformed::TooLarge.into()));
    };
    let schema = approval.schema.as_deref();
    let bound = claims.decided_by.as_deref();
    let sent = match approval_page::read_form(bytes, schema, bound) {
        Ok(sent) => sent,
        Err(malformed) => return Ok(unusable(&malformed.into())),
    };
    let ask_again = |flaws: &[Violation]| {
        let shown = shown(approval, claims);
        Ok(page(
            422,
            approval_page::ask(&shown, action, &sent.filled, flaws),
        ))
    };
    let answer = match sent.answer.and_then(|answer| complete(answer, schema)) {
        Ok(answer) => answer,
        Err(flaws) => return ask_again(&flaws),
    };
    let LinkClaims {
        tenant_id,
        run_id,
        approval_id,
        ..
    } = claims;
    match answer_it(world, tenant_id, run_id, approval_id, answer, None).await {
        // The page that is shown then can be looked at again without deciding again.
        Ok(_) => Ok(Response::empty(303).header("location", action)),
        Err(problem) if problem.kind == ALREADY_DECIDED => {
            let now = find(world, claims).await?;
            let now = now.as_ref().unwrap_or(approval);
            Ok(page(409, show(now, claims, action, true)))
        }
        Err(problem) if problem.kind == INVALID_DECISION => ask_again(problem.flaws()),
        Err(problem) => Err(problem),
    }
}

/// An answer that can be given: somebody's, with data that fits.
fn complete(answer: Answer, schema: Option<&Value>) -> Result<decide::Answer, Vec<Violation>> {
    let Answer {
        decision,
        comment,
        decided_by,
        data,
    } = answer;
    if let (Some(schema), Some(data)) = (schema, &data) {
        schema::validate_with(schema, data, "/data")?;
    }
    let decided_by = decided_by.ok_or_else(|| {
        let message = "say who decides: it stands in the record";
        vec![Violation::new("/decided_by", message)]
    })?;
    Ok(decide::Answer {
        decision,
        data: data.map(Json::new),
        comment,
        decided_by,
        via: Some("link".to_owned()),
    })
}

fn show(approval: &Approval, claims: &LinkClaims, action: &str, too_late: bool) -> String {
    let outcome = match approval.status.as_str() {
        "approved" => Outcome::Approved,
        "rejected" => Outcome::Rejected,
        "expired" => Outcome::Expired,
        "cancelled" => Outcome::Cancelled,
        _ => {
            let shown = shown(approval, claims);
            return approval_page::ask(&shown, action, &Filled::default(), &[]);
        }
    };
    approval_page::decided(&Decided {
        outcome,
        by: approval.decided_by.as_deref(),
        at: approval.decided_at.unwrap_or(Timestamp::EPOCH),
        comment: approval.comment.as_deref(),
        prompt: &approval.prompt,
        tool: approval.tool.as_deref(),
        run_id: &approval.run_id,
        step_id: approval.step_id.as_deref().unwrap_or_default(),
        too_late,
    })
}

fn shown<'a>(approval: &'a Approval, claims: &'a LinkClaims) -> Shown<'a> {
    Shown {
        prompt: &approval.prompt,
        tool: approval.tool.as_deref(),
        arguments: approval.arguments.as_deref(),
        arguments_digest: approval.arguments_digest.as_deref(),
        schema: approval.schema.as_deref(),
        until: approval.until,
        run_id: &approval.run_id,
        step_id: approval.step_id.as_deref().unwrap_or_default(),
        decided_by: claims.decided_by.as_deref(),
    }
}

fn unusable(why: &Unusable) -> Response {
    page(why.status(), approval_page::unusable(why))
}

fn page(status: u16, html: String) -> Response {
    let headers = HEADERS.iter();
    let headers = headers.map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    Response {
        status,
        headers: headers.collect(),
        body: html,
        stream: None,
    }
}
