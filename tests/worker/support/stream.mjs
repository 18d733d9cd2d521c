// Readers of event streams.

import { createRequire } from "node:module";
import { clientOf } from "./client.mjs";

// The EventSource that Node has too, behind a flag there.
const { Agent, EventSource } = createRequire(import.meta.resolve("miniflare"))("undici");

/** An EventSource on a run's log that sends the key, and keeps whatever comes. */
export function watch(client, runId, query = "") {
  const dispatcher = new Agent().compose((dispatch) => (options, handler) => {
    const headers = { ...options.headers, authorization: `Bearer ${client.key}` };
    return dispatch({ ...options, headers }, handler);
  });
  const seen = [];
  let opened = 0;
  class Watcher extends EventSource {
    // Every event has a type of its own, so there is no one to listen for.
    dispatchEvent(event) {
      if (event.type === "open") opened += 1;
      else if (event.type !== "error") seen.push({ id: event.lastEventId, type: event.type, data: event.data });
      return super.dispatchEvent(event);
    }
  }
  const source = new Watcher(`${client.url}/v1/runs/${runId}/events${query}`, { node: { dispatcher } });
  return {
    seen,
    /** How often it was connected. */
    get opened() {
      return opened;
    },
    /** Whether it has given up for good. */
    get isOver() {
      return source.readyState === EventSource.CLOSED;
    },
    has: (type, count = 1) => seen.filter((event) => event.type === type).length >= count,
    close: () => source.close(),
  };
}

/**
 * Opens an event stream and reads it by hand. `next` answers a frame `{ id, event, data }` or a comment
 * `{ comment }`, and undefined at the end; it throws where the stream breaks.
 */
export async function openStream(client, runId, { query = "", lastEventId, key = client.key } = {}) {
  const gone = new AbortController();
  const response = await fetch(`${client.url}/v1/runs/${runId}/events${query}`, {
    signal: gone.signal,
    headers: {
      accept: "text/event-stream",
      authorization: `Bearer ${key}`,
      ...(lastEventId !== undefined && { "last-event-id": String(lastEventId) }),
    },
  });
  const reader = response.body?.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  const stream = {
    status: response.status,
    headers: response.headers,
    async next() {
      for (;;) {
        const end = text.indexOf("\n\n");
        if (end >= 0) {
          const block = text.slice(0, end);
          text = text.slice(end + 2);
          if (block.startsWith(":")) return { comment: block };
          const fields = Object.fromEntries(block.split("\n").map((line) => line.split(/: (.*)/s)));
          if (fields.data !== undefined) return fields;
          continue;
        }
        const { done, value } = await reader.read();
        if (done) return undefined;
        text += value;
      }
    },
    /** The frames from here on, at most `count`, without comments. */
    async frames(count = Infinity) {
      const frames = [];
      while (frames.length < count) {
        const frame = await stream.next();
        if (frame === undefined) break;
        if (frame.comment === undefined) frames.push(frame);
      }
      return frames;
    },
    /** The client goes away without a word. */
    leave: () => gone.abort(),
  };
  return stream;
}

/** Reads a run's stream to its end, coming back as an EventSource does whenever it breaks. */
export async function followToEnd(url, key, runId, onFrame = () => {}) {
  const client = clientOf(url, key);
  const frames = [];
  for (;;) {
    try {
      const stream = await openStream(client, runId, { lastEventId: frames.at(-1)?.id });
      if (stream.status === 204) return frames;
      for (let frame = await stream.next(); stream.status === 200 && frame; frame = await stream.next()) {
        if (frame.comment === undefined) frames.push(frame);
        onFrame(frame);
      }
    } catch {
      // Nobody there for the moment.
    }
    await new Promise((done) => setTimeout(done, 100));
  }
}
