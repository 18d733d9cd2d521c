// Messages of the `work` queue, handed to the consumer as its queue would, or sent to the queue.

let counter = 0;

/** The message of a step, as the run's log has it. */
export function messageOf(log, stepIndex) {
  const entry = log.findLast((e) => e.event_type === "tool.requested" && e.step_index === stepIndex);
  if (!entry) throw new Error(`step ${stepIndex} was not requested`);
  const { seq, prev_hash, hash, ...envelope } = entry;
  return JSON.stringify({ envelope });
}

/**
 * Delivers one batch to the consumer and answers what it said of each message:
 * `{ acked: [index], retried: [{ index, delaySeconds }], whole: "retried" | undefined }`.
 */
export async function deliver(world, bodies, { attempts = 1, queue = "dormouse-work" } = {}) {
  counter += 1;
  const id = (index) => `batch${counter}-${index}`;
  const worker = await world.runtime.miniflare.getWorker();
  const result = await worker.queue(
    queue,
    bodies.map((body, index) => ({ id: id(index), timestamp: new Date(), attempts, body })),
  );
  const index = (messageId) => Number(messageId.split("-")[1]);
  return {
    outcome: result.outcome,
    acked: result.explicitAcks.map(index).sort((a, b) => a - b),
    retried: result.retryMessages.map(({ msgId, delaySeconds }) => ({ index: index(msgId), delaySeconds })),
    whole: result.retryBatch.retry ? "retried" : undefined,
  };
}

/** A text in the queue's own keeping. */
export async function send(world, binding, ...bodies) {
  const queue = await world.runtime.miniflare.getQueueProducer(binding);
  await queue.sendBatch(bodies.map((body) => ({ body, contentType: "text" })));
}
