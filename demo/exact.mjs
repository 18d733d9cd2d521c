// JSON with the digits of its numbers kept: 10.00 stays 10.00, and ids beyond 2^53 stay whole.
// JavaScript's own numbers would round both.

export const read = (text) =>
  JSON.parse(text, (_name, value, { source }) =>
    typeof value === "number" && String(value) !== source ? JSON.rawJSON(source) : value,
  );

export const write = JSON.stringify;
