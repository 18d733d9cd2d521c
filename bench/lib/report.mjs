// From repetitions to tables. Ratios are taken inside a round, where the systems ran one after another, and the median of the rounds is shown.
import { median, quantile } from "./stats.mjs";

export const NOISY_CORES = 0.6;

const MEASURES = {
  runs_per_second: { noise: "others_cores_many_lanes" },
  cpu_ms_per_run: { noise: "others_cores_many_lanes" },
  p50_ms: { noise: "others_cores_one_lane" },
  p99_ms: { noise: "others_cores_one_lane" },
  event_p50_ms: { noise: "others_cores_one_lane" },
  events_per_second: { noise: "others_cores_many_lanes" },
  disk_bytes_per_run: { noise: null },
  memory_bytes_per_run: { noise: null },
  idle_cores: { noise: null },
};

/** Cores that others kept busy while a measure was taken; 0 where it doesn't matter or isn't known. */
const noise = (repetition, measure) => repetition[MEASURES[measure].noise] ?? 0;
const isCalm = (repetition, measure) => noise(repetition, measure) < NOISY_CORES;
const usable = (repetition) => repetition !== undefined && repetition.error === undefined;

/** Takes the calm ones where there are three or more of them, else the three quietest, and says so. */
function choose(list, noiseOf) {
  const calm = list.filter((item) => noiseOf(item) < NOISY_CORES);
  if (calm.length >= 3) return { list: calm, noisy: false };
  const quietest = [...list].sort((a, b) => noiseOf(a) - noiseOf(b)).slice(0, 3);
  return { list: quietest, noisy: calm.length < quietest.length };
}

export function summarise(repetitions, system, store) {
  const own = repetitions.filter((r) => r.system === system && r.store === store && usable(r));
  if (own.length === 0) return null;
  const out = { system, store, repetitions: own.length };
  for (const measure of ["runs_per_second", "cpu_ms_per_run", "p50_ms", "p99_ms"]) {
    const { list, noisy } = choose(own, (r) => noise(r, measure));
    const values = list.map((r) => r[measure]).filter((v) => v !== null);
    const pooled = list.flatMap((r) => r.latencies_one_lane_ms);
    out[measure] = {
      value: measure === "p50_ms" ? quantile(pooled, 0.5) : measure === "p99_ms" ? quantile(pooled, 0.99) : median(values),
      best: measure === "runs_per_second" ? Math.max(...values) : undefined,
      calm: own.filter((r) => isCalm(r, measure)).length,
      noisy,
    };
  }
  out.others_cores = median(own.map((r) => r.others_cores_many_lanes));
  out.failures = own.reduce((n, r) => n + r.failures.length, 0);
  out.not_completed = own.reduce((n, r) => n + r.not_completed_of_last_40, 0);
  return out;
}

/** One system's measure over another's, round by round. */
export function ratio(repetitions, store, measure, system, base) {
  const of = (name, round) => repetitions.find((r) => r.system === name && r.store === store && r.round === round && usable(r));
  const rounds = [...new Set(repetitions.map((r) => r.round))];
  const pairs = rounds
    .map((round) => [of(system, round), of(base, round)])
    .filter(([a, b]) => a !== undefined && b !== undefined && a[measure] !== null && b[measure] !== null)
    // Memory may come out below zero where few runs wait: such a figure says nothing.
    .filter(([a, b]) => a[measure] >= 0 && b[measure] > 0);
  if (pairs.length === 0) return null;
  const { list, noisy } = choose(pairs, ([a, b]) => Math.max(noise(a, measure), noise(b, measure)));
  // A p99 of one repetition is one or two samples: pool the rounds first.
  const value =
    measure === "p99_ms"
      ? quantile(list.flatMap(([a]) => a.latencies_one_lane_ms), 0.99) / quantile(list.flatMap(([, b]) => b.latencies_one_lane_ms), 0.99)
      : median(list.map(([a, b]) => a[measure] / b[measure]));
  return { value, noisy, pairs: list.length };
}

