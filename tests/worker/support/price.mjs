// What the platform asks for an operation, beyond what is included, on the Workers Paid plan.

/** US dollars for a million of each, as the pages said in November 2026. */
export const PRICES = [
  { operation: "request", usd: 0.3, source: "https://developers.cloudflare.com/workers/platform/pricing/" },
  { operation: "cpu_ms", usd: 0.02, source: "https://developers.cloudflare.com/workers/platform/pricing/" },
  { operation: "object_call", usd: 0.15, source: "https://developers.cloudflare.com/durable-objects/platform/pricing/" },
  // 12.50 for a million GB-s, and an object counts as 128 MB.
  { operation: "object_ms", usd: 0.0016, source: "https://developers.cloudflare.com/durable-objects/platform/pricing/" },
  { operation: "row_written", usd: 1, source: "https://developers.cloudflare.com/durable-objects/platform/pricing/" },
  // Written, read and deleted: three operations at 0.40.
  { operation: "queue_message", usd: 1.2, source: "https://developers.cloudflare.com/queues/platform/pricing/" },
  { operation: "kv_read", usd: 0.5, source: "https://developers.cloudflare.com/kv/platform/pricing/" },
  { operation: "kv_write", usd: 5, source: "https://developers.cloudflare.com/kv/platform/pricing/" },
];

/** The times that cannot be counted locally, in milliseconds. */
export const ASSUMED = { cpu_ms_of_request: 3, cpu_ms_of_consumer: 10, object_ms_of_call: 5 };

/** US dollars for a million times these operations, and what each part of it is. */
export function priceOf(counts) {
  const known = new Set(PRICES.map(({ operation }) => operation));
  for (const operation of Object.keys(counts)) {
    if (!known.has(operation)) throw new Error(`no price for ${operation}`);
  }
  const parts = PRICES.map(({ operation, usd }) => [operation, (counts[operation] ?? 0) * usd]).filter(([, usd]) => usd > 0);
  return { usd: parts.reduce((sum, [, usd]) => sum + usd, 0), parts: Object.fromEntries(parts) };
}
