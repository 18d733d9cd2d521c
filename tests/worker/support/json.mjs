// JSON as text: what `JSON.parse` would round or normalise is compared as it was written.

import { createHash } from "node:crypto";

/**
 * Reads JSON into nodes that know their place: `{ kind, start, end }` with `members` (pairs of name
 * and node) for an object, `items` for an array, `value` for a string. Strict; the whole text.
 */
export function readJson(text) {
  let at = 0;
  const space = () => {
    while (at < text.length && " \t\n\r".includes(text[at])) at += 1;
  };
  const fail = () => {
    throw new SyntaxError(`no JSON at ${at}: ${text.slice(at, at + 40)}`);
  };
  const take = (pattern) => {
    pattern.lastIndex = at;
    const found = pattern.exec(text);
    if (!found) fail();
    at = pattern.lastIndex;
    return found[0];
  };
  function string() {
    const raw = take(/"(?:[^"\\\u0000-\u001f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*"/y);
    return JSON.parse(raw);
  }
  function list(close, read) {
    const found = [];
    at += 1;
    space();
    if (text[at] === close) {
      at += 1;
      return found;
    }
    for (;;) {
      found.push(read());
      space();
      const next = text[at];
      at += 1;
      if (next === close) return found;
      if (next !== ",") {
        at -= 1;
        fail();
      }
    }
  }
  function value() {
    space();
    const start = at;
    const node = { start };
    const first = text[at];
    if (first === "{") {
      node.kind = "object";
      node.members = list("}", () => {
        space();
        const name = string();
        space();
        if (text[at] !== ":") fail();
        at += 1;
        return [name, value()];
      });
    } else if (first === "[") {
      node.kind = "array";
      node.items = list("]", value);
    } else if (first === '"') {
      node.kind = "string";
      node.value = string();
    } else if (first === "t" || first === "f" || first === "n") {
      node.kind = "word";
      take(/true|false|null/y);
    } else {
      node.kind = "number";
      take(/-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?/y);
    }
    node.end = at;
    return node;
  }
  const node = value();
  space();
  if (at !== text.length) fail();
  return node;
}

/** The node at a path of names and places, or undefined. */
export function nodeAt(node, path) {
  let here = node;
  for (const step of path) {
    here = typeof step === "number" ? here?.items?.[step] : here?.members?.find(([name]) => name === step)?.[1];
  }
  return here;
}

/** The text of the value at a path, exactly as it stands in `text`. */
export function rawAt(text, ...path) {
  const node = nodeAt(readJson(text), path);
  return node && text.slice(node.start, node.end);
}

/**
 * The canonical form that idempotency keys and hashes are made of: RFC 8785, but an integer in plain
 * notation keeps all its digits. `path` narrows to a part; `without` leaves out members at the top.
 */
export function canonical(text, { path = [], without = [] } = {}) {
  const write = (node, omitted) => {
    switch (node.kind) {
      case "object": {
        const members = node.members.filter(([name]) => !omitted.includes(name));
        members.sort(([a], [b]) => (a < b ? -1 : a > b ? 1 : 0));
        return `{${members.map(([name, member]) => `${JSON.stringify(name)}:${write(member, [])}`).join(",")}}`;
      }
      case "array":
        return `[${node.items.map((item) => write(item, [])).join(",")}]`;
      case "string":
        return JSON.stringify(node.value);
      case "number": {
        const raw = text.slice(node.start, node.end);
        if (/^-?(0|[1-9][0-9]*)$/.test(raw)) return raw === "-0" ? "0" : raw;
        return String(Number(raw));
      }
      default:
        return text.slice(node.start, node.end);
    }
  };
  return write(nodeAt(readJson(text), path), without);
}

export const sha256 = (text) => createHash("sha256").update(text, "utf8").digest("hex");

/** The key of an event, from the JSON text of its payload. */
export function eventKey(runId, stepIndex, payloadText) {
  return sha256(`[${JSON.stringify(runId)},${stepIndex === null ? "null" : stepIndex},${canonical(payloadText)}]`);
}
