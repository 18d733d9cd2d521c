// `npm run demo`: the acts in turn, each of which ends with a table and a check of everything.
// Exit code 1 if anything is off. `npm run demo -- claims` plays one of them. README.md tells more.

import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { Screen } from "./screen.mjs";

const ACTS = ["orders", "claims", "buyer"];

const asked = process.argv.slice(2);
const unknown = asked.filter((name) => !ACTS.includes(name));
if (unknown.length) {
  console.error(`there is no act ${unknown.join(", ")}: ${ACTS.join(" or ")}`);
  process.exit(2);
}

const temporary = await mkdtemp(join(tmpdir(), "dormouse-demo-"));
const screen = new Screen(process.stdout);
let act;

async function demo() {
  let allIsRight = true;
  for (const name of asked.length ? asked : ACTS) {
    const { open } = await import(`./${name}/act.mjs`);
    act = await open({ screen, temporary });
    if (stopping) return false;
    allIsRight = (await act.play()) && allIsRight;
    await act.close();
  }
  return allIsRight;
}

async function cleanUp() {
  await act?.close();
  await rm(temporary, { recursive: true, force: true, maxRetries: 5 });
}

let stopping = false;

/** Cleans up and ends the process, once: whoever is later finds it under way. */
async function end(exitCode) {
  if (stopping) return;
  stopping = true;
  await cleanUp();
  process.exit(exitCode);
}

for (const signal of ["SIGINT", "SIGTERM", "SIGHUP", "disconnect"]) process.on(signal, () => end(130));
process.stdout.on("error", () => end(1));

try {
  const allIsRight = await demo();
  await end(allIsRight ? 0 : 1);
} catch (error) {
  if (!stopping) console.error(`${error.stack}\n\nThe last that Dormouse wrote:\n${act?.log() ?? ""}`);
  await end(1);
}