const GOALS = [
  { goal: "runs/s, 32 lanes", store: "disk", measure: "runs_per_second", workflow: [">=", 1.6], floor: [">=", 0.75], stretch: ">= 0.9x floor" },
  { goal: "runs/s, 32 lanes", store: "shm", measure: "runs_per_second", workflow: [">=", 1.7], floor: [">=", 0.75], stretch: "-" },
  { goal: "start to third call, p50, 1 lane", store: "disk", measure: "p50_ms", workflow: ["<=", 0.6], floor: ["<=", 1.3], stretch: "<= 1.1x floor" },
  { goal: "start to third call, p50, 1 lane", store: "shm", measure: "p50_ms", workflow: ["<=", 0.6], floor: ["<=", 1.3], stretch: "<= 1.1x floor" },
  { goal: "start to third call, p99, 1 lane", store: "disk", measure: "p99_ms", workflow: ["<=", 0.7], floor: ["<=", 1.4], stretch: "<= 1.1x floor" },
  { goal: "CPU a run, 32 lanes", store: "shm", measure: "cpu_ms_per_run", workflow: ["<=", 0.65], floor: null, stretch: "<= 1.25x floor" },
];

// A waiting run is held against the floor that stores the least, a wake against the one that has a queue in its way, as Dormouse has.
const WAIT_GOALS = [
  { goal: "disk bytes a waiting run", measure: "disk_bytes_per_run", workflow: ["<=", 0.12], base: "floor-do", floor: ["<=", 2], absolute: ["<=", 16 * 1024], unit: (v) => `${number(v / 1024)} KiB`, stretch: "<= 12 KiB" },
  { goal: "memory a waiting run", measure: "memory_bytes_per_run", workflow: ["<=", 0.33], base: "floor-do", floor: null, absolute: ["<=", 160_000], unit: (v) => `${number(v / 1000, 0)} KB`, stretch: "<= 120 KB" },
  { goal: "idle cores with all waiting", measure: "idle_cores", workflow: null, base: "floor-do", floor: null, absolute: ["<=", 0.01], unit: (v) => number(v, 3), stretch: "0.00" },
  { goal: "event to next call, p50, 1 lane", measure: "event_p50_ms", workflow: ["<=", 0.6], base: "floor", floor: ["<=", 1.4], stretch: "<= 0.5x workflow" },
  { goal: "events/s, 32 lanes", measure: "events_per_second", workflow: [">=", 1.4], base: "floor", floor: [">=", 0.8], stretch: "-" },
];

const number = (value, digits = 1) => (value === null || value === undefined || !Number.isFinite(value) ? "-" : value.toFixed(digits));
const meets = (value, [sign, bound]) => (sign === ">=" ? value >= bound : value <= bound);

/** "yes" only where each bound could be looked at. */
const verdict = (verdicts, bounds) => (verdicts.includes(false) ? "no" : verdicts.length < bounds ? "-" : "yes");

function table(head, rows) {
  const lines = [head, ...rows.map((row) => row.map(String))];
  const widths = head.map((_, column) => Math.max(...lines.map((line) => line[column].length)));
  const print = (line) => `| ${line.map((cell, column) => (column === 0 ? cell.padEnd(widths[column]) : cell.padStart(widths[column]))).join(" | ")} |`;
  return [print(head), `| ${widths.map((width, column) => (column === 0 ? "-".repeat(width) : `${"-".repeat(width - 1)}:`)).join(" | ")} |`, ...lines.slice(1).map(print)].join("\n");
}

