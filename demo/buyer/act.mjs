// The third act: a language model that makes mistakes, and a Dormouse that is killed while it thinks and
// while a person does.

import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { Dormouse } from "../dormouse.mjs";
import { read, write } from "../exact.mjs";
import { openModel } from "./model.mjs";
import { openPartners } from "./partners.mjs";
import { check, summary } from "./verdict.mjs";

const HERE = import.meta.dirname;
const PARTNERS_KEY = "partners-key-9012";
const MODEL_KEY = "model-key-3456";
const PATIENCE_MS = 60_000;
const POLL_MS = 50;
/** Of what is shown of arguments and results. */
const WIDTH = 100;

/** In this round the model thinks until Dormouse is killed. */
const KILLED_ROUND = 2;
const BUYER = "Siobhán Ó Súilleabháin";
const COST_CENTRE = "4711‑Ü/„Werkstatt“";

export async function open({ screen, temporary }) {
  const order = read(await readFile(join(HERE, "order.json"), "utf8"));
  const number = write(order.order_id);
  const stateDir = join(temporary, "buyer");
  const partners = await openPartners({ key: PARTNERS_KEY });
  let kills = 0;
  const model = await openModel({ key: MODEL_KEY, holds: (round) => round === KILLED_ROUND && kills === 0 });
  const dormouse = new Dormouse({
    STATE_DIR: stateDir,
    TMPDIR: temporary,
    TEMP: temporary,
    ALLOWED_INWARD_HOSTS: [partners, model].map(({ url }) => new URL(url).host).join(),
    TENANT_SECRETS: JSON.stringify({ dev: { PARTNERS_URL: partners.url, PARTNERS_KEY, MODEL_URL: model.url, MODEL_KEY } }),
  });

  /** What is seen on the way, for the table and the checks at the end. */
  const seen = { order, killedRound: KILLED_ROUND, requests: model.requests, ledger: partners.ledger, atKills: [], by: BUYER, costCentre: COST_CENTRE };
  let runId;
  /** How much of the log is told. */
  let told = 0;
  /** What each step calls, by its index. */
  const tools = new Map();

  /** Tells whether all is as it should be. */
  async function play() {
    screen.say(screen.strong("\nThird act: a language model that makes mistakes, and a Dormouse that is killed while it thinks\n"));
    await start();
    await dormouse.define(HERE);
    const run = await dormouse.post("/v1/runs", { agent: "buyer", input: order, tags: { order: number } }, `buy-${number}`);
    runId = run.run_id;
    tell(`Order ${number} is ${runId} of ${run.agent}, which a model decides. It says what its script has, and remembers nothing.\n`);

    await follow(() => model.requests.some(({ round }) => round === KILLED_ROUND));
    await kill(`the model thinks about round ${KILLED_ROUND}`);
    await start();

    const { approval_id } = await follow(() => waitsForPerson());
    await kill("a person is awaited");
    await start();
    await decide(approval_id);

    await follow(async () => (await dormouse.get(`/v1/runs/${runId}`)).ended_at !== null);
    seen.run = await dormouse.get(`/v1/runs/${runId}`);
    seen.log = await dormouse.history(runId);
    seen.listed = (await dormouse.get("/v1/runs?limit=200")).items;
    seen.letters = (await dormouse.get("/v1/dead-letters")).items;
    seen.kills = kills;
    tell(`\nThe run is ${seen.run.status}: ${write(seen.run.output)}`);
    await dormouse.stop();
    screen.say(`\n${summary(seen)}\n`);
    return check(seen).report(screen);
  }

  async function start() {
    await dormouse.start();
    screen.say(`${screen.strong("▶ on ")}  Dormouse is started on ${kills ? "the same state" : `${dormouse.url}, state in ${stateDir}`}`);
    if (kills) seen.atKills.at(-1).after = await dormouse.history(runId);
  }

  async function kill(when) {
    const before = await dormouse.history(runId);
    const charges = [...partners.ledger.values()].filter(({ tool }) => tool === "payments.charge").length;
    await dormouse.kill();
    kills += 1;
    seen.atKills.push({ before, charges });
    screen.say(`\n${screen.warn("☠ kill -9")}, while ${when}. The log has ${before.length} entries.`);
  }

  const tell = (text) => screen.say(`       ${text.replaceAll("\n", "\n       ")}`);
  const short = (text) => {
    const characters = [...text];
    return characters.length > WIDTH ? `${characters.slice(0, WIDTH).join("")}…` : text;
  };

  /** Tells what is new in the log until `enough` gives something, and gives that. */
  async function follow(enough) {
    const until = Date.now() + PATIENCE_MS;
    for (;;) {
      const found = await enough();
      const { items } = await dormouse.get(`/v1/runs/${runId}/events?limit=200&after=${told}`);
      for (const entry of items) narrate(entry);
      told += items.length;
      if (found) return found;
      const run = await dormouse.get(`/v1/runs/${runId}`);
      if (["blocked", "failed"].includes(run.status)) throw new Error(`the run is ${run.status}: ${write(run)}`);
      if (Date.now() > until) throw new Error(`not there after ${PATIENCE_MS / 1_000} s: ${write(run)}`);
      await sleep(POLL_MS);
    }
  }

  /** The log, as it is written, for people. */
  function narrate({ event_type, step_index, payload }) {
    if (event_type === "plan.requested") screen.say(`${screen.strong(`round ${payload.round}`)}  the model is asked`);
    if (event_type === "plan.lease_expired") tell("Who had asked is gone, and no answer is in the log: the model is asked again, with the same words.");
    if (event_type === "plan.completed") {
      tell(`“${payload.text}”`);
      for (const { name, arguments: given, error } of payload.calls) {
        if (!error) tell(`→ ${name} ${short(write(given))}`);
        else tell(`${screen.warn(`✗ ${name}`)}, ${error.reason}: ${error.errors[0].message}\n  It is not carried out. The model is told what is wrong with it.`);
      }
    }
    if (event_type === "tool.requested") tools.set(step_index, payload.tool);
    if (event_type === "tool.completed") tell(`✓ ${tools.get(step_index)} ${short(write(payload.result))}`);
    if (event_type === "approval.decided") tell(`✓ ask_person: ${payload.decision} by ${payload.decided_by}`);
  }

  async function waitsForPerson() {
    const { status, waiting_for } = await dormouse.get(`/v1/runs/${runId}`);
    return status === "waiting" && waiting_for.find(({ kind }) => kind === "approval");
  }

  async function decide(approvalId) {
    const path = `/v1/approvals/${approvalId}`;
    const { prompt } = await dormouse.get(path);
    tell(`${BUYER} is asked:\n  │ ${prompt.replaceAll("\n", "\n  │ ")}`);
    const decision = { decision: "approved", data: { cost_centre: COST_CENTRE }, decided_by: BUYER };
    const { status } = await dormouse.post(path, decision, `agree-${number}`);
    tell(`POST /v1/approvals/{approval_id} ${write(decision.data)}: “${status}”.`);
  }

  return {
    play,
    log: () => dormouse.log,
    async close() {
      partners.close();
      model.close();
      await dormouse.close();
    },
  };
}
