//! Carries a run's messages to their queue.

use crate::decide::Refusal;
use crate::ports::{
    Failpoint, Fault, Messages, Projection, Queue, RunCall, RunOp, RunResult, World,
};
use crate::words::{RunId, TenantId};

use super::index::project;

/// Sends what a run's object asked to have sent. A failure here loses nothing: the run's alarm
/// sends again whatever no worker has claimed in time, so it is told to the operator and that is all.
pub async fn relay<W: World>(world: &W, messages: &Messages) {
    for (queue, bodies) in [(Queue::Plan, &messages.plan), (Queue::Work, &messages.work)] {
        if bodies.is_empty() {
            continue;
        }
        if let Err(fault) = send(world, queue, bodies).await {
            world.log(&format!(
                "{} messages for {queue:?} not sent, their runs' alarms will: {fault}",
                bodies.len()
            ));
        }
    }
}

/// Asks a run's object, and has sent what it wants sent.
pub async fn ask<W: World>(
    world: &W,
    tenant_id: &TenantId,
    run_id: &RunId,
    op: RunOp,
) -> Result<Result<RunResult, Refusal>, Fault> {
    let tenant_id = tenant_id.clone();
    let answer = world.run(run_id, &RunCall { tenant_id, op }).await?;
    relay(world, &answer.messages).await;
    tell(world, answer.untold).await;
    Ok(answer.result)
}

/// Tells the index what a client is about to be shown, and may look for next. Where the index cannot be
/// told now, it hears by the queue.
pub async fn tell<W: World>(world: &W, untold: Vec<Projection>) {
    let Some(first) = untold.first() else {
        return;
    };
    let tenant_id = first.tenant_id.clone();
    if let Err(fault) = project(world, &tenant_id, untold).await {
        world.log(&format!("an index will be told later: {fault}"));
    }
}

async fn send<W: World>(world: &W, queue: Queue, bodies: &[String]) -> Result<(), Fault> {
    world.pass(Failpoint::OutboxBeforeSend).await?;
    world.send(queue, bodies).await?;
    world.pass(Failpoint::OutboxAfterSend).await
}
