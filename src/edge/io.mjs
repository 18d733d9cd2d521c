// What the edge asks of the platform in one go. Each crossing between WebAssembly and JavaScript costs
// more than most of what is done there, so what belongs together is done here together. Nothing is
// decided here, and whatever throws is an exception that the Rust side declares.

/** Headers that say whether and when to try again, beside `Retry-After`. */
const HINTS = /^(x-should-retry|retry-after-ms|(x|anthropic)-ratelimit-.*)$/;

/** Makes one HTTP call, no redirect followed. Gives status, what of the headers is asked for, body. */
export async function call(url, method, headers, body, timeoutMs, bytesMax) {
  const response = await fetch(url, {
    method,
    redirect: "manual",
    signal: AbortSignal.timeout(timeoutMs),
    headers: JSON.parse(headers),
    body: body ?? undefined,
  });
  const header = (name) => response.headers.get(name) ?? undefined;
  const bytes = await readBody(response, bytesMax);
  const hints = [...response.headers].filter(([name]) => HINTS.test(name));
  return [
    response.status,
    header("retry-after"),
    header("content-type"),
    header("location"),
    header("dormouse-callback"),
    bytes,
    JSON.stringify(hints),
  ];
}

/** Asks a model by the platform's binding. Gives a status and JSON text; an error's text is its message. */
export async function askAi(ai, model, input, timeoutMs) {
  let timer;
  const timeout = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new DOMException("no answer in time", "TimeoutError")), timeoutMs);
  });
  try {
    return [200, JSON.stringify(await Promise.race([ai.run(model, JSON.parse(input)), timeout]))];
  } catch (error) {
    // The binding's own errors begin with a code, which is in the range of 3000 to 5999.
    const text = String(error?.message ?? error);
    const code = /^(\d{4}):/.exec(text)?.[1];
    if (!code) throw error;
    const status = /^(3040|5028)$/.test(code) ? 429 : code.startsWith("5") ? 400 : 503;
    return [status, JSON.stringify({ error: { code, message: text } })];
  } finally {
    clearTimeout(timer);
  }
}

/** What a request says: method, URL, headers as JSON pairs, body. */
export async function read(request, bytesMax) {
  const headers = JSON.stringify([...request.headers]);
  return [request.method, request.url, headers, await readBody(request, bytesMax)];
}

export function respond(status, headers, body) {
  return new Response(body, { status, headers: JSON.parse(headers) });
}

/** An answer that begins with `begun`; the entry module asks `rest` for what follows. */
export function respondLive(status, headers, begun, rest) {
  return { status, headers: JSON.parse(headers), begun, rest };
}

/** Runs one statement and gives the names of its columns and its rows, or nothing where it has none. */
export function query(storage, statement, params) {
  const cursor = storage.sql.exec(statement, ...params);
  const rows = cursor.raw().toArray();
  return rows.length === 0 ? undefined : [cursor.columnNames, rows];
}

/** A body's bytes; null where it is longer than `max`, and then the rest is refused. */
async function readBody(holder, max) {
  if (!holder.body) return new Uint8Array();
  const announced = Number(holder.headers.get("content-length") ?? NaN);
  // The platform holds a sender to the length it announces, but not through an encoding.
  if (announced <= max && !holder.headers.has("content-encoding")) {
    const bytes = new Uint8Array(await holder.arrayBuffer());
    return bytes.length <= max ? bytes : null;
  }
  const reader = holder.body.getReader();
  const pieces = [];
  let length = 0;
  for (;;) {
    const { done, value } = await reader.read();
    if (done) break;
    length += value.length;
    if (length > max) {
      await reader.cancel().catch(() => {});
      return null;
    }
    pieces.push(value);
  }
  const bytes = new Uint8Array(length);
  let at = 0;
  for (const piece of pieces) {
    bytes.set(piece, at);
    at += piece.length;
  }
  return bytes;
}
