// What the providers demand of a request, and what a request says in a form that all share.

const NAME = /^[a-zA-Z0-9_-]{1,64}$/;
const object = (value) => value !== null && typeof value === "object" && !Array.isArray(value);
const filled = (value) => typeof value === "string" && value.length > 0;

class Fault extends Error {}
function need(condition, message) {
  if (!condition) throw new Fault(message);
}

/** What is wrong with a request by the rules of its form, as a sentence; undefined where nothing is. */
export function faultOf(request, script) {
  try {
    need(/^application\/json\b/.test(request.headers["content-type"] ?? ""), "the content type is not application/json");
    need(object(request.body), "the body is no object");
    need(filled(request.body.model), "'model' is missing");
    ({ openai: chat, openai_responses: responses, anthropic: messages })[request.provider](request, script);
    return undefined;
  } catch (error) {
    if (error instanceof Fault) return error.message;
    throw error;
  }
}

function tools(listed, read) {
  if (listed === undefined) return;
  need(Array.isArray(listed) && listed.length > 0, "[] is too short - 'tools'");
  const names = new Set();
  for (const tool of listed) {
    const { name, description, schema } = read(tool);
    need(NAME.test(name ?? ""), `Invalid tool name ${JSON.stringify(name)}: expected a string that matches ${NAME}`);
    need(!names.has(name), `the tool name ${name} is not unique`);
    need(description === undefined || typeof description === "string", `the description of ${name} is no string`);
    need(object(schema) && schema.type === "object", `the schema of ${name} must have type object`);
    names.add(name);
  }
}

/** Ids of calls are used once in a conversation. */
function fresh(ids, id, what) {
  need(filled(id), `${what} has no id`);
  need(!ids.has(id), `${what} has the id ${id}, which was used before`);
  ids.add(id);
}

function parsedObject(text, what) {
  need(typeof text === "string", `the arguments of ${what} are no string`);
  let value;
  try {
    value = JSON.parse(text);
  } catch {
    // Told below.
  }
  need(object(value), `the arguments of ${what} are no JSON object: ${text.slice(0, 60)}`);
}

// Chat Completions: an assistant message with calls is followed by one message of each call's result.
function chat({ body, headers }) {
  need(headers.authorization === undefined || /^Bearer .+/.test(headers.authorization), "the authorization is no Bearer key");
  need(body.stream === false, "'stream' must be false");
  need(Array.isArray(body.messages) && body.messages.length > 0, "'messages' is too short");
  tools(body.tools, (tool) => {
    need(tool.type === "function", "a tool's type must be function");
    return { name: tool.function?.name, description: tool.function?.description, schema: tool.function?.parameters };
  });
  need(body.tool_choice === undefined || body.tools !== undefined, "'tool_choice' is only allowed when 'tools' are specified");
  need(body.parallel_tool_calls === undefined || body.tools !== undefined, "'parallel_tool_calls' is only allowed when 'tools' are specified");
  const ids = new Set();
  let owed = [];
  for (const [index, message] of body.messages.entries()) {
    const at = `messages[${index}]`;
    if (message.role === "tool") {
      need(owed.length > 0, `${at}: messages with role 'tool' must be a response to a preceding message with 'tool_calls'`);
      need(message.tool_call_id === owed[0], `${at}: the result of ${message.tool_call_id} is not the one of ${owed[0]} that comes next`);
      need(typeof message.content === "string", `${at}: the content of a result is no string`);
      owed = owed.slice(1);
      continue;
    }
    need(owed.length === 0, `${at}: an assistant message with 'tool_calls' must be followed by tool messages responding to each 'tool_call_id'. The following did not have response messages: ${owed}`);
    if (["system", "developer", "user"].includes(message.role)) {
      need(filled(message.content) || (Array.isArray(message.content) && message.content.length > 0), `${at}: the content is empty`);
    } else {
      need(message.role === "assistant", `${at}: invalid role ${message.role}`);
      const calls = message.tool_calls;
      if (calls === undefined || calls === null) {
        need(filled(message.content), `${at}: an assistant message needs content or 'tool_calls'`);
      } else {
        need(Array.isArray(calls) && calls.length > 0, `${at}: [] is too short - 'tool_calls'`);
        need(message.content === undefined || message.content === null || filled(message.content), `${at}: the content is empty`);
        for (const call of calls) {
          fresh(ids, call.id, `${at}: a call`);
          need(call.type === "function", `${at}: the type of ${call.id} must be function`);
          need(NAME.test(call.function?.name ?? ""), `${at}: invalid function name ${JSON.stringify(call.function?.name)}`);
          parsedObject(call.function.arguments, call.id);
        }
        owed = calls.map(({ id }) => id);
      }
    }
  }
  need(owed.length === 0, `the following tool_call_ids did not have response messages: ${owed}`);
  need(body.messages.at(-1).role !== "assistant", "the last message must not be the assistant's");
}

