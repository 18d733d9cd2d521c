// Whom the claims agent deals with: a garage that takes its time, a bank and a post office.

import { readFile } from "node:fs/promises";
import { setTimeout as sleep } from "node:timers/promises";
import { openEndpoints } from "../endpoints.mjs";
import { read, write } from "../exact.mjs";

const AGAIN_AFTER_MS = 200;

export async function openPartners({ key }) {
  const number = (prefix, claim) => `${prefix}-${write(claim)}`;
  const estimate = read(await readFile(new URL("estimate.json", import.meta.url), "utf8"));
  const asked = [];

  const works = {
    /** Notes where to call back, and returns nothing: that is a 202. */
    "garage.estimate"(given, callback) {
      asked.push({ given, callback });
    },
    "bank.transfer": ({ claim_number, ...rest }) => ({ transfer_id: number("trf", claim_number), ...rest }),
    "post.letter": ({ claim_number, text }) => ({ letter_id: number("ltr", claim_number), text }),
  };
  const endpoints = await openEndpoints({ key, works, subject: ({ claim_number }) => write(claim_number) });

  return {
    ...endpoints,

    /** The garage has looked at the car: what it will report, and to whom. */
    estimate() {
      const [{ given, callback }] = asked;
      const result = { estimate_id: number("est", given.claim_number), vin: given.vehicle.vin, damage: given.damage, ...estimate };
      return new Report(callback, { status: "succeeded", result });
    },
  };
}

/** A report that is sent until somebody takes it. */
class Report {
  constructor(url, body) {
    this.url = url;
    this.body = body;
    this.result = body.result;
  }

  /** Sends it once. The answer's status, or why there was none. */
  async send() {
    try {
      const body = write(this.body);
      const response = await fetch(this.url, { method: "POST", headers: { "content-type": "application/json" }, body });
      await response.text();
      return response.status;
    } catch (error) {
      return error.cause?.code ?? error.message;
    }
  }

  /** Sends it until there is an answer. */
  async deliver() {
    for (let attempt = 1; ; attempt += 1) {
      const answer = await this.send();
      if (typeof answer === "number" && answer < 500) return { answer, attempt };
      await sleep(AGAIN_AFTER_MS);
    }
  }
}
