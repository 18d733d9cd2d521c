//! What a worker does with a step that it holds: keeps it while it acts, and reports.

use std::future::Future;
use std::pin::pin;

use futures::future::{Either, select};

use crate::decide::{Assignment, Extend, PlanAssignment, Report, Settle};
use crate::ports::{Fault, RunOp, RunResult, World};
use crate::words::{RunId, SpanId, TenantId, Timestamp, TraceId};

use super::cache;
use super::relay::ask;

/// How often a report is tried before it is put aside for a later worker.
const REPORT_TRIES: u32 = 3;
const REPORT_RETRY_MS: i64 = 200;

/// A step in a worker's hands.
#[derive(Clone, Copy)]
pub struct Hold<'a> {
    pub tenant_id: &'a TenantId,
    pub run_id: &'a RunId,
    pub step_index: u32,
    pub token: u64,
    pub idempotency_key: &'a str,
}

impl<'a> From<&'a Assignment> for Hold<'a> {
    fn from(assignment: &'a Assignment) -> Self {
        Self {
            tenant_id: &assignment.tenant_id,
            run_id: &assignment.run_id,
            step_index: assignment.step_index,
            token: assignment.token,
            idempotency_key: &assignment.idempotency_key,
        }
    }
}

impl<'a> From<&'a PlanAssignment> for Hold<'a> {
    fn from(assignment: &'a PlanAssignment) -> Self {
        Self {
            tenant_id: &assignment.tenant_id,
            run_id: &assignment.run_id,
            step_index: assignment.step_index,
            token: assignment.token,
            idempotency_key: &assignment.idempotency_key,
        }
    }
}

impl Hold<'_> {
    /// What a call under this claim carries: the run's trace, and a span of the claim's own.
    pub fn traceparent(&self, trace_id: &TraceId) -> String {
        let span = format!("{}/{}/{}", self.run_id, self.step_index, self.token);
        format!("00-{trace_id}-{}-01", SpanId::derive(&span))
    }
}

/// Waits for an answer, and asks for more time whenever half of a lease has passed.
pub async fn alive<W: World, T>(
    world: &W,
    hold: &Hold<'_>,
    mut lease_until: Timestamp,
    call: impl Future<Output = T>,
) -> T {
    let mut call = pin!(call);
    loop {
        let half = lease_until.ms_since(world.now()) / 2;
        let beat = pin!(world.sleep(half.max(100)));
        match select(call.as_mut(), beat).await {
            Either::Left((answer, _)) => return answer,
            Either::Right(((), _)) => match extend(world, hold).await {
                Some(until) => lease_until = until,
                // Told that the step is another's, or not told at all. The call is on its way: its
                // outcome is reported, and the run decides whether it still counts.
                None => return call.await,
            },
        }
    }
}

/// More time. `None`: the step is another's, or nobody could say.
pub async fn extend<W: World>(world: &W, hold: &Hold<'_>) -> Option<Timestamp> {
    let extend = Extend {
        step_index: hold.step_index,
        token: hold.token,
    };
    let op = RunOp::Extend(extend);
    match ask(world, hold.tenant_id, hold.run_id, op).await {
        Ok(Ok(RunResult::Extend(reply))) => reply.lease_until,
        _ => None,
    }
}

/// Reports, and is given the next step where there is one.
pub async fn settle<W: World>(
    world: &W,
    hold: &Hold<'_>,
    report: Report,
    wants_next: bool,
) -> Result<Option<Assignment>, Fault> {
    let settle = Settle {
        step_index: hold.step_index,
        token: hold.token,
        report,
        duplicates_suppressed: 0,
        wants_next,
    };
    let mut tries = 0;
    let answer = loop {
        tries += 1;
        let op = RunOp::Settle(settle.clone());
        match ask(world, hold.tenant_id, hold.run_id, op).await {
            Ok(answer) => break answer,
            Err(fault) if tries >= REPORT_TRIES => {
                let put = cache::put(world, hold, &settle.report).await;
                if let Err(second) = put {
                    world.log(&format!("an outcome of {} is lost: {second}", hold.run_id));
                }
                return Err(fault);
            }
            Err(_) => world.sleep(REPORT_RETRY_MS << tries).await,
        }
    };
    match answer {
        Ok(RunResult::Settle(reply)) => {
            if !reply.recorded {
                world.log(&format!("a late report of {} was dropped", hold.run_id));
            }
            Ok(reply.next.map(|next| *next))
        }
        Ok(_) => Err(Fault::new(
            "settle",
            hold.run_id.as_str(),
            "got an answer of another kind",
        )),
        Err(refusal) => {
            world.log(&format!(
                "a report of {} was refused: {refusal:?}",
                hold.run_id
            ));
            Ok(None)
        }
    }
}
