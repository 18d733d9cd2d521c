// The clients in Python live in a virtual environment of their own, made when it is first needed.

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

/**
 * The path of a command of requirements.txt, installed. Where there is no Python or no registry, the
 * test is skipped and this returns undefined; with CLIENTS_REQUIRED=1 it fails instead.
 */
export async function pythonCommand(t, name) {
  const requirements = join(here, "requirements.txt");
  const digest = createHash("sha256").update(readFileSync(requirements)).digest("hex").slice(0, 16);
  const environment = join(root, "build", `clients-python-${digest}`);
  const command = join(environment, isWindows ? "Scripts" : "bin", isWindows ? `${name}.exe` : name);
  const complete = join(environment, "complete");
  if (existsSync(complete)) return command;

  console.log(`installing ${name} into ${relative(root, environment)}: others wrote it, and the API is tested with it`);
  try {
    rmSync(environment, { recursive: true, force: true });
    await run(isWindows ? "python" : "python3", ["-m", "venv", environment]);
    const pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r", requirements];
    await run(join(dirname(command), isWindows ? "python.exe" : "python"), pip);
    writeFileSync(complete, "");
    return command;
  } catch (error) {
    const why = `${name} needs Python 3 with venv, and its package registry: ${error.message.trim()}`;
    if (process.env.CLIENTS_REQUIRED === "1") throw new Error(why);
    console.log(`skipped: ${why}`);
    t.skip(why);
    return undefined;
  }
}
