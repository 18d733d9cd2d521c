// `npm run check`: formatting and lints, of the native build and of the WebAssembly one.

import { setup } from "./setup.mjs";
import { main, run, stage } from "./steps.mjs";

const xtask = ["--manifest-path", "xtask/Cargo.toml"];

await main(async () => {
  await setup();
  await stage("rustfmt", async () => {
    await run("cargo", ["fmt", "--check"]);
    await run("cargo", ["fmt", "--check", ...xtask]);
  });
  await stage("clippy", () => run("cargo", ["lint"]));
  await stage("clippy for WebAssembly", () => run("cargo", ["lint-edge"]));
});
