//! Keeps the tenants' indexes of runs and dead letters: what the `events` queue is for.

use std::collections::BTreeMap;

use crate::ports::{Fault, Projection, TenantAnswer, TenantCall, World};
use crate::words::TenantId;

/// Tells each tenant of a batch what changed, in one commit a tenant. Answers, for each message in
/// its order, whether it is dealt with.
pub async fn index<W: World>(world: &W, bodies: &[String]) -> Vec<bool> {
    let mut dealt_with = vec![true; bodies.len()];
    let mut by_tenant: BTreeMap<TenantId, Vec<(usize, Projection)>> = BTreeMap::new();
    for (number, body) in bodies.iter().enumerate() {
        match serde_json::from_str::<Projection>(body) {
            Ok(projection) => {
                by_tenant
                    .entry(projection.tenant_id.clone())
                    .or_default()
                    .push((number, projection));
            }
            // Written by a run's object and by nobody else: the sweeper brings the index up to date.
            Err(error) => world.log(&format!(
                "a message of the events queue was dropped: {error}"
            )),
        }
    }
    for (tenant_id, projections) in by_tenant {
        let (numbers, projections): (Vec<_>, Vec<_>) = projections.into_iter().unzip();
        if let Err(fault) = project(world, &tenant_id, projections).await {
            world.log(&format!("an index will be told again: {fault}"));
            for number in numbers {
                if let Some(flag) = dealt_with.get_mut(number) {
                    *flag = false;
                }
            }
        }
    }
    dealt_with
}

pub async fn project<W: World>(
    world: &W,
    tenant_id: &TenantId,
    projections: Vec<Projection>,
) -> Result<(), Fault> {
    match world
        .tenant(tenant_id, &TenantCall::Project { projections })
        .await?
    {
        TenantAnswer::Done => Ok(()),
        _ => Err(Fault::new(
            "index",
            tenant_id.as_str(),
            "got an answer of another kind",
        )),
    }
}