// Responses: the calls of one answer are followed by the outputs of all of them.
function responses({ body, headers }) {
  need(headers.authorization === undefined || /^Bearer .+/.test(headers.authorization), "the authorization is no Bearer key");
  need(body.stream === undefined || body.stream === false, "'stream' must be false");
  need(filled(body.input) || (Array.isArray(body.input) && body.input.length > 0), "'input' is empty");
  need(body.instructions === undefined || body.instructions === null || typeof body.instructions === "string", "'instructions' is no string");
  tools(body.tools, (tool) => {
    need(tool.type === "function", "a tool's type must be function");
    return { name: tool.name, description: tool.description ?? undefined, schema: tool.parameters };
  });
  if (typeof body.input === "string") return;
  const ids = new Set();
  let owed = [];
  let collecting = false;
  for (const [index, item] of body.input.entries()) {
    const at = `input[${index}]`;
    const next = body.input[index + 1];
    switch (item.type ?? "message") {
      case "message": {
        need(owed.length === 0, `${at}: No tool output found for function call ${owed[0]}`);
        need(["system", "developer", "user", "assistant"].includes(item.role), `${at}: invalid role ${item.role}`);
        need(filled(item.content) || (Array.isArray(item.content) && item.content.length > 0), `${at}: the content is empty`);
        if (Array.isArray(item.content)) {
          const allowed = item.role === "assistant" ? ["output_text", "refusal"] : ["input_text"];
          for (const part of item.content) need(allowed.includes(part.type), `${at}: invalid part ${part.type}, supported are ${allowed}`);
        }
        break;
      }
      case "reasoning":
        need(filled(item.id), `${at}: a reasoning item has no id`);
        need(["function_call", "message", "reasoning"].includes(next?.type ?? (next && "message")) && next?.role !== "user",
          `${at}: Item '${item.id}' of type 'reasoning' was provided without its required following item`);
        need(body.store !== false || filled(item.encrypted_content), `${at}: Item with id '${item.id}' not found. Items are not persisted when 'store' is set to false`);
        break;
      case "function_call":
        need(owed.length === 0 || collecting, `${at}: No tool output found for function call ${owed[0]}`);
        fresh(ids, item.call_id, `${at}: a call`);
        need(NAME.test(item.name ?? ""), `${at}: invalid function name ${JSON.stringify(item.name)}`);
        parsedObject(item.arguments, item.call_id);
        owed.push(item.call_id);
        collecting = true;
        continue;
      case "function_call_output":
        need(owed.length > 0, `${at}: No tool call found for function call output with call_id ${item.call_id}`);
        need(item.call_id === owed[0], `${at}: the output of ${item.call_id} is not the one of ${owed[0]} that comes next`);
        need(typeof item.output === "string", `${at}: the output is no string`);
        owed = owed.slice(1);
        break;
      default:
        // What a provider's own tools did is shown to it again as it was.
        need(/_call$/.test(item.type) && filled(item.id), `${at}: invalid type ${item.type}`);
        if (collecting) continue;
    }
    collecting = false;
  }
  need(owed.length === 0, `No tool output found for function call ${owed[0]}`);
}