function goalRows(result) {
  const subject = result.systems.includes("dormouse") ? "dormouse" : "floor";
  const rows = [];
  const goals = [
    ...GOALS.map((goal) => ({ ...goal, source: result.w1 })),
    ...WAIT_GOALS.map((goal) => ({ ...goal, source: result.w2, store: result.stores[0]?.name })),
  ];
  for (const { goal, store, source, measure, workflow, floor, stretch, base: floorName = "floor", absolute, unit } of goals) {
    const cells = [workflow && ["workflow", workflow], floor && [floorName, floor]].filter(Boolean);
    const shown = {};
    const verdicts = [];
    const own = median(source.filter((r) => r.system === subject && r.store === store && usable(r)).map((r) => r[measure]));
    if (absolute && own !== null) verdicts.push(meets(own, absolute));
    for (const base of ["workflow", floorName]) {
      const found = subject === base ? null : ratio(source, store, measure, subject, base);
      shown[base] = found === null ? "-" : `${number(found.value, 2)}x${found.noisy ? "*" : ""}`;
      const bound = cells.find(([name]) => name === base)?.[1];
      if (found !== null && bound) verdicts.push(meets(found.value, bound));
    }
    const must = [absolute && `${absolute[0]} ${unit(absolute[1])}`, ...cells.map(([name, [sign, bound]]) => `${sign} ${bound}x ${name}`)].filter(Boolean).join(", ");
    if (own === null || (!absolute && shown.workflow === "-" && shown[floorName] === "-")) continue;
    const value = absolute ? `: ${unit(own)}` : "";
    rows.push([`${goal}, ${store}${value}`, shown.workflow, shown[floorName], must || "-", stretch, subject === "dormouse" && must ? verdict(verdicts, cells.length + (absolute ? 1 : 0)) : "-"]);
  }
  const fsyncs = Object.fromEntries(result.fsyncs.map((entry) => [entry.system, entry.per_run]));
  const own = fsyncs[subject];
  const share = (base) => (subject === base || own === undefined || fsyncs[base] === undefined ? "-" : `${number(own / fsyncs[base], 2)}x`);
  if (own !== undefined) rows.push([`fsyncs a run, 1 lane: ${number(own)}`, share("workflow"), share("floor"), "<= 15", "<= 13.5", subject === "dormouse" ? (own <= 15 ? "yes" : "no") : "-"]);
  const waits = Object.fromEntries(result.wait_fsyncs.map((entry) => [entry.system, entry.per_waiting_run]));
  if (waits[subject] !== undefined) {
    const against = (base) => (subject === base || waits[base] === undefined ? "-" : `${number(waits[subject] / waits[base], 2)}x`);
    rows.push([`fsyncs until a run waits, 1 lane: ${number(waits[subject])}`, against("workflow"), against("floor-do"), "<= 11", "<= 9.5", subject === "dormouse" ? (waits[subject] <= 11 ? "yes" : "no") : "-"]);
  }
  const held = result.w2.filter((entry) => entry.system === "dormouse" && entry.error === undefined);
  if (held.length > 0) {
    const sum = (field) => held.reduce((total, r) => total + r[field], 0);
    const all = (what, got, of) => rows.push([`${what}: ${got} of ${of}`, "", "", "all", "all", got === of ? "yes" : "no"]);
    all("waiting runs held", sum("held"), sum("asked"));
    all("kill -9: woken afterwards", sum("woken_after_restart"), sum("asked_after_restart"));
    all("kill -9: the others still waiting", sum("waiting_after_restart"), sum("left_after_restart"));
  }
  const tries = result.w3.filter((entry) => entry.system === "dormouse" && entry.error === undefined);
  if (tries.length > 0) {
    const lost = Math.max(...tries.map((t) => t.lost));
    const last = tries.some((t) => t.last_third_call_seconds === null) ? null : Math.max(...tries.map((t) => t.last_third_call_seconds));
    const more = Math.max(...tries.map((t) => t.keys_over_limit));
    const left = Math.max(...tries.map((t) => t.work_done_but_not_completed));
    const above = tries.filter((t) => t.keys_called_twice > t.runs_in_flight * t.kills).length;
    rows.push([`kill -9: runs lost, worst of ${tries.length}: ${lost}`, "", "", "0", "0", lost === 0 ? "yes" : "no"]);
    rows.push([`kill -9: last third call: ${last === null ? "never" : `${number(last)} s`}`, "", "", "<= 5 s", "<= 2 s", last !== null && last <= 5 ? "yes" : "no"]);
    rows.push([`kill -9: tries with more keys called twice than runs in flight: ${above}`, "", "", "0", "fewer", above === 0 ? "yes" : "no"]);
    rows.push([`kill -9: keys called more than once for each kill and once more: ${more}`, "", "", "0", "0", more === 0 ? "yes" : "no"]);
    rows.push([`kill -9: work done, not completed: ${left}`, "", "", "0", "0", left === 0 ? "yes" : "no"]);
  }
  return { subject, rows };
}

