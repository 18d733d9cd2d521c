// What the other scripts share: where things are, running a command, saying how long it took.

import { spawn } from "node:child_process";
import { dirname, join, resolve } from "node:path";
import { fileURLToPath } from "node:url";

export const root = resolve(dirname(fileURLToPath(import.meta.url)), "..");

/** Cargo's output for the native build, and apart from it that of the WebAssembly build. */
export const targetDir = resolve(root, process.env.CARGO_TARGET_DIR ?? "target");
export const edgeTargetDir = join(targetDir, "edge");

/** Runs to the end with the terminal's input and output; rejects when it fails. */
export function run(command, args, { env = {}, cwd = root, quiet = false } = {}) {
  return new Promise((done, fail) => {
    const child = spawn(command, args, {
      cwd,
      env: { ...process.env, ...env },
      stdio: ["ignore", quiet ? "pipe" : "inherit", quiet ? "pipe" : "inherit"],
      shell: process.platform === "win32",
    });
    let output = "";
    child.stdout?.on("data", (chunk) => (output += chunk));
    child.stderr?.on("data", (chunk) => (output += chunk));
    child.on("error", (error) => fail(new Error(`${command}: ${error.message}`)));
    child.on("exit", (code, signal) => {
      if (code === 0) done(output);
      else fail(new Error(`${command} ${args.join(" ")} ended with ${signal ?? `exit code ${code}`}${output && `\n${output}`}`));
    });
  });
}

/** Runs one stage and prints its duration; a failure names the stage. */
export async function stage(name, work) {
  const started = performance.now();
  const seconds = () => `${((performance.now() - started) / 1000).toFixed(1)} s`;
  try {
    const result = await work();
    console.log(`• ${name}: ${seconds()}`);
    return result;
  } catch (error) {
    console.error(`✗ ${name}: failed after ${seconds()}`);
    throw error;
  }
}

/** The whole of a script: a failure is one text and exit code 1. */
export async function main(work) {
  try {
    await work();
  } catch (error) {
    console.error(error.message);
    process.exitCode = 1;
  }
}
