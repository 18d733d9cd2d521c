// Builds the Worker: cargo (release, WebAssembly, panic=unwind), then xtask, into build/<kind>/.
//
// Usage: node scripts/build.mjs deploy|local      local has the cargo feature `test-seams`

import { createHash } from "node:crypto";
import { cpSync, existsSync, mkdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { gzipSync } from "node:zlib";
import { setup, xtask } from "./setup.mjs";
import { edgeTargetDir, main, root, run, stage } from "./steps.mjs";

const TARGET = "wasm32-unknown-unknown";
const FEATURES = { local: ["test-seams"], deploy: [] };

export async function build(kind) {
  if (!Object.hasOwn(FEATURES, kind)) throw new Error(`unknown build ${kind}: local or deploy`);
  await stage(`build ${kind}`, async () => {
    await compile(FEATURES[kind]);
    await bundle(kind);
  });
}

async function compile(features) {
  const args = ["build", "--release", "--lib", "--locked", "--target", TARGET, "--target-dir", edgeTargetDir];
  // A panic must not take the isolate with it: the standard library is rebuilt to unwind, which is
  // unstable, so the pinned stable toolchain is told to allow it (docs/decisions/0002-panic-unwind.md).
  args.push("-Zbuild-std=std,panic_unwind");
  if (features.length) args.push("--features", features.join(","));
  await run("cargo", args, {
    env: { RUSTC_BOOTSTRAP: "1", RUSTFLAGS: `${process.env.RUSTFLAGS ?? ""} -Cpanic=unwind`.trim() },
  });
}

/** Writes build/<kind>/ unless what it would be made of is unchanged. */
async function bundle(kind) {
  const tool = await xtask();
  const wasm = join(edgeTargetDir, TARGET, "release", "dormouse.wasm");
  const entry = join(root, "src", "edge", "worker.mjs");
  const output = join(root, "build", kind);
  const stamp = join(output, ".made-of");
  const hash = createHash("sha256");
  for (const path of [wasm, entry, tool]) hash.update(readFileSync(path));
  const madeOf = hash.digest("hex");
  if (existsSync(stamp) && readFileSync(stamp, "utf8") === madeOf) return;

  rmSync(output, { recursive: true, force: true });
  mkdirSync(output, { recursive: true });
  await run(tool, [wasm, output]);
  cpSync(entry, join(output, "worker.mjs"));
  writeFileSync(stamp, madeOf);
  const made = readFileSync(join(output, "index_bg.wasm"));
  const kilobytes = (bytes) => `${Math.round(bytes.length / 1000)} KB`;
  console.log(`  build/${kind}/index_bg.wasm: ${kilobytes(made)}, gzip ${kilobytes(gzipSync(made, { level: 9 }))}`);
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  await main(async () => {
    await setup();
    await build(process.argv[2] ?? "deploy");
  });
}
