//! A tool that had answered 202 reports how its call went. The token in the path is the authority.

use crate::decide::{Callback, CallbackReport};
use crate::json::{self, Json, Value};
use crate::ports::{RunOp, RunResult, World};
use crate::schema;
use crate::signed::CallbackClaims;
use crate::words::sha256_hex;

use super::problem::{INVALID_CALLBACK, Problem};
use super::runs::{ask, unexpected_of_run};
use super::{Call, Response, fits};

/// Of a tool's error as JSON, in the log.
const ERROR_BYTES_MAX: usize = 2_000;

/// Whose callback a token is. A forged one is of nothing.
pub fn claims<W: World>(world: &W, token: &str) -> Result<CallbackClaims, Problem> {
    let signer = world.signer().ok_or_else(Problem::not_found)?;
    signer.open(token).ok_or_else(Problem::not_found)
}

pub async fn take<W: World>(
    call: &Call<'_, W>,
    claims: CallbackClaims,
) -> Result<Response, Problem> {
    // The token is a secret, so its digest stands for it.
    let digest = sha256_hex(call.param(0).as_bytes());
    let request = call.request_ref(format!("POST /v1/callbacks/{digest}"))?;
    let CallbackClaims {
        tenant_id,
        run_id,
        step_index,
        attempt,
        idempotency_key,
    } = claims;
    fits("a result", call.body.get("result"))?;
    schema::validate("callback-request", &call.body)
        .map_err(|errors| Problem::invalid(INVALID_CALLBACK, errors))?;
    let callback = Callback {
        step_index,
        attempt,
        idempotency_key,
        report: report(&call.body),
    };
    let op = RunOp::Callback { callback, request };
    match ask(call.world, &tenant_id, &run_id, op, INVALID_CALLBACK).await? {
        RunResult::Done { replayed, .. } => {
            let body = format!(r#"{{"run_id":"{run_id}","step_index":{step_index}}}"#);
            Ok(Response::json(200, body).replayed(replayed))
        }
        _ => Err(unexpected_of_run("call back", &run_id)),
    }
}

fn report(body: &Value) -> CallbackReport {
    if body.get("status").and_then(Value::as_str) == Some("failed") {
        let error = body.get("error").unwrap_or(&Value::Null);
        let retryable = body.get("retryable").and_then(Value::as_bool);
        return CallbackReport::Failed {
            message: message_of(error),
            retryable: retryable.unwrap_or(false),
        };
    }
    let result = body.get("result").cloned().unwrap_or(Value::Null);
    CallbackReport::Succeeded {
        result: Json::new(result),
    }
}

/// What the tool says went wrong: its `message`, or all of its error.
fn message_of(error: &Value) -> String {
    let said = error.get("message").and_then(Value::as_str);
    let mut text = said.map_or_else(|| json::write(error), str::to_owned);
    if text.len() > ERROR_BYTES_MAX {
        let end = text.floor_char_boundary(ERROR_BYTES_MAX);
        text.truncate(end);
        text.push('…');
    }
    format!("the tool called back that it failed: {text}")
}
