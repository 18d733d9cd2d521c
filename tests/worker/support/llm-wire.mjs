// What the scripted models answer, in the forms of their providers.

const raws = new WeakMap();
let counter = 0;

/** A JSON value that is sent as the text that it is: no digit is lost on the way. */
export function json(text) {
  const value = { raw: text };
  raws.set(value, text);
  return value;
}

const isRaw = (value) => value !== null && typeof value === "object" && raws.has(value);

/** Serialises, with the values of `json` put in as their texts. */
function textOf(value) {
  const texts = [];
  const mark = `raw-${process.pid}-`;
  const marked = JSON.stringify(value, (_, member) => (isRaw(member) ? `${mark}${texts.push(raws.get(member)) - 1}-` : member));
  return marked.replace(new RegExp(`"${mark}(\\d+)-"`, "g"), (_, index) => texts[Number(index)]);
}

const absent = (value) => value === undefined;

/** Arguments where the form wants a string. */
function asString(call) {
  const { arguments: given, asObject } = call;
  if (absent(given)) return {};
  if (given === null || typeof given === "string") return { arguments: given };
  if (asObject) return { arguments: given };
  return { arguments: isRaw(given) ? raws.get(given) : textOf(given) };
}

/** Arguments where the form wants an object. */
const asValue = (call) => (absent(call.arguments) ? {} : { input: call.arguments });

/** A new id in the way of a provider. */
function idOf(call, prefix, mint) {
  if (!("id" in call)) return `${prefix}${mint().toString(36).padStart(8, "0")}`;
  return call.id === null ? undefined : call.id;
}

const FINISH = {
  openai: { refusal: "content_filter", pause: "stop" },
  anthropic: { stop: "end_turn", tool_calls: "tool_use", length: "max_tokens", pause: "pause_turn", context: "model_context_window_exceeded" },
};

/** A turn as the provider says it, as JSON text. */
export function answerOf(provider, turn, request, mint) {
  const calls = turn.calls ?? [];
  const finish = turn.finish ?? (calls.length > 0 ? "tool_calls" : turn.refusal && provider === "anthropic" ? "refusal" : "stop");
  const usage = turn.usage === undefined ? { input: 11, output: 7 } : turn.usage;
  counter += 1;
  const forms = { openai: chat, openai_responses: responses, anthropic: messages };
  return textOf(forms[provider]({ turn, calls, finish, usage, model: turn.model ?? request.model, mint, id: counter.toString(36).padStart(10, "0") }));
}

function chat({ turn, calls, finish, usage, model, mint, id }) {
  return {
    id: `chatcmpl-${id}`,
    object: "chat.completion",
    created: 1_790_000_000,
    model,
    choices: [
      {
        index: 0,
        message: {
          role: "assistant",
          content: turn.text ?? null,
          refusal: turn.refusal ?? null,
          ...(calls.length > 0 && {
            tool_calls: calls.map((call) => ({ id: idOf(call, "call_", mint), type: "function", function: { name: call.name, ...asString(call) } })),
          }),
        },
        logprobs: null,
        finish_reason: FINISH.openai[finish] ?? finish,
      },
    ],
    ...(usage && { usage: { prompt_tokens: usage.input, completion_tokens: usage.output, total_tokens: usage.input + usage.output } }),
  };
}

function responses({ turn, calls, finish, usage, model, mint, id }) {
  const reasons = { length: "max_output_tokens", refusal: "content_filter" };
  const incomplete = reasons[finish];
  const status = incomplete ? "incomplete" : ["stop", "tool_calls", "pause"].includes(finish) ? "completed" : finish;
  const parts = [
    ...(turn.text === undefined ? [] : [{ type: "output_text", text: turn.text, annotations: [], logprobs: [] }]),
    ...(turn.refusal === undefined ? [] : [{ type: "refusal", refusal: turn.refusal }]),
  ];
  return {
    id: `resp_${id}`,
    object: "response",
    created_at: 1_790_000_000,
    status,
    error: null,
    incomplete_details: incomplete ? { reason: incomplete } : null,
    model,
    output: [
      ...(turn.reasoning === undefined
        ? []
        : [{ type: "reasoning", id: `rs_${id}`, summary: [{ type: "summary_text", text: turn.reasoning }], encrypted_content: `enc-${id}` }]),
      ...(parts.length > 0 ? [{ type: "message", id: `msg_${id}`, status: "completed", role: "assistant", content: parts }] : []),
      ...calls.map((call) => ({
        type: "function_call",
        id: `fc_${mint().toString(36)}`,
        status: "completed",
        call_id: idOf(call, "call_", mint),
        name: call.name,
        ...asString(call),
      })),
    ],
    ...(usage && {
      usage: {
        input_tokens: usage.input,
        input_tokens_details: { cached_tokens: 0 },
        output_tokens: usage.output,
        output_tokens_details: { reasoning_tokens: 0 },
        total_tokens: usage.input + usage.output,
      },
    }),
  };
}

function messages({ turn, calls, finish, usage, model, mint, id }) {
  return {
    id: `msg_${id}`,
    type: "message",
    role: "assistant",
    model,
    content: [
      ...(turn.reasoning === undefined ? [] : [{ type: "thinking", thinking: turn.reasoning, signature: `sig-${id}` }]),
      ...(turn.text === undefined ? [] : [{ type: "text", text: turn.text }]),
      ...(turn.refusal === undefined ? [] : [{ type: "text", text: turn.refusal }]),
      ...calls.map((call) => ({ type: "tool_use", id: idOf(call, "toolu_", mint), name: call.name, ...asValue(call) })),
    ],
    stop_reason: FINISH.anthropic[finish] ?? finish,
    stop_sequence: null,
    ...(usage && {
      // What goes in is told in parts.
      usage: {
        input_tokens: usage.input - (usage.cached ?? 0),
        cache_creation_input_tokens: 0,
        cache_read_input_tokens: usage.cached ?? 0,
        output_tokens: usage.output,
      },
    }),
  };
}

const TYPES = {
  openai: { 400: "invalid_request_error", 401: "invalid_request_error", 403: "invalid_request_error", 404: "invalid_request_error", 429: "rate_limit_error" },
  anthropic: {
    400: "invalid_request_error", 401: "authentication_error", 403: "permission_error", 404: "not_found_error",
    413: "request_too_large", 429: "rate_limit_error", 504: "timeout_error", 529: "overloaded_error",
  },
};

/** An error in the provider's form. */
export function errorOf(provider, { status = 400, type, code = null, message = `scripted ${status}`, param = null }) {
  if (provider === "anthropic") {
    return { type: "error", error: { type: type ?? TYPES.anthropic[status] ?? "api_error", message }, request_id: "req_scripted" };
  }
  return { error: { message, type: type ?? TYPES.openai[status] ?? "server_error", param, code } };
}
