// `npm start`: set up, build, and serve on http://localhost:PORT until told to stop.

import { setup } from "./setup.mjs";
import { build } from "./build.mjs";
import { runInNewNode } from "./node.mjs";
import { main } from "./steps.mjs";

await main(async () => {
  await setup();
  await build("local");
  process.exitCode = await runInNewNode("./serve.mjs");
});
