// What the demo shows while it runs: a table that is drawn anew, or, where the output is no terminal
// (or too small a one), a line for each thing that happened.

import { styleText } from "node:util";

const MARKS = {
  scheduled: ["·", "gray"],
  running: ["▸", "cyan"],
  retrying: ["↻", "yellow"],
  dead_lettered: ["✗", "red"],
  failed: ["✗", "red"],
  completed: ["✓", "green"],
};
const mark = (status) => MARKS[status] ?? ["?", "gray"];

export class Screen {
  #stream;
  #started = performance.now();
  #drawn = [];
  #shown = new Map();

  constructor(stream) {
    this.#stream = stream;
  }

  /** A line that stays. */
  say(text = "") {
    this.#erase();
    this.#stream.write(`${text}\n`);
    this.#draw();
  }

  strong = (text) => this.#paint("bold", text);
  soft = (text) => this.#paint("dim", text);
  warn = (text) => this.#paint("yellow", text);

  #paint(style, text) {
    return this.#stream.isTTY ? styleText(style, text) : text;
  }

  /** The runs as they are now. */
  show(runs) {
    if (!this.#stream.isTTY || this.#stream.rows < runs.length + 4) return this.#showChanges(runs);
    this.#erase();
    this.#drawn = ["", ...runs.map(row)];
    this.#draw();
  }

  /** Leaves the last table where it is. */
  finish() {
    this.#drawn = [];
  }

  #erase() {
    if (this.#drawn.length) this.#stream.write(`\x1b[${this.#drawn.length}A\x1b[J`);
  }

  /** Without line wrap: each row is one line, however narrow the terminal. */
  #draw() {
    if (this.#drawn.length) this.#stream.write(`\x1b[?7l${this.#drawn.join("\n")}\n\x1b[?7h`);
  }

  #showChanges(runs) {
    const seconds = ((performance.now() - this.#started) / 1000).toFixed(1).padStart(5);
    for (const run of runs) {
      for (const step of run.steps) {
        const state = `${step.status} ${step.status === "retrying" ? step.attempts : ""}`;
        const key = `${run.run_id} ${step.id}`;
        if (this.#shown.get(key) === state) continue;
        this.#shown.set(key, state);
        if (["scheduled", "running"].includes(step.status)) continue;
        const error = step.status !== "completed" && step.error ? `: ${step.error.message}` : "";
        this.#stream.write(`${seconds} s  ${mark(step.status)[0]} ${run.tags.order} ${step.id} ${step.status}${error}\n`);
      }
    }
  }
}

/** One run. The name comes last: how wide it is, is known to the terminal alone. */
function row(run) {
  const steps = run.steps.map((step) => {
    const [sign, color] = mark(step.status);
    const attempt = step.attempts > 1 ? ` ${step.attempts}` : "  ";
    return styleText(color, `${sign} ${step.id}${attempt}`);
  });
  return `${steps.join(" ")} ${run.tags.order}  ${run.input.customer.name}`;
}
