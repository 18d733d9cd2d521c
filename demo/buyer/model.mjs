// A language model that speaks OpenAI's Chat Completions and says what a script has. What comes next, it
// sees from the conversation alone, by how often it has spoken: it remembers nothing, as models do. So it
// makes no difference who asks, how often, or how many times Dormouse was killed in between.

import { createServer } from "node:http";
import { setTimeout as sleep } from "node:timers/promises";
import { read, write } from "../exact.mjs";

/** How long it thinks, so that the screen can be read. */
const THINKS_MS = 500;
const BYTES_PER_TOKEN = 4;

const call = (name, given) => ({ name, arguments: typeof given === "string" ? given : write(given) });

/** What it says in each round, given the order and the results of its last calls. */
const SCRIPT = [
  ({ order: { order_id, part, quantity } }) => ({
    text: "Two vendors could have it. I ask both at once.",
    calls: ["nordschraube", "sudviti"].map((vendor) => call("vendors_quote", { order_id, vendor, part, quantity })),
  }),
  ({ order, quotes }) => {
    const { vendor, total } = cheapest(quotes);
    return {
      text: `${vendor} is the cheaper one. I pay ${write(total)}.`,
      // The brace that ends it is missing, as when a model is cut short.
      calls: [call("payments_charge", write(payment(order, quotes, "?")).slice(0, -1))],
    };
  },
  ({ order, quotes, results: [{ error }] }) => ({
    text: `${error.reason}: my JSON was broken. I make a transfer instead.`,
    // There is no such tool.
    calls: [call("bank_transfer", payment(order, quotes, "?"))],
  }),
  ({ order, quotes, results: [{ error }] }) => {
    const { vendor, total } = cheapest(quotes);
    return {
      text: `${error.reason}: I made that one up. And I was to ask before I pay.`,
      calls: [
        call("ask_person", {
          prompt: `Order ${write(order.order_id)}: ${write(order.quantity)} × ${order.part}\n${vendor} asks ${write(total)} ${order.currency}, the budget is ${write(order.budget)}. Pay?`,
          schema: {
            type: "object",
            required: ["cost_centre"],
            properties: { cost_centre: { type: "string", title: "Cost centre", minLength: 1 } },
            additionalProperties: false,
          },
        }),
      ],
    };
  },
  ({ order, quotes, results: [{ decided_by, data }] }) => ({
    text: `${decided_by} agrees. Now I pay.`,
    calls: [call("payments_charge", payment(order, quotes, data.cost_centre))],
  }),
  ({ order, results: [{ vendor, amount, receipt }], said }) => ({
    text: "Paid. That is all.",
    calls: [call("finish", { output: { order_id: order.order_id, vendor, paid: amount, receipt, agreed_by: said[3].decided_by } })],
  }),
];

export const ROUNDS = SCRIPT.length;

// Compared as numbers, told as they were written.
const cheapest = (quotes) => quotes.toSorted((a, b) => write(a.total) - write(b.total))[0];

const payment = ({ order_id, currency }, quotes, cost_centre) => {
  const { vendor, total } = cheapest(quotes);
  return { order_id, vendor, amount: total, currency, cost_centre };
};

/** What it reads in a conversation: the order, the quotes, the results of its last calls, and the first result of each round. */
function understand(messages) {
  const rounds = [];
  for (const { role, content } of messages) {
    if (role === "assistant") rounds.push([]);
    if (role === "tool") rounds.at(-1).push(read(content));
  }
  const order = read(messages.find(({ role }) => role === "user").content);
  return { round: rounds.length, order, quotes: rounds[0], results: rounds.at(-1), said: rounds.map(([first]) => first) };
}

/**
 * Opens it on a free port. `holds(round)`, asked at each request, tells whether it thinks for as long as
 * somebody listens; rounds count from 1.
 *
 * `requests` has all that it was asked: `{ round, text, messages, answer: "heard" | "lost", usage }`.
 */
export async function openModel({ key, holds }) {
  const requests = [];

  const server = createServer(async (incoming, response) => {
    let text = "";
    for await (const piece of incoming.setEncoding("utf8")) text += piece;
    const refuse = (status, message) => response.writeHead(status, { "content-type": "application/json" }).end(write({ error: { message } }));
    if (incoming.url !== "/v1/chat/completions") return refuse(404, `there is no ${incoming.url}`);
    if (incoming.headers.authorization !== `Bearer ${key}`) return refuse(401, "who is asking?");

    const { model, messages } = read(text);
    const conversation = understand(messages);
    const script = SCRIPT[conversation.round];
    if (!script) return refuse(400, "the script has ended");
    const request = { round: conversation.round + 1, text, messages };
    response.on("close", () => (request.answer = response.writableFinished ? "heard" : "lost"));
    requests.push(request);

    if (holds(request.round)) return;
    await sleep(THINKS_MS);
    const { text: content, calls } = script(conversation);
    const message = {
      role: "assistant",
      content,
      tool_calls: calls.map((one, index) => ({ id: `call_${request.round}_${index + 1}`, type: "function", function: one })),
    };
    const tokens = (what) => Math.ceil(what.length / BYTES_PER_TOKEN);
    const usage = { prompt_tokens: tokens(text), completion_tokens: tokens(write(message)) };
    request.usage = usage;
    const total_tokens = usage.prompt_tokens + usage.completion_tokens;
    const body = { id: `chatcmpl-${requests.length}`, object: "chat.completion", model, choices: [{ index: 0, message, finish_reason: "tool_calls" }], usage: { ...usage, total_tokens } };
    response.writeHead(200, { "content-type": "application/json" }).end(write(body));
  });

  await new Promise((listening) => server.listen(0, "127.0.0.1", listening));
  return {
    url: `http://127.0.0.1:${server.address().port}`,
    requests,
    close() {
      server.close();
      server.closeAllConnections();
    },
  };
}
