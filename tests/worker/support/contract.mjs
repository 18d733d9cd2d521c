// Holds what the Worker says against what it says of itself: /schemas/*.json and /openapi.json.

import assert from "node:assert/strict";
import Ajv2020 from "ajv/dist/2020.js";

const options = { strict: false, validateFormats: false, allErrors: true };

/** Checks values against the schemas that the Worker serves. */
export function schemasOf(client) {
  async function loadSchema(uri) {
    const answer = await client.call("GET", uri);
    if (answer.status !== 200) throw new Error(`${uri}: ${answer.status}`);
    return answer.json;
  }
  const ajv = new Ajv2020({ ...options, loadSchema });
  const compiled = new Map();
  return {
    /** Fails unless `value` fits /schemas/NAME.json. */
    async check(name, value) {
      if (!compiled.has(name)) {
        compiled.set(name, loadSchema(`/schemas/${name}.json`).then((schema) => ajv.compileAsync(schema)));
      }
      const validate = await compiled.get(name);
      assert.ok(validate(value), `${name}: ${ajv.errorsText(validate.errors)}: ${JSON.stringify(value).slice(0, 1_000)}`);
    },
  };
}

/** Checks answers against the OpenAPI document that the Worker serves. */
export async function openapiOf(client) {
  const document = await client.ok("GET", "/openapi.json");
  const ajv = new Ajv2020(options);
  ajv.addSchema(document, "openapi");
  const escape = (text) => text.replaceAll("~", "~0").replaceAll("/", "~1");
  const resolve = (at) => {
    let pointer = at;
    let value = document;
    for (const segment of at.split("/").slice(1)) {
      value = value?.[segment.replaceAll("~1", "/").replaceAll("~0", "~")];
    }
    if (value?.$ref) {
      pointer = value.$ref.slice(1);
      ({ value } = resolve(pointer));
    }
    return { pointer, value };
  };
  return {
    document,
    /** `METHOD /path` of every operation. */
    operations: Object.entries(document.paths).flatMap(([path, methods]) =>
      Object.keys(methods)
        .filter((name) => name !== "parameters")
        .map((method) => `${method.toUpperCase()} ${path}`),
    ),
    /** Fails unless the answer's status, media type, headers and body are what the operation declares. */
    check(operation, answer) {
      const [method, path] = operation.split(" ");
      const at = `/paths/${escape(path)}/${method.toLowerCase()}/responses/${answer.status}`;
      const { pointer, value } = resolve(at);
      assert.ok(value, `${operation} answered ${answer.status}, which the document does not declare: ${answer.text.slice(0, 500)}`);
      for (const [name, header] of Object.entries(value.headers ?? {})) {
        const { value: declared } = header.$ref ? resolve(header.$ref.slice(1)) : { value: header };
        if (declared.required) assert.ok(answer.headers.has(name), `${operation} ${answer.status} has no ${name}`);
      }
      if (!value.content) {
        assert.equal(answer.text, "", `${operation} ${answer.status} has a body`);
        return;
      }
      const type = answer.headers.get("content-type")?.split(";")[0];
      assert.ok(value.content[type], `${operation} ${answer.status} is ${type}, declared are ${Object.keys(value.content)}`);
      if (answer.json === undefined) return;
      const validate = ajv.compile({ $ref: `openapi#${pointer}/content/${escape(type)}/schema` });
      assert.ok(validate(answer.json), `${operation} ${answer.status}: ${ajv.errorsText(validate.errors)}: ${answer.text.slice(0, 1_000)}`);
    },
  };
}
