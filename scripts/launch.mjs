// Builds, then runs a script of the project in a Node that is new enough: the demo, the benchmarks.
//
// Usage: node scripts/launch.mjs local|deploy <script, relative to the project> [arguments]

import { join } from "node:path";
import { pathToFileURL } from "node:url";
import { setup } from "./setup.mjs";
import { build } from "./build.mjs";
import { runInNewNode } from "./node.mjs";
import { main, root } from "./steps.mjs";

await main(async () => {
  const [kind, script, ...args] = process.argv.slice(2);
  if (!script) throw new Error("usage: node scripts/launch.mjs local|deploy <script> [arguments]");
  await setup();
  await build(kind);
  process.exitCode = await runInNewNode(pathToFileURL(join(root, script)), args);
});