function renderWaits(result) {
  const out = [];
  const waits = result.wait_systems.map((system) => [system, result.w2.filter((r) => r.system === system && usable(r))]).filter(([, own]) => own.length > 0);
  const fsyncs = result.wait_fsyncs;
  const asked = result.options.waiting;
  if (waits.length > 0) {
    const columns = (own) => ({ of: (field) => median(own.map((r) => r[field])), sum: (field) => own.reduce((total, r) => total + r[field], 0), pooled: (field, q) => quantile(own.flatMap((r) => r[field]), q) });
    out.push(`\nW2, ${asked} runs that wait, on ${result.stores[0].name} (${result.stores[0].where}; at most ${result.open_files_limit ?? "?"} open files a process; medians of the rounds, memory and bytes 14 s after the last start)`);
    out.push(
      table(
        ["system", "held", "waits/s", "CPU ms a wait", "disk bytes a run", "without WALs", "memory KB a run", "memory MB", "open files", "idle cores"],
        waits.map(([system, own]) => {
          const { of } = columns(own);
          return [
            system,
            number(of("held"), 0),
            number(of("suspends_per_second"), 0),
            number(of("suspend_cpu_ms_per_run")),
            number(of("disk_bytes_per_run"), 0),
            number(of("disk_bytes_per_run_without_logs"), 0),
            number(of("memory_bytes_per_run") / 1000, 0),
            number(of("memory_bytes") / 1e6, 0),
            number(of("open_files"), 0),
            number(of("idle_cores"), 3),
          ];
        }),
      ),
    );
    out.push(`\nW2, the wake: from the signal's sending to the next call's arrival, and from its acceptance (below zero: the call came first); apart: 30 ms after the last one`);
    out.push(
      table(
        ["system", "p50 ms 1 lane", "p99 ms", "accepted: p50 ms", "p99 ms", "apart: p50 ms", `signals/s ${result.lanes} lanes`, "CPU ms a wake", "signals 1 lane", "not woken", "others, cores"],
        waits.map(([system, own]) => {
          const { of, sum, pooled } = columns(own);
          return [
            system,
            number(pooled("latencies_one_lane_ms", 0.5)),
            number(pooled("latencies_one_lane_ms", 0.99)),
            number(pooled("from_accepted_one_lane_ms", 0.5)),
            number(pooled("from_accepted_one_lane_ms", 0.99)),
            number(pooled("latencies_apart_ms", 0.5)),
            number(of("events_per_second"), 0),
            number(of("wake_cpu_ms_per_run")),
            own.reduce((n, r) => n + r.latencies_one_lane_ms.length, 0),
            sum("not_woken"),
            number(of("others_cores_one_lane"), 2),
          ];
        }),
      ),
    );
    out.push("\nW2, after kill -9 and the same start again");
    out.push(
      table(
        ["system", "API up ms", "memory MB", "woken", "p50 ms", "others still waiting", "or else"],
        waits.map(([system, own]) => {
          const { of, sum } = columns(own);
          const otherwise = own.flatMap((r) => Object.entries(r.not_waiting_after_restart).map(([status, n]) => `${n} ${status}`));
          return [
            system,
            number(of("up_after_kill_ms"), 0),
            number(of("memory_bytes_after_restart") / 1e6, 0),
            `${sum("woken_after_restart")}/${sum("asked_after_restart")}`,
            number(of("after_restart_p50_ms")),
            `${sum("waiting_after_restart")}/${sum("left_after_restart")}`,
            otherwise.join(", "),
          ];
        }),
      ),
    );
  }
  if (fsyncs.length > 0) {
    out.push("\nfsyncs of a wait, one lane: until the run waits, when workerd lets its object go, from the signal to the end");
    out.push(
      table(
        ["system", "until it waits", "let go", "wake", "runs", "note"],
        fsyncs.map((f) => [f.system, f.not_measured ? "not measured" : number(f.per_waiting_run), number(f.per_run_let_go), number(f.per_wake), f.runs ?? "-", f.not_measured ?? ""]),
      ),
    );
  }
  return out;
}

