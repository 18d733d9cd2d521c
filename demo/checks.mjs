// What must be true at the end of an act.

/** Collects checks: what is to be true, and the lines that speak against it. */
export class Checks {
  #checks = [];

  /** `wrong`: each entry that is not falsy is a line against `what`. */
  expect(what, wrong) {
    this.#checks.push({ what, wrong: wrong.filter(Boolean) });
  }

  /** The logs, each oldest entry first. */
  expectWholeLogs(logs) {
    this.expect(
      "every log is whole: no gap, each entry chained to the one before",
      logs.flatMap((log) =>
        log.map((entry, index) => {
          const chained = index === 0 || entry.prev_hash === log[index - 1].hash;
          return (entry.seq !== index + 1 || !chained) && `${entry.run_id}: entry ${entry.seq}`;
        }),
      ),
    );
  }

  /** Shows them, and tells whether all is as it should be. */
  report(screen) {
    for (const { what, wrong } of this.#checks) {
      screen.say([`${wrong.length ? "✗" : "✓"} ${what}`, ...wrong.map((line) => `    ${line}`)].join("\n"));
    }
    return this.#checks.every(({ wrong }) => wrong.length === 0);
  }
}