// Messages: roles alternate, and the results of all calls come first in the user's next message.
function messages({ body, headers }, script) {
  need(filled(headers["x-api-key"]), "x-api-key header is required");
  need(filled(headers["anthropic-version"]), "anthropic-version: header is required");
  need(headers.authorization === undefined, "the key goes into x-api-key");
  need(body.stream === undefined || body.stream === false, "'stream' must be false");
  need(Number.isInteger(body.max_tokens) && body.max_tokens > 0, "max_tokens: Field required");
  if (headers["anthropic-version"] >= "2026-10-21") {
    for (const name of ["temperature", "top_p", "top_k"]) need(body[name] === undefined, `${name}: this version does not take it`);
  }
  need(body.system === undefined || filled(body.system) || (Array.isArray(body.system) && body.system.length > 0), "system: it is empty");
  need(Array.isArray(body.messages) && body.messages.length > 0, "messages: at least one message is required");
  tools(body.tools, ({ name, description, input_schema: schema }) => ({ name, description, schema }));
  need(body.tool_choice === undefined || body.tools !== undefined, "tool_choice: may only be specified while providing tools");
  const ids = new Set();
  let owed = [];
  let previous = "assistant";
  for (const [index, { role, content }] of body.messages.entries()) {
    const at = `messages.${index}`;
    need(role === "user" || role === "assistant", `${at}: invalid role ${role}`);
    need(role !== previous, `messages: roles must alternate between "user" and "assistant", but found multiple "${role}" roles in a row (or the first is not the user's)`);
    previous = role;
    const blocks = typeof content === "string" ? [{ type: "text", text: content }] : content;
    need(Array.isArray(blocks) && blocks.length > 0, `${at}: the content is empty`);
    let results = true;
    for (const block of blocks) {
      if (block.type === "tool_result") {
        need(role === "user", `${at}: tool_result blocks can only be in user messages`);
        need(results, `${at}: tool_result blocks must come first`);
        need(owed.length > 0, `${at}: unexpected tool_use_id found in tool_result blocks: ${block.tool_use_id}`);
        need(block.tool_use_id === owed[0], `${at}: the result of ${block.tool_use_id} is not the one of ${owed[0]} that comes next`);
        need(block.is_error === undefined || typeof block.is_error === "boolean", `${at}: is_error is no boolean`);
        const inner = typeof block.content === "string" ? [] : block.content;
        need(Array.isArray(inner) && inner.every(({ type, text }) => type === "text" && filled(text)), `${at}: the content of a result must be text, and its blocks not empty`);
        owed = owed.slice(1);
        continue;
      }
      need(owed.length === 0 || role === "assistant", `${at}: tool_use ids were found without tool_result blocks immediately after: ${owed}`);
      results = false;
      switch (block.type) {
        case "text":
          need(filled(block.text) && block.text.trim() !== "", `${at}: text content blocks must be non-empty`);
          break;
        case "tool_use":
          need(role === "assistant", `${at}: tool_use blocks can only be in assistant messages`);
          fresh(ids, block.id, `${at}: a tool_use`);
          need(/^[a-zA-Z0-9_-]+$/.test(block.id), `${at}: the id ${block.id} must match ^[a-zA-Z0-9_-]+$`);
          need(/^[a-zA-Z0-9_-]{1,128}$/.test(block.name ?? ""), `${at}: invalid name ${JSON.stringify(block.name)}`);
          need(object(block.input), `${at}: tool_use.input: Input should be a valid dictionary`);
          need(body.tools !== undefined, "Requests which include `tool_use` or `tool_result` blocks must define tools");
          owed.push(block.id);
          break;
        case "thinking":
          need(role === "assistant" && filled(block.signature), `${at}: thinking blocks are the assistant's, and have a signature`);
          break;
        case "redacted_thinking":
          need(role === "assistant" && filled(block.data), `${at}: redacted_thinking blocks are the assistant's, and have data`);
          break;
        default:
          // What a provider's own tools did is shown to it again as it was.
          need(role === "assistant" && /^server_tool_use$|_tool_result$/.test(block.type), `${at}: invalid type ${block.type}`);
      }
    }
  }
  need(owed.length === 0, `tool_use ids were found without tool_result blocks immediately after: ${owed}`);
  need(previous === "user" || script?.lastFinish === "pause", "the conversation must end with a user message");
}

