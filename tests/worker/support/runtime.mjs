// The built Worker, running for one test file, with a sink for its tools.

import assert from "node:assert/strict";
import { accessSync, constants } from "node:fs";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before } from "node:test";
import { startRuntime } from "../../../scripts/runtime.mjs";
import { clientOf } from "./client.mjs";
import { startSink } from "./sink.mjs";

export const DEV_KEY = "dev-key";
export const ADMIN_TOKEN = "admin-token-of-the-tests";

const VARS = {
  DEV_API_KEY: DEV_KEY,
  ADMIN_TOKEN,
  TEST_SEAMS: "1",
  ALLOWED_INWARD_HOSTS: "localhost,127.0.0.1",
};

/** Where state goes: in memory where there is such a place, since what is tested is not the disk. */
function stateRoot() {
  const memory = "/dev/shm";
  try {
    accessSync(memory, constants.W_OK);
    return memory;
  } catch {
    return tmpdir();
  }
}

/** A new directory for the state of a Worker. */
export const newStateDir = () => mkdtemp(join(stateRoot(), "dormouse-test-"));

/**
 * Starts the Worker (with a state directory of its own unless one is given) and a sink.
 * @param {object} options as those of `startRuntime`, and `withSink`
 */
export async function startWorld({ vars = {}, stateDir, withSink = true, ...options } = {}) {
  const own = stateDir === undefined;
  const directory = stateDir ?? (await newStateDir());
  const sink = withSink ? await startSink() : undefined;
  const lines = [];
  const start = () =>
    startRuntime({
      stateDir: directory,
      vars: { ...VARS, ...vars },
      build: "local",
      cron: false,
      onLog: (text, level) => lines.push({ text, level }),
      ...options,
    });
  let runtime = await start();
  const world = {
    sink,
    stateDir: directory,
    /** What the Worker wrote: `{ text, level }`. */
    lines,
    get runtime() {
      return runtime;
    },
    get url() {
      return runtime.url;
    },
    get dev() {
      return clientOf(runtime.url, DEV_KEY);
    },
    get operator() {
      return clientOf(runtime.url, ADMIN_TOKEN);
    },
    get anonymous() {
      return clientOf(runtime.url, undefined);
    },
    /** Makes a tenant and answers a client with a key of it. */
    async tenant(tenantId, role = "admin") {
      const operator = clientOf(runtime.url, ADMIN_TOKEN);
      await operator.ok("POST", "/v1/tenants", { body: { tenant_id: tenantId } });
      return world.keyFor(tenantId, role);
    },
    /** A client with a new key of a tenant. */
    async keyFor(tenantId, role) {
      const operator = clientOf(runtime.url, ADMIN_TOKEN);
      const made = await operator.ok("POST", `/v1/tenants/${tenantId}/keys`, { body: { name: `${role} key`, role } });
      return Object.assign(clientOf(runtime.url, made.key), { keyId: made.key_id, tenantId });
    },
    /** Ends the Worker and starts it again on the same state, with `meanwhile` done in between. */
    async restart(meanwhile = async () => {}) {
      await runtime.dispose();
      await meanwhile();
      runtime = await start();
    },
    async close() {
      await runtime.dispose();
      await sink?.close();
      if (own) await rm(directory, { recursive: true, force: true });
    },
  };
  return world;
}

/** What no line of the Worker may say, unless a test asked for it. */
const TROUBLE = /panic|unreachable|RuntimeError|code had hung|hanging promise|not implemented on this platform/i;

/** The lines that tell of trouble which no failpoint made. */
export const troubleIn = (lines) => lines.map(({ text }) => text).filter((text) => TROUBLE.test(text) && !/failpoint/i.test(text));

/**
 * The world of a test file: started before its tests, closed after them, when nothing it wrote may
 * tell of a panic or a hang. Use its fields in tests only.
 */
export function worldOfFile(options) {
  const holder = {};
  before(async () => {
    holder.world = await startWorld(options);
  });
  after(async () => {
    await holder.world?.close();
    assert.deepEqual(troubleIn(holder.world?.lines ?? []), []);
  });
  return new Proxy(holder, { get: (_, name) => holder.world?.[name] });
}

let counter = 0;
/** A name that no other test of this process uses. */
export function unique(stem) {
  counter += 1;
  return `${stem}-${counter}`;
}
