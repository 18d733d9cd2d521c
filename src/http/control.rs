//! A run as a whole: cancelled, paused, resumed, retried; signalled; and asked why it stands still.

use crate::decide::Control;
use crate::flow::front::retry_run;
use crate::json::{self, Json, Value, Violation};
use crate::ports::{RunOp, RunResult, World};
use crate::schema;
use crate::words::{RunId, SignalName, TenantId};

use super::once::once;
use super::problem::{
    INVALID_CANCEL, INVALID_CONTROL, INVALID_LIMITS, INVALID_RUN, INVALID_SIGNAL, Problem,
};
use super::runs::{ask, unexpected_of_run};
use super::{Call, Response, fits};

/// How far a diagnosis follows a run's children for what really holds it.
const LEVELS_MAX: usize = 8;

/// Carries out what is asked of the run as a whole; under a client's key once, so that a request sent
/// again does not undo what others have done since.
pub async fn control<W: World>(
    call: &Call<'_, W>,
    tenant_id: &TenantId,
    control: Control,
) -> Result<Response, Problem> {
    let run_id = call.run_id()?;
    let (word, schema, kind) = match control {
        Control::Cancel => ("cancel", "cancel-request", INVALID_CANCEL),
        Control::Pause => ("pause", "control-request", INVALID_CONTROL),
        Control::Resume => ("resume", "control-request", INVALID_CONTROL),
        Control::Retry => ("retry", "control-request", INVALID_CONTROL),
    };
    let request = call.request_ref(format!("POST /v1/runs/{run_id}/{word}"))?;
    schema::validate(schema, &call.body).map_err(|errors| Problem::invalid(kind, errors))?;
    let comment = call.text("comment");
    once(call.world, tenant_id, request.clone(), async {
        let result = if control == Control::Retry {
            retry_run(call.world, tenant_id, &run_id, comment, request)
                .await?
                .map_err(|refusal| Problem::refusal(refusal, kind))?
        } else {
            let op = RunOp::Control {
                control,
                comment,
                request,
            };
            ask(call.world, tenant_id, &run_id, op, kind).await?
        };
        match result {
            RunResult::Done {
                replayed,
                shown: Some(shown),
                ..
            } => Ok(Response::json(200, shown.get().to_owned()).replayed(replayed)),
            _ => Err(unexpected_of_run(word, &run_id)),
        }
    })
    .await
}

/// Lets a run use up more than its agent says.
pub async fn raise_limits<W: World>(
    call: &Call<'_, W>,
    tenant_id: &TenantId,
) -> Result<Response, Problem> {
    let run_id = call.run_id()?;
    let request = call.request_ref(format!("POST /v1/runs/{run_id}/limits"))?;
    schema::validate("limits-request", &call.body)
        .map_err(|errors| Problem::invalid(INVALID_LIMITS, errors))?;
    let mut limits = call.body.clone();
    if let Some(members) = limits.as_object_mut() {
        members.shift_remove("comment");
    }
    let op = RunOp::Raise {
        limits: Json::new(limits),
        comment: call.text("comment"),
        request,
    };
    match ask(call.world, tenant_id, &run_id, op, INVALID_LIMITS).await? {
        RunResult::Done {
            replayed,
            shown: Some(shown),
            ..
        } => Ok(Response::json(200, shown.get().to_owned()).replayed(replayed)),
        _ => Err(unexpected_of_run("raise the limits of", &run_id)),
    }
}

/// 202 means stored: whether anything waits for it yet or not.
pub async fn signal<W: World>(
    call: &Call<'_, W>,
    tenant_id: &TenantId,
) -> Result<Response, Problem> {
    let run_id = call.run_id()?;
    let name = SignalName::parse(call.param(1)).map_err(|error| {
        let errors = vec![Violation::new("", format!("the signal's name: {error}"))];
        Problem::invalid(INVALID_SIGNAL, errors)
    })?;
    let request = call.request_ref(format!("POST /v1/runs/{run_id}/signals/{name}"))?;
    fits("the payload of a signal", call.body.get("payload"))?;
    schema::validate("signal-request", &call.body)
        .map_err(|errors| Problem::invalid(INVALID_SIGNAL, errors))?;
    let payload = call.body.get("payload").cloned().unwrap_or(Value::Null);
    let op = RunOp::Signal {
        name: name.to_string(),
        payload: Json::new(payload),
        request,
    };
    match ask(call.world, tenant_id, &run_id, op, INVALID_SIGNAL).await? {
        RunResult::Done { replayed, seq, .. } => {
            let body = format!(r#"{{"run_id":"{run_id}","name":"{name}","seq":{seq}}}"#);
            Ok(Response::json(202, body).replayed(replayed))
        }
        _ => Err(unexpected_of_run("signal", &run_id)),
    }
}

/// Why the run is not moving. What a child run waits for is what its parent waits for, so the call
/// that releases the child is named.
pub async fn diagnosis<W: World>(
    call: &Call<'_, W>,
    tenant_id: &TenantId,
) -> Result<Response, Problem> {
    let run_id = call.run_id()?;
    let mut diagnosis = diagnose(call, tenant_id, &run_id).await?;
    if let Some(Value::Array(blockers)) = diagnosis.get_mut("blockers") {
        for blocker in blockers {
            if let Some((detail, release)) = deepest(call, tenant_id, blocker).await
                && let Value::Object(members) = blocker
            {
                members.insert("detail".to_owned(), detail.into());
                members.insert("release".to_owned(), release);
            }
        }
    }
    Ok(Response::json(200, json::write(&diagnosis)))
}

async fn diagnose<W: World>(
    call: &Call<'_, W>,
    tenant_id: &TenantId,
    run_id: &RunId,
) -> Result<Value, Problem> {
    match ask(call.world, tenant_id, run_id, RunOp::Diagnose, INVALID_RUN).await? {
        RunResult::Shown(shown) => json::read_stored(shown.get().as_bytes())
            .map_err(|_| unexpected_of_run("diagnose", run_id)),
        _ => Err(unexpected_of_run("diagnose", run_id)),
    }
}

/// What holds the child run that a blocker names, down to where nothing is a child's any more.
async fn deepest<W: World>(
    call: &Call<'_, W>,
    tenant_id: &TenantId,
    blocker: &Value,
) -> Option<(String, Value)> {
    let child_of = |blocker: &Value| {
        let child = blocker.get("child_run_id")?.as_str()?;
        RunId::parse(child).ok()
    };
    let mut child = child_of(blocker)?;
    let mut found = None;
    for _ in 0..LEVELS_MAX {
        let diagnosis = diagnose(call, tenant_id, &child).await.ok()?;
        let first = diagnosis.get("blockers").and_then(|all| all.get(0));
        let Some(first) = first else {
            let status = diagnosis.get("status").and_then(Value::as_str);
            let detail = format!("the child run {child} is {}", status.unwrap_or("unknown"));
            return Some((detail, Value::Null));
        };
        let text = |name: &str| first.get(name).and_then(Value::as_str).unwrap_or_default();
        let detail = format!(
            "the child run {child} waits: {}: {}",
            text("kind"),
            text("detail")
        );
        let release = first.get("release").cloned().unwrap_or(Value::Null);
        found = Some((detail, release));
        match child_of(first) {
            Some(next) => child = next,
            None => break,
        }
    }
    found
}
