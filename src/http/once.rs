//! A client's `Idempotency-Key`: what was carried out under it is answered again, not done again.
//!
//! This is for what no run records by itself. A failure of ours is not kept as the answer, so that
//! asking again can succeed.

use std::future::Future;

use crate::ports::{TenantAnswer, TenantCall, World};
use crate::run::event::RequestRef;
use crate::words::TenantId;

use super::Response;
use super::problem::Problem;

/// How a request under a key begins.
pub enum Begun {
    /// Carry it out.
    Fresh,
    /// It was carried out, and so it was answered.
    Before { status: u16, body: String },
}

/// `keeper` is the tenant whose object remembers the key.
pub async fn begin<W: World>(
    world: &W,
    keeper: &TenantId,
    request: &RequestRef,
) -> Result<Begun, Problem> {
    let call = TenantCall::BeginRequest {
        request: request.clone(),
        now: world.now(),
    };
    match world.tenant(keeper, &call).await? {
        TenantAnswer::Begun => Ok(Begun::Fresh),
        TenantAnswer::Answered { status, body } => Ok(Begun::Before { status, body }),
        TenantAnswer::KeyReused => Err(Problem::key_reused()),
        TenantAnswer::NotFound => Err(Problem::not_found()),
        _ => Err(super::unexpected("begin a request", keeper)),
    }
}

/// Keeps the answer to a request that was begun. Where somebody carried it out at the same time and
/// was first, theirs is the answer. It has been carried out, so trouble here is only logged.
pub async fn finish<W: World>(
    world: &W,
    keeper: &TenantId,
    request: RequestRef,
    status: u16,
    body: &str,
) -> Option<(u16, String)> {
    let call = TenantCall::FinishRequest {
        request,
        status,
        body: body.to_owned(),
    };
    match world.tenant(keeper, &call).await {
        Ok(TenantAnswer::Answered { status, body }) => Some((status, body)),
        Ok(_) => None,
        Err(fault) => {
            world.log(&format!(
                "an answer was not kept for its Idempotency-Key: {fault}"
            ));
            None
        }
    }
}

/// Whether an answer is final: a failure of ours, or a refusal for now, is not.
pub fn is_final(status: u16) -> bool {
    status < 500 && status != 429
}

/// Does `work` unless it was done before under the same key.
pub async fn once<W: World>(
    world: &W,
    keeper: &TenantId,
    request: Option<RequestRef>,
    work: impl Future<Output = Result<Response, Problem>>,
) -> Result<Response, Problem> {
    let Some(request) = request else {
        return work.await;
    };
    if let Begun::Before { status, body } = begin(world, keeper, &request).await? {
        return Ok(Response::replay(status, body));
    }
    let response = match work.await {
        Ok(response) => response,
        Err(problem) if is_final(problem.kind.status) => problem.into_response(),
        Err(problem) => return Err(problem),
    };
    match finish(world, keeper, request, response.status, &response.body).await {
        Some((status, body)) => Ok(Response::replay(status, body)),
        None => Ok(response),
    }
}
