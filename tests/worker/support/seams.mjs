// The routes under /dev.

export const seamsOf = (client) => ({
  arm: (name, action, options = {}) => client.ok("POST", "/dev/failpoints", { body: { name, action, times: 1, ...options } }),
  armed: () => client.ok("GET", "/dev/failpoints"),
  disarm: () => client.ok("DELETE", "/dev/failpoints"),
  kv: (mode) => client.ok("POST", "/dev/kv", { body: { mode } }),
  kvCounts: () => client.ok("GET", "/dev/kv"),
  sweep: () => client.ok("POST", "/dev/sweep"),
  evict: (runId) => client.ok("POST", `/dev/runs/${runId}/evict`),
  advance: (runId, advance) => client.ok("POST", `/dev/runs/${runId}/clock`, { body: { advance } }),
  redeliver: (runId, stepIndex, copies) =>
    client.ok("POST", `/dev/runs/${runId}/redeliver`, { body: { step_index: stepIndex, copies } }),
  internals: (runId) => client.ok("GET", `/dev/runs/${runId}/internals`),
});
