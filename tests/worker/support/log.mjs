// What must hold of every run's log.

import assert from "node:assert/strict";
import { canonical, eventKey, nodeAt, readJson, sha256 } from "./json.mjs";
import { schemasOf } from "./contract.mjs";

const ZERO = "0".repeat(64);
const schemas = new Map();

/** The log's entries as the texts they were sent as, oldest first. */
export async function logTexts(client, runId) {
  const texts = [];
  // A long log comes in several answers.
  for (let path = `/v1/runs/${runId}/events`; path; ) {
    const { status, text, headers } = await client.get(path, { headers: { accept: "application/x-ndjson" } });
    assert.equal(status, 200, text);
    texts.push(...text.split("\n").slice(0, -1));
    path = /^<([^>]+)>; rel="next"$/.exec(headers.get("link") ?? "")?.[1];
  }
  return texts;
}

/**
 * Reads the log of a run and fails unless it is gapless, chained, hashed and keyed as the contract
 * says, and each entry fits its schema. Answers the entries.
 */
export async function verifyLog(client, runId) {
  return verifyTexts(client, runId, await logTexts(client, runId));
}

/** As `verifyLog`, of a log that was read before. */
export async function verifyTexts(client, runId, texts) {
  if (!schemas.has(client.url)) schemas.set(client.url, schemasOf(client));
  const checks = schemas.get(client.url);
  const entries = texts.map((text) => JSON.parse(text));
  assert.equal(entries[0]?.event_type, "run.created");
  let previous = ZERO;
  for (const [place, entry] of entries.entries()) {
    const text = texts[place];
    const where = `${runId} entry ${place + 1} (${entry.event_type})`;
    assert.equal(entry.seq, place + 1, `${where}: seq`);
    assert.equal(entry.run_id, runId, where);
    assert.equal(entry.trace_id, entries[0].trace_id, where);
    assert.equal(entry.prev_hash, previous, `${where}: prev_hash`);
    assert.equal(entry.hash, sha256(canonical(text, { without: ["hash"] })), `${where}: hash`);
    const payload = nodeAt(readJson(text), ["payload"]);
    const key = eventKey(runId, entry.step_index, text.slice(payload.start, payload.end));
    assert.equal(entry.idempotency_key, key, `${where}: idempotency_key`);
    if (place > 0) assert.ok(entry.timestamp >= entries[place - 1].timestamp, `${where}: time goes back`);
    await checks.check("log-entry", entry);
    await checks.check(entry.event_type, entry.payload);
    previous = entry.hash;
  }
  const count = (types) => entries.filter(({ event_type }) => types.test(event_type)).length;
  const [ends, retries] = [count(/^run\.(completed|failed|cancelled)$/), count(/^run\.retried$/)];
  assert.ok(ends <= retries + 1, `${runId} ended ${ends} times and was retried ${retries} times`);
  return entries;
}

/** The types of the entries, in order. */
export const typesOf = (entries) => entries.map(({ event_type }) => event_type);
