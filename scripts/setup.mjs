// Installs what is missing to build and run, and says what and why. Does nothing the second time.

import { createHash } from "node:crypto";
import { existsSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { edgeTargetDir, main, root, run, stage, targetDir } from "./steps.mjs";

const TARGET = "wasm32-unknown-unknown";

export const xtaskDir = join(targetDir, "xtask");

export async function setup() {
  await stage("setup", async () => {
    await rust();
    await packages();
  });
}

async function rust() {
  const toolchain = readFileSync(join(root, "rust-toolchain.toml"), "utf8").match(/channel = "(.+)"/)[1];
  let installed;
  try {
    installed = await run("rustup", ["toolchain", "list"], { quiet: true });
  } catch {
    throw new Error("rustup is needed to build: see https://rustup.rs");
  }
  if (!installed.split("\n").some((line) => line.startsWith(toolchain))) {
    console.log(`  installing Rust ${toolchain}: rust-toolchain.toml pins it`);
    await run("rustup", ["toolchain", "install", toolchain, "--profile", "minimal"]);
  }
  const present = (await run("rustup", ["component", "list", "--installed", "--toolchain", toolchain], { quiet: true })).split("\n");
  const has = (name) => present.some((line) => line === name || line.startsWith(`${name}-`));
  const add = (kind, name) => run("rustup", [kind, "add", name, "--toolchain", toolchain]);
  if (!has(`rust-std-${TARGET}`)) {
    console.log(`  installing the target ${TARGET}: the Worker is WebAssembly`);
    await add("target", TARGET);
  }
  if (!has("rust-src")) {
    console.log("  installing rust-src: the standard library is rebuilt so that a panic unwinds");
    await add("component", "rust-src");
  }
  for (const name of ["rustfmt", "clippy"]) {
    if (has(name)) continue;
    console.log(`  installing ${name}: npm run check uses it`);
    await add("component", name);
  }
}

async function packages() {
  const stamp = join(root, "node_modules", ".dormouse-installed");
  const wanted = createHash("sha256").update(readFileSync(join(root, "package-lock.json"))).digest("hex");
  if (existsSync(stamp) && readFileSync(stamp, "utf8") === wanted) return;
  console.log("  npm ci: wrangler and Miniflare, and a Node that is new enough for them");
  // Their install scripts only check or fetch what the platform packages already bring.
  await run("npm", ["ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]);
  writeFileSync(stamp, wanted);
}

/** Builds the small tool that makes the JavaScript side of the WebAssembly; returns its path. */
export async function xtask() {
  await run("cargo", ["build", "--quiet", "--locked", "--manifest-path", "xtask/Cargo.toml", "--target-dir", xtaskDir]);
  return join(xtaskDir, "debug", process.platform === "win32" ? "xtask.exe" : "xtask");
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  await main(async () => {
    await setup();
    await stage("xtask", xtask);
    console.log(`  build output: ${targetDir}, WebAssembly in ${edgeTargetDir}`);
  });
}
