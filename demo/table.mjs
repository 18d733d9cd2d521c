/** Rows of cells as lines of text: numbers to the right, with `left` all to the left. */
export function table(rows, { left = false } = {}) {
  const widths = rows[0].map((_, column) => Math.max(...rows.map((row) => String(row[column]).length)));
  const cell = (value, column) => (column === 0 || left ? String(value).padEnd(widths[column]) : String(value).padStart(widths[column]));
  return rows.map((row) => `  ${row.map(cell).join("  ")}`.trimEnd()).join("\n");
}