/**
 * What a request says: `{ system, messages, tools, results, schema }`. A message is `{ role: "user", text }`,
 * `{ role: "assistant", text, calls: [{ id, name, arguments }] }` (arguments as JSON text or, of Anthropic, as
 * a value) or `{ role: "results", results: [{ id, content, isError }] }`. `results` are those at its end.
 */
export function neutral(request) {
  const read = { openai: readChat, openai_responses: readResponses, anthropic: readMessages }[request.provider](request.body);
  const last = read.messages.at(-1);
  return { ...read, results: last?.role === "results" ? last.results : [] };
}

const plain = (content) => (typeof content === "string" ? content : (content ?? []).map(({ text }) => text ?? "").join(""));

/** Adds results to those at the end, or starts new ones. */
function addResult(messages, result) {
  if (messages.at(-1)?.role !== "results") messages.push({ role: "results", results: [] });
  messages.at(-1).results.push(result);
}

function readChat(body) {
  const messages = [];
  const system = [];
  for (const message of body.messages) {
    if (["system", "developer"].includes(message.role)) system.push(plain(message.content));
    else if (message.role === "tool") addResult(messages, { id: message.tool_call_id, content: message.content });
    else if (message.role === "assistant") {
      const calls = (message.tool_calls ?? []).map(({ id, function: { name, arguments: given } }) => ({ id, name, arguments: given }));
      messages.push({ role: "assistant", text: message.content ?? undefined, calls });
    } else messages.push({ role: "user", text: plain(message.content) });
  }
  const offered = (body.tools ?? []).map(({ function: { name, description, parameters } }) => ({ name, description, parameters }));
  return { system: system.join("\n"), messages, tools: offered, schema: body.response_format?.json_schema?.schema };
}

function readResponses(body) {
  const messages = [];
  const system = body.instructions ? [body.instructions] : [];
  const items = typeof body.input === "string" ? [{ role: "user", content: body.input }] : body.input;
  const assistant = () => {
    if (messages.at(-1)?.role !== "assistant") messages.push({ role: "assistant", text: undefined, calls: [] });
    return messages.at(-1);
  };
  for (const item of items) {
    const type = item.type ?? "message";
    if (type === "function_call") assistant().calls.push({ id: item.call_id, name: item.name, arguments: item.arguments });
    else if (type === "function_call_output") addResult(messages, { id: item.call_id, content: item.output });
    else if (type === "message" && ["system", "developer"].includes(item.role)) system.push(plain(item.content));
    else if (type === "message" && item.role === "assistant") assistant().text = plain(item.content);
    else if (type === "message") messages.push({ role: "user", text: plain(item.content) });
  }
  const offered = (body.tools ?? []).map(({ name, description, parameters }) => ({ name, description, parameters }));
  return { system: system.join("\n"), messages, tools: offered, schema: body.text?.format?.schema };
}

function readMessages(body) {
  const messages = [];
  for (const { role, content } of body.messages) {
    const blocks = typeof content === "string" ? [{ type: "text", text: content }] : content;
    const texts = blocks.filter(({ type }) => type === "text").map(({ text }) => text);
    if (role === "assistant") {
      const calls = blocks.filter(({ type }) => type === "tool_use").map(({ id, name, input }) => ({ id, name, arguments: input }));
      messages.push({ role, text: texts.length > 0 ? texts.join("") : undefined, calls });
      continue;
    }
    for (const block of blocks.filter(({ type }) => type === "tool_result")) {
      addResult(messages, { id: block.tool_use_id, content: plain(block.content), isError: block.is_error ?? false });
    }
    if (texts.length > 0) messages.push({ role: "user", text: texts.join("") });
  }
  const offered = (body.tools ?? []).map(({ name, description, input_schema: parameters }) => ({ name, description, parameters }));
  return { system: plain(body.system), messages, tools: offered, schema: body.output_config?.format?.schema };
}
