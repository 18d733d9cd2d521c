// The second act: a claim that takes days, and a Dormouse that is stopped whenever it waits. A garage that
// calls back, two days of sleep, a person at a form, a payment that a person has to approve, a signal.

import { readFile, readdir, stat } from "node:fs/promises";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { isDeepStrictEqual } from "node:util";
import { Dormouse } from "../dormouse.mjs";
import { read, write } from "../exact.mjs";
import { visit } from "./browser.mjs";
import { openPartners } from "./partners.mjs";
import { check, duration, summary } from "./verdict.mjs";

const HERE = import.meta.dirname;
const PARTNERS_KEY = "partners-key-5678";
const PATIENCE_MS = 20_000;
const POLL_MS = 50;
/** How long Dormouse is left off, so that the screen can be read. */
const OFF_MS = 800;

const ADJUSTER = "Renée O’Connor-Öztürk";
const TREASURER = "Nkechi Okonkwo";

export async function open({ screen, temporary }) {
  const claim = read(await readFile(join(HERE, "claim.json"), "utf8"));
  const number = write(claim.claim_number);
  const stateDir = join(temporary, "claims");
  const partners = await openPartners({ key: PARTNERS_KEY });
  const dormouse = new Dormouse({
    STATE_DIR: stateDir,
    TMPDIR: temporary,
    TEMP: temporary,
    ALLOWED_INWARD_HOSTS: new URL(partners.url).host,
    TENANT_SECRETS: JSON.stringify({ dev: { PARTNERS_URL: partners.url, PARTNERS_KEY } }),
    // For the clock that is moved. The routes under /dev are not in a deployed build.
    TEST_SEAMS: "1",
  });

  /** What is seen on the way, for the table and the checks at the end. */
  const seen = { claim, ledger: partners.ledger, stops: 0, movedMs: 0, whileOff: [], diagnoses: [] };
  /** The runs that there are, and their logs when Dormouse was stopped last. */
  const runIds = [];
  let logs = [];

  /** Tells whether all is as it should be. */
  async function play() {
    const startedAt = performance.now();
    screen.say(screen.strong("\nSecond act: a claim that takes days, and a Dormouse that is off whenever it waits\n"));
    await start();
    dormouse.keepPort();
    await dormouse.define(HERE);
    const run = await dormouse.post("/v1/runs", { agent: "claims-desk", input: claim, tags: { claim: number } }, `claim-${number}`);
    runIds.push(run.run_id);
    tell(`Claim ${number} is ${run.run_id} of ${run.agent}.\nThe garage is asked for an estimate, and answers 202: it will call back.`);
    await waitsFor("callback");

    await stop();
    const report = partners.estimate();
    tell(`The garage has looked at the car and calls back: ${await report.send()}. It will try again.`);
    await start();
    await callBack(report);
    await waitsFor("timer");

    await stopAndStart();
    await moveClock("P2D", 2 * 24 * 3_600_000);
    const { approval_id } = await waitsFor("approval");
    const link = await makeLink(approval_id);

    await stopAndStart();
    await decideOnPage(approval_id, link);
    const { child_run_id, release } = await waitsFor("child");
    runIds.push(child_run_id);

    await stopAndStart();
    await approvePayment(release);
    await waitsFor("signal");

    await stopAndStart();
    const cleared = { statement: read("9007199254740993"), booked: "2026-12-04", text: "Gutschrift „SCHADEN“ ✔" };
    const { seq } = await dormouse.post(`/v1/runs/${run.run_id}/signals/payment.cleared`, { payload: cleared }, `cleared-${number}`);
    tell(`The money has arrived: POST /v1/runs/{run_id}/signals/payment.cleared is entry ${seq} of the log.`);
    await hasEnded();

    Object.assign(seen, { cleared, estimate: report.result, logs: await histories() });
    seen.runs = await Promise.all(runIds.map((id) => dormouse.get(`/v1/runs/${id}`)));
    seen.listed = (await dormouse.get("/v1/runs?limit=200")).items;
    await dormouse.stop();
    Object.assign(seen, { upMs: dormouse.upMs, tookMs: performance.now() - startedAt });
    screen.say(`\n${summary(seen)}\n`);
    return check(seen).report(screen);
  }

  async function start() {
    await dormouse.start();
    const place = seen.stops ? "the same state" : `${dormouse.url}, state in ${stateDir}`;
    screen.say(`${screen.strong("▶ on ")}  Dormouse is started on ${place}`);
    const now = await histories();
    if (!isDeepStrictEqual(now, logs)) seen.whileOff.push(`after stop ${seen.stops} the logs are ${write(now)}, before it they were ${write(logs)}`);
  }

  async function stop() {
    logs = await histories();
    await dormouse.stop();
    seen.stops += 1;
    const answer = await fetch(`${dormouse.url}/healthz`).then(({ status }) => `answers ${status}`, ({ cause }) => cause?.code);
    if (answer !== "ECONNREFUSED") seen.whileOff.push(`after stop ${seen.stops} port ${dormouse.port} ${answer}`);
    const files = await sizeOf(stateDir);
    screen.say(`\n${screen.soft("■ off")}  Nothing runs: no process is left, nothing listens on port ${dormouse.port}.`);
    tell(`What waits costs nothing but the room for ${Math.round(files / 1_000)} KB of files.`);
  }

  async function stopAndStart() {
    await stop();
    await sleep(OFF_MS);
    await start();
  }

  const tell = (text) => screen.say(`       ${text.replaceAll("\n", "\n       ")}`);
  const histories = () => Promise.all(runIds.map((id) => dormouse.history(id)));

  /** Until the claim rests. Asks what for, shows the answer, and gives the one blocker that is expected. */
  async function waitsFor(kind) {
    const path = `/v1/runs/${runIds[0]}/diagnosis`;
    // A child rests a moment later than its parent, and only then it is known what would release both.
    const isKnown = (blocker) => blocker.kind === kind && (kind !== "child" || blocker.release?.startsWith("POST "));
    const { blockers } = await poll(path, ({ moving, blockers }) => !moving && blockers.some(isKnown));
    seen.diagnoses.push({ kind, blockers });
    const [{ detail, until, release, step_index }] = blockers;
    screen.say(`${screen.warn("⏸ waits")} at step ${step_index}; GET /v1/runs/{run_id}/diagnosis says why:`);
    tell(`${kind}: ${detail}`);
    if (until) tell(`until ${until}`);
    tell(`release: ${release ?? "time does, no call is needed"}`);
    return blockers[0];
  }

  async function hasEnded() {
    const { status } = await poll(`/v1/runs/${runIds[0]}`, ({ ended_at }) => ended_at !== null);
    tell(`The claim is ${status}.`);
  }

  async function poll(path, enough) {
    const until = Date.now() + PATIENCE_MS;
    for (;;) {
      const answer = await dormouse.get(path);
      if (enough(answer)) return answer;
      const over = ["completed", "failed", "cancelled", "blocked"].includes(answer.status);
      if (over || Date.now() > until) throw new Error(`GET ${path} is not what was expected: ${write(answer)}`);
      await sleep(POLL_MS);
    }
  }

  /** The garage gets through, and then sends its report once more: networks do. */
  async function callBack(report) {
    const { answer } = await report.deliver();
    const again = await report.send();
    tell(`The garage calls back again, with ${write(report.result.total)} EUR: ${answer}. The same call once more: ${again}.`);
    seen.callbacks = [answer, again];
  }

  async function moveClock(advance, ms) {
    await dormouse.post(`/dev/runs/${runIds[0]}/clock`, { advance });
    seen.movedMs += ms;
    tell(`Nobody wants to sit here for ${duration(ms)}, so the demo moves this run's clock, this once:`);
    tell(`POST /dev/runs/{run_id}/clock ${write({ advance })}. A deployed Dormouse has no such route.`);
  }

  /** For somebody without a key. */
  async function makeLink(approvalId) {
    const { url, expires_at } = await dormouse.post(`/v1/approvals/${approvalId}/links`, { expires_in: "P2D", decided_by: ADJUSTER }, `link-${number}`);
    tell(`POST /v1/approvals/{approval_id}/links signs a link for ${ADJUSTER}, good until ${expires_at}:\n${url.slice(0, url.lastIndexOf("/") + 20)}…`);
    return url;
  }

  /** A person follows the link, as a browser would: no key, a page, a form. */
  async function decideOnPage(approvalId, link) {
    const before = await dormouse.history(runIds[0]);
    const first = await visit(link);
    const second = await visit(link);
    const after = await dormouse.history(runIds[0]);
    const { status } = await dormouse.get(`/v1/approvals/${approvalId}`);
    tell(`${ADJUSTER} opens the link, without a key: ${first.status} “${first.page.heading}”`);
    tell(`  │ ${first.page.prompt.replaceAll("\n", "\n  │ ")}`);
    tell(`  │ ${first.page.fields.map(({ label }) => `[${label}]`).join("  ")}`);
    tell(`Reloads it: ${second.status}. Looking changes nothing: the approval is ${status}, the log has ${after.length} entries and had ${before.length}.`);

    const typed = { "Payout in EUR": "1970.90", "On what ground": "own damage", "Inform the broker": "Yes", Comment: "Fotos geprüft ✔ – passt." };
    const sent = await first.page.submit(typed, "Approve");
    const shown = await visit(new URL(sent.location, link));
    tell(`Types ${typed["Payout in EUR"]}, chooses “${typed["On what ground"]}”, presses Approve: ${sent.status}, then ${shown.status} “${shown.page.heading}”.`);
    const late = await second.page.submit({ Comment: "nein!" }, "Reject");
    tell(`In another tab the form is still open. Reject, there: ${late.status} “${late.page.heading}”.\n  │ ${late.page.paragraphs[0]}`);
    const stands = await dormouse.get(`/v1/approvals/${approvalId}`);
    seen.page = { statuses: [first.status, second.status, sent.status, shown.status, late.status], before, after, status, typed, stands, by: ADJUSTER };
  }

  /** The payment asks for itself. `release` is what the diagnosis says would let it go on. */
  async function approvePayment(release) {
    const path = release.replace(/^POST /, "");
    await poll("/v1/approvals?status=pending", ({ items }) => items.length > 0);
    const approval = await dormouse.get(path);
    tell(`The child run wants to call ${approval.tool} with exactly these arguments, SHA-256 ${approval.arguments_digest.slice(0, 16)}…:`);
    for (const [name, value] of Object.entries(approval.arguments)) tell(`  │ ${name}: ${write(value)}`);
    const sentBefore = [...partners.ledger.values()].filter((entry) => entry.tool === "bank.transfer").length;
    const decided = await dormouse.post(path, { decision: "approved", decided_by: TREASURER }, `pay-${number}`);
    tell(`${TREASURER} approves them: POST /v1/approvals/{approval_id} says “${decided.status}”.`);
    seen.payment = { approval, sentBefore, decided, by: TREASURER };
  }

  return {
    play,
    log: () => dormouse.log,
    async close() {
      partners.close();
      await dormouse.close();
    },
  };
}

async function sizeOf(directory) {
  const files = await readdir(directory, { recursive: true, withFileTypes: true });
  const sizes = files.filter((file) => file.isFile()).map(async (file) => (await stat(join(file.parentPath, file.name))).size);
  return (await Promise.all(sizes)).reduce((total, size) => total + size, 0);
}
