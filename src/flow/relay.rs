//! Carries a run's messages to their queue.

use crate::ports::{Failpoint, Fault, Queue, World};

/// Sends what a run's object asked to have sent. A failure here loses nothing: the run's alarm
/// sends again whatever no worker has claimed in time, so it is told to the operator and that is all.
pub async fn relay<W: World>(world: &W, messages: &[String]) {
    if messages.is_empty() {
        return;
    }
    if let Err(fault) = send(world, messages).await {
        world.log(&format!(
            "{} work messages not sent, their runs' alarms will: {fault}",
            messages.len()
        ));
    }
}

async fn send<W: World>(world: &W, messages: &[String]) -> Result<(), Fault> {
    world.pass(Failpoint::OutboxBeforeSend).await?;
    world.send(Queue::Work, messages).await?;
    world.pass(Failpoint::OutboxAfterSend).await
}
