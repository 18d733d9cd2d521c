// `npm test`: the core natively, then the Worker on workerd. Arguments go to the Worker's test runner.

import { readdirSync } from "node:fs";
import { join } from "node:path";
import { setup } from "./setup.mjs";
import { build } from "./build.mjs";
import { newNode } from "./node.mjs";
import { main, root, run, stage } from "./steps.mjs";

await main(async () => {
  await setup();
  await stage("cargo test", () => run("cargo", ["test", "--locked"]));
  await build("local");
  const directory = join("tests", "worker");
  const files = readdirSync(join(root, directory))
    .filter((name) => name.endsWith(".test.mjs"))
    .map((name) => join(directory, name));
  if (files.length === 0) throw new Error(`no tests in ${directory}`);
  await stage("tests of the Worker", () => run(newNode(), ["--test", "--test-concurrency=3", ...process.argv.slice(2), ...files]));
});
