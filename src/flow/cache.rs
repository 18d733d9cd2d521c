//! Outcomes in KV: a safety net for when a run's object cannot be told, and never a permission.

use std::pin::pin;

use futures::future::{Either, select};
use serde::{Deserialize, Serialize};

use crate::decide::Report;
use crate::ports::{Fault, World};
use crate::words::TenantId;

use super::hold::Hold;

/// How long a worker waits for the cache: a slow one is an empty one.
const CACHE_MS_MAX: i64 = 1_000;

/// An outcome as KV holds it: which attempt it is of, and what it was.
#[derive(Debug, Serialize, Deserialize)]
pub struct PutAside {
    pub step_index: u32,
    pub token: u64,
    pub report: Report,
}

/// Keeps an effect's outcome where a later worker finds it. Only what is certain is worth keeping.
pub async fn put<W: World>(world: &W, hold: &Hold<'_>, report: &Report) -> Result<(), Fault> {
    if !matches!(report, Report::Completed { .. } | Report::Planned(_)) {
        return Ok(());
    }
    let key = outcome_key(hold.tenant_id, hold.idempotency_key);
    let aside = PutAside {
        step_index: hold.step_index,
        token: hold.token,
        report: report.clone(),
    };
    let text = serde_json::to_string(&aside)
        .map_err(|e| Fault::new("write an outcome", key.as_str(), e.to_string()))?;
    world.put_outcome(&key, &text).await
}

/// The outcome that a lost worker of this very step may have put aside.
pub async fn of_lost_worker<W: World>(world: &W, hold: &Hold<'_>) -> Option<Report> {
    let aside = find(world, hold.tenant_id, hold.idempotency_key).await?;
    (aside.step_index == hold.step_index).then_some(aside.report)
}

/// A cache that fails, is slow, or holds what cannot be read, is a cache that holds nothing.
pub async fn find<W: World>(
    world: &W,
    tenant_id: &TenantId,
    idempotency_key: &str,
) -> Option<PutAside> {
    let key = outcome_key(tenant_id, idempotency_key);
    let asked = pin!(world.outcome(&key));
    let patience = pin!(world.sleep(CACHE_MS_MAX));
    match select(asked, patience).await {
        Either::Left((found, _)) => serde_json::from_str(&found.ok()??).ok(),
        Either::Right(_) => None,
    }
}

/// The key holds hex after the last slash and a tenant's name has no slash, so no two meet.
fn outcome_key(tenant_id: &TenantId, idempotency_key: &str) -> String {
    format!("outcome/{tenant_id}/{idempotency_key}")
}
