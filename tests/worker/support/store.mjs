// What a stopped Worker has on disk, to be damaged: only between its end and its next start.

import { readdirSync } from "node:fs";
import { join } from "node:path";
import { DatabaseSync } from "node:sqlite";

function databases(stateDir, className) {
  const directory = join(stateDir, "do", className);
  return readdirSync(directory)
    .filter((name) => name.endsWith(".sqlite"))
    .map((name) => ({ name: name.slice(0, -".sqlite".length), path: join(directory, name) }));
}

function opened(path, work) {
  const database = new DatabaseSync(path);
  try {
    return work(database);
  } finally {
    database.close();
  }
}

const hasTable = (database, name) => database.prepare("SELECT 1 FROM sqlite_master WHERE name = ?").get(name) !== undefined;

/** Does `work` with the database of a run's object; `id` is the object's. */
export function withRun(stateDir, runId, work) {
  for (const { name: id, path } of databases(stateDir, "dormouse-Run")) {
    const done = opened(path, (database) => {
      if (!hasTable(database, "log")) return undefined;
      const { body } = database.prepare("SELECT body FROM log WHERE seq = 1").get();
      return JSON.parse(body).run.run_id === runId ? { answer: work(database, id) } : undefined;
    });
    if (done) return done.answer;
  }
  throw new Error(`${runId} is nowhere below ${stateDir}`);
}

/** The rows of a run's log, as they are stored. */
export const rowsOf = (stateDir, runId) =>
  withRun(stateDir, runId, (database) => database.prepare("SELECT seq, body FROM log ORDER BY seq").all());

/** Writes one row of a run's log anew. */
export function putRow(stateDir, runId, seq, body) {
  withRun(stateDir, runId, (database) => database.prepare("UPDATE log SET body = ? WHERE seq = ?").run(body, seq));
}

/** Forgets the alarm of a run's object, as a platform might. */
export function loseAlarm(stateDir, runId) {
  const actor = withRun(stateDir, runId, (database, id) => {
    if (hasTable(database, "_cf_METADATA")) database.exec("DELETE FROM _cf_METADATA WHERE key = 1");
    return id;
  });
  const [{ path }] = databases(stateDir, "dormouse-Run").filter(({ name }) => name === "metadata");
  const { changes } = opened(path, (database) => database.prepare("DELETE FROM _cf_ALARM WHERE actor_id = ?").run(actor));
  if (changes !== 1) throw new Error(`${runId} had ${changes} alarms`);
}

/** Moves the time back by a minute at which the tenants' indexes want to hear of a run. */
export function ageIndex(stateDir, runId) {
  for (const { path } of databases(stateDir, "dormouse-Tenant")) {
    opened(path, (database) => {
      if (!hasTable(database, "runs")) return;
      database.prepare("UPDATE runs SET quiet_until = ?, updated_at = min(updated_at, ?) WHERE run_id = ?").run(Date.now() - 120_000, Date.now() - 120_000, runId);
    });
  }
}

/** Sets how many runs there have been below a run, on all levels together. */
export function setTreeCount(stateDir, rootRunId, count) {
  const changed = databases(stateDir, "dormouse-Tenant").map(({ path }) =>
    opened(path, (database) => {
      if (!hasTable(database, "trees")) return 0;
      return Number(database.prepare("UPDATE trees SET started = ? WHERE root_run_id = ?").run(count, rootRunId).changes);
    }),
  );
  if (changed.reduce((sum, changes) => sum + changes, 0) !== 1) throw new Error(`there is no count of the runs below ${rootRunId}`);
}
