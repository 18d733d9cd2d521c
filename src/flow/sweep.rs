//! The sweeper: proves, run by run, that whatever has not ended will wake, and mends what will not.

use crate::decide::Refusal;
use crate::ports::{Fault, RunCall, RunOp, RunResult, TenantAnswer, TenantCall, World};
use crate::words::{RunId, TenantId, Timestamp};

use super::index::project;
use super::relay::relay;

/// Runs whose index has heard nothing for this long are asked.
const QUIET_MS: i64 = 60_000;
const RUNS_PER_TENANT_MAX: usize = 200;
const TENANTS_PER_PAGE: usize = 500;

/// What one sweep found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Findings {
    pub tenants: u64,
    pub runs_checked: u64,
    /// Runs whose alarm should have fired and had not: it was set anew.
    pub rearmed: u64,
    /// Steps whose message was sent again.
    pub resent: u64,
    /// Entries of an index for runs that were never born.
    pub forgotten: u64,
    /// Runs that could not be asked, or whose log cannot be read.
    pub unanswered: u64,
}

/// Sweeps every tenant of the directory and `also`, those that need no entry there.
pub async fn sweep<W: World>(
    world: &W,
    directory: &TenantId,
    also: &[TenantId],
) -> Result<Findings, Fault> {
    let mut findings = Findings::default();
    sweep_tenants(world, also, &mut findings).await;
    let mut after = None;
    loop {
        let list = TenantCall::ListTenants {
            after,
            limit: TENANTS_PER_PAGE,
        };
        let TenantAnswer::Tenants(listed) = world.tenant(directory, &list).await? else {
            break;
        };
        sweep_tenants(world, &listed, &mut findings).await;
        match listed.last() {
            Some(last) if listed.len() == TENANTS_PER_PAGE => after = Some(last.clone()),
            _ => break,
        }
    }
    Ok(findings)
}

/// One tenant's trouble is not the next one's.
async fn sweep_tenants<W: World>(world: &W, tenants: &[TenantId], findings: &mut Findings) {
    for tenant_id in tenants {
        findings.tenants += 1;
        if let Err(fault) = sweep_tenant(world, tenant_id, findings).await {
            world.log(&format!("the sweep of a tenant stopped: {fault}"));
        }
    }
}

async fn sweep_tenant<W: World>(
    world: &W,
    tenant_id: &TenantId,
    findings: &mut Findings,
) -> Result<(), Fault> {
    let before = world.now().plus_ms(-QUIET_MS);
    let stale = TenantCall::StaleRuns {
        before,
        limit: RUNS_PER_TENANT_MAX,
    };
    let TenantAnswer::Stale(run_ids) = world.tenant(tenant_id, &stale).await? else {
        return Ok(());
    };
    let mut projections = Vec::new();
    for run_id in run_ids {
        findings.runs_checked += 1;
        let call = RunCall {
            tenant_id: tenant_id.clone(),
            op: RunOp::Check,
        };
        let Ok(answer) = world.run(&run_id, &call).await else {
            findings.unanswered += 1;
            continue;
        };
        findings.resent += answer.messages.len() as u64;
        relay(world, &answer.messages).await;
        match answer.result {
            Ok(RunResult::Checked {
                projections: told,
                rearmed,
                children,
            }) => {
                findings.rearmed += u64::from(rearmed);
                projections.extend(told);
                for child in children {
                    findings.resent += nudge(world, tenant_id, &child).await;
                }
            }
            Err(Refusal::NotFound) => {
                findings.forgotten += u64::from(forget(world, tenant_id, &run_id, before).await?);
            }
            _ => findings.unanswered += 1,
        }
    }
    if projections.is_empty() {
        Ok(())
    } else {
        project(world, tenant_id, projections).await
    }
}

/// A child whose end its parent waits for: one that has ended tells of it once more. The messages that
/// were sent.
async fn nudge<W: World>(world: &W, tenant_id: &TenantId, child: &RunId) -> u64 {
    let call = RunCall {
        tenant_id: tenant_id.clone(),
        op: RunOp::Check,
    };
    let Ok(answer) = world.run(child, &call).await else {
        return 0;
    };
    relay(world, &answer.messages).await;
    answer.messages.len() as u64
}

/// A run that was registered and not born within the quiet time never will be: its starter is gone
/// and got no answer.
async fn forget<W: World>(
    world: &W,
    tenant_id: &TenantId,
    run_id: &RunId,
    before: Timestamp,
) -> Result<bool, Fault> {
    if run_id.timestamp_ms() > before.ms() {
        return Ok(false);
    }
    world
        .tenant(
            tenant_id,
            &TenantCall::ForgetRun {
                run_id: run_id.clone(),
            },
        )
        .await?;
    Ok(true)
}
