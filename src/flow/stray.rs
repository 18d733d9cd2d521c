//! What no run can take is kept for a person, with the bytes as they came.

use crate::json::{self, Json, Value, Violation};
use crate::ports::{Fault, StrayLetter, TenantAnswer, TenantCall, World};
use crate::run::event::DeadLetterReason;
use crate::words::{DeadLetterId, TenantId};

/// The tenant of the operator: holds what names no tenant that exists. No name of a tenant begins
/// with an underscore.
pub const OPERATOR: &str = "_operator";

/// Keeps an envelope that failed its schema as a dead letter of its tenant.
pub async fn keep<W: World>(
    world: &W,
    tenant_id: &TenantId,
    reason: DeadLetterReason,
    envelope: Value,
    errors: Vec<Violation>,
) -> Result<DeadLetterId, Fault> {
    let now = world.now();
    let [r0, r1, r2, r3, r4, r5, r6, r7, r8, r9, ..] = world.random();
    let dead_letter_id = DeadLetterId::new(now, [r0, r1, r2, r3, r4, r5, r6, r7, r8, r9]);
    let letter = StrayLetter {
        dead_letter_id: dead_letter_id.clone(),
        reason,
        message: json::sentence(&errors),
        errors,
        envelope: Json::new(envelope),
        now,
    };
    match world
        .tenant(tenant_id, &TenantCall::KeepDeadLetter { letter })
        .await?
    {
        TenantAnswer::NotFound => Err(Fault::new(
            "keep a dead letter",
            tenant_id.as_str(),
            "there is no such tenant",
        )),
        _ => Ok(dead_letter_id),
    }
}

/// Keeps a message that a consumer could make nothing of: with its tenant where it names one that
/// exists, else with the operator.
pub async fn keep_message<W: World>(
    world: &W,
    body: &str,
    errors: Vec<Violation>,
) -> Result<DeadLetterId, Fault> {
    let value = json::read(body.as_bytes()).unwrap_or_else(|_| Value::String(body.to_owned()));
    let envelope = match &value {
        Value::Object(members) if members.len() == 1 => {
            members.values().next().cloned().unwrap_or_default()
        }
        _ => value.clone(),
    };
    let named = envelope
        .get("tenant_id")
        .and_then(Value::as_str)
        .map(TenantId::parse);
    if let Some(Ok(tenant_id)) = named {
        let reason = DeadLetterReason::InvalidEnvelope;
        let kept = keep(world, &tenant_id, reason, envelope.clone(), errors.clone()).await;
        if kept.is_ok() {
            return kept;
        }
    }
    let operator = operator()?;
    // The operator's object is made with its first letter.
    world
        .tenant(&operator, &TenantCall::Create { now: world.now() })
        .await?;
    keep(
        world,
        &operator,
        DeadLetterReason::InvalidEnvelope,
        envelope,
        errors,
    )
    .await
}

pub fn operator() -> Result<TenantId, Fault> {
    reserved(OPERATOR)
}

/// The object that lists the tenants.
pub fn directory() -> Result<TenantId, Fault> {
    reserved("_directory")
}

fn reserved(name: &str) -> Result<TenantId, Fault> {
    TenantId::reserved(name).ok_or_else(|| Fault::new("name", name, "is not reserved"))
}