export function render(result) {
  const out = [];
  const star = (measure, digits) => `${number(measure.value, digits)}${measure.noisy ? "*" : ""}`;
  for (const { name, where } of result.stores) {
    const rows = result.systems.map((system) => summarise(result.w1, system, name)).filter(Boolean);
    if (rows.length === 0) continue;
    out.push(`\nW1, three calls a run, on ${name} (${where})`);
    out.push(
      table(
        ["system", `runs/s ${result.lanes} lanes`, "(best)", "p50 ms 1 lane", "p99 ms", "CPU ms/run", "others, cores", "calm reps", "failed", "not completed"],
        rows.map((row) => [
          row.system,
          star(row.runs_per_second, 0),
          number(row.runs_per_second.best, 0),
          star(row.p50_ms),
          star(row.p99_ms),
          star(row.cpu_ms_per_run),
          number(row.others_cores, 2),
          `${row.runs_per_second.calm}/${row.repetitions}`,
          row.failures,
          row.not_completed,
        ]),
      ),
    );
  }
  if (result.fsyncs.length > 0) {
    out.push("\nfsyncs a run, one lane");
    out.push(
      table(
        ["system", "fsyncs/run", "runs", "note"],
        result.fsyncs.map((f) => [f.system, f.not_measured ? "not measured" : number(f.per_run), f.runs ?? "-", f.not_measured ?? ""]),
      ),
    );
  }
  out.push(...renderWaits(result));
  if (result.w3.length > 0) {
    out.push(`\nW3, kill -9 with ${result.lanes} runs in flight, then the same start again (seconds count from the API's first answer)`);
    out.push(
      table(
        ["system", "try", "killed at call", "acknowledged", "in flight", "completed", "lost", "done, not completed", "API up s", "last 3rd call s", "all completed s", "keys twice", "thrice+"],
        result.w3.map((t) =>
          t.error !== undefined
            ? [t.system, t.try, "-", "-", "-", "-", "-", "-", "-", "-", "-", "-", t.error.split("\n", 1)[0].slice(0, 60)]
            : [
                t.system,
                t.try,
                t.killed_at_call,
                t.acknowledged,
                t.runs_in_flight,
                t.completed,
                t.lost,
                t.work_done_but_not_completed,
                number(t.api_up_seconds),
                t.last_third_call_seconds === null ? "never" : number(t.last_third_call_seconds),
                t.completed_seconds === null ? "never" : number(t.completed_seconds),
                t.keys_called_twice,
                t.keys_called_more_often,
              ],
        ),
      ),
    );
  }
  const { subject, rows } = goalRows(result);
  if (rows.length > 0) {
    out.push(`\nGoals: ${subject} against the others, same rounds${subject === "dormouse" ? "" : " (dormouse was not measured)"}`);
    out.push(table(["measure", "/ workflow", "/ floor", "must", "stretch", "met"], rows));
  }
  if (result.wasm !== null) out.push(`\nwasm: ${(result.wasm.raw_bytes / 1024).toFixed(0)} KiB, gzip -9 ${(result.wasm.gzip_bytes / 1024).toFixed(0)} KiB`);
  for (const [part, entries] of [["W1", result.w1], ["W2", result.w2]]) {
    for (const r of entries.filter((entry) => entry.error !== undefined)) out.push(`\n${part} round ${r.round} of ${r.system} on ${r.store} failed: ${r.error}`);
  }
  const failed = new Map([...result.w1, ...result.w2].filter((r) => r.failures?.length > 0).map((r) => [r.system, r]));
  for (const r of failed.values()) out.push(`\nfirst failed run of ${r.failures.length}, ${r.system} on ${r.store}: ${r.failures[0]}`);
  out.push(`\n* = fewer than three repetitions in which others used less than ${NOISY_CORES} cores; read it as a hint.`);
  return out.join("\n");
}
