// What others wrote in Python lives in virtual environments of their own, made when they are first needed.

import { execFile } from "node:child_process";
import { createHash } from "node:crypto";
import { existsSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { dirname, join, relative } from "node:path";
import { promisify } from "node:util";
import { fileURLToPath } from "node:url";

const here = dirname(fileURLToPath(import.meta.url));
const root = join(here, "..", "..");
const run = promisify(execFile);
const isWindows = process.platform === "win32";

/** The path of the commands of an environment with what a file of this folder lists, installed if it is not. */
export async function installed(requirements, pipArguments = []) {
  const file = join(here, requirements);
  const digest = createHash("sha256").update(readFileSync(file)).digest("hex").slice(0, 16);
  const environment = join(root, "build", `llm-python-${digest}`);
  const commands = join(environment, isWindows ? "Scripts" : "bin");
  const complete = join(environment, "complete");
  if (existsSync(complete)) return commands;
  console.log(`installing tests/llm/${requirements} into ${relative(root, environment)}`);
  rmSync(environment, { recursive: true, force: true });
  await run(isWindows ? "python" : "python3", ["-m", "venv", environment]);
  const pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", ...pipArguments, "-r", file];
  await run(join(commands, isWindows ? "python.exe" : "python"), pip);
  writeFileSync(complete, "");
  return commands;
}

/**
 * As `installed`, for tests: where there is no Python or no registry, answers why; with CLIENTS_REQUIRED=1
 * it throws instead.
 */
export async function commandsOrReason(requirements, pipArguments) {
  try {
    return { commands: await installed(requirements, pipArguments) };
  } catch (error) {
    const why = `this needs Python 3 with venv, and its package registry: ${error.message.trim()}`;
    if (process.env.CLIENTS_REQUIRED === "1") throw new Error(why);
    return { why };
  }
}

export const command = (commands, name) => join(commands, isWindows ? `${name}.exe` : name);
