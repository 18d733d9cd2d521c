//! Envelopes from clients, one or many at a time.

use futures::StreamExt;
use futures::stream;
use serde_json::{Map, json};

use crate::flow::front::{Taken, take_envelope};
use crate::json::{self, Value, Violation};
use crate::ports::{Fault, World};
use crate::words::TenantId;
use crate::words::limits::{ENVELOPES_PER_REQUEST_MAX, VIOLATIONS_MAX};

use super::once::once;
use super::problem::{INVALID_ENVELOPE, Problem, violations};
use super::{Call, Response, fits};

/// Runs that are asked at the same time for one request.
const RUNS_AT_ONCE: usize = 8;

pub async fn take<W: World>(call: &Call<'_, W>, tenant_id: &TenantId) -> Result<Response, Problem> {
    let request = call.request_ref("POST /v1/envelopes")?;
    let envelopes = match &call.body {
        Value::Array(envelopes) => envelopes.as_slice(),
        one => std::slice::from_ref(one),
    };
    if envelopes.is_empty() || envelopes.len() > ENVELOPES_PER_REQUEST_MAX {
        let message = format!("expected 1 to {ENVELOPES_PER_REQUEST_MAX} envelopes");
        return Err(Problem::invalid(
            INVALID_ENVELOPE,
            vec![Violation::new("", message)],
        ));
    }
    for envelope in envelopes {
        fits("the payload of an envelope", envelope.get("payload"))?;
    }
    let is_array = call.body.is_array();
    once(call.world, tenant_id, request, async {
        let taken = take_all(call.world, tenant_id, envelopes).await?;
        answer(taken, is_array)
    })
    .await
}

/// The run that some envelopes name, and they with their places in the request.
type OfRun<'e> = (Option<&'e str>, Vec<(usize, &'e Value)>);

/// Takes envelopes, those of one run in their order. Answers in the order of the envelopes.
async fn take_all<W: World>(
    world: &W,
    tenant_id: &TenantId,
    envelopes: &[Value],
) -> Result<Vec<Taken>, Fault> {
    let mut by_run: Vec<OfRun<'_>> = Vec::new();
    for (index, envelope) in envelopes.iter().enumerate() {
        let run_id = envelope.get("run_id").and_then(Value::as_str);
        match by_run
            .iter_mut()
            .find(|(known, _)| run_id.is_some() && *known == run_id)
        {
            Some((_, group)) => group.push((index, envelope)),
            None => by_run.push((run_id, vec![(index, envelope)])),
        }
    }
    let groups = by_run.into_iter().map(|(_, group)| async move {
        let mut taken = Vec::new();
        for (index, envelope) in group {
            taken.push((
                index,
                take_envelope(world, tenant_id, envelope.clone()).await?,
            ));
        }
        Ok::<_, Fault>(taken)
    });
    let groups: Vec<_> = stream::iter(groups)
        .buffer_unordered(RUNS_AT_ONCE)
        .collect()
        .await;
    let mut all = Vec::new();
    for group in groups {
        all.extend(group?);
    }
    all.sort_by_key(|(index, _)| *index);
    Ok(all.into_iter().map(|(_, taken)| taken).collect())
}

fn answer(taken: Vec<Taken>, is_array: bool) -> Result<Response, Problem> {
    let mut accepted = Vec::new();
    let mut rejected = Vec::new();
    let mut flaws: Vec<Violation> = Vec::new();
    for (index, taken) in taken.into_iter().enumerate() {
        match taken {
            Taken::Accepted(envelope) => accepted.push(json!({
                "event_id": envelope.event_id.as_str(),
                "run_id": envelope.run_id.as_str(),
                "step_index": envelope.step_index,
                "idempotency_key": envelope.idempotency_key,
            })),
            Taken::Rejected {
                dead_letter_id,
                mut errors,
            } => {
                // The dead letter has them all.
                errors.truncate(VIOLATIONS_MAX);
                rejected.push(json!({
                    "index": index,
                    "dead_letter_id": dead_letter_id.as_ref().map(|id| id.as_str()),
                    "errors": violations(&errors),
                }));
                let left = VIOLATIONS_MAX.saturating_sub(flaws.len());
                flaws.extend(errors.into_iter().take(left).map(|mut flaw| {
                    if is_array {
                        flaw.pointer.insert_str(0, &format!("/{index}"));
                    }
                    flaw
                }));
            }
        }
    }
    if accepted.is_empty() {
        return Err(Problem::invalid(INVALID_ENVELOPE, flaws).with("rejected", rejected));
    }
    let mut body = Map::new();
    body.insert("accepted".to_owned(), accepted.into());
    body.insert("rejected".to_owned(), rejected.into());
    Ok(Response::json(202, json::write(&Value::Object(body))))
}
