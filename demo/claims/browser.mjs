// As much of a browser as a page with one form needs: it reads the form that the page has, fills it in by
// its labels, and sends what a browser would send.

const ENTITIES = { amp: "&", lt: "<", gt: ">", quot: '"' };

const unescape = (html) =>
  html.replace(/&(?:#x([0-9a-f]+)|#(\d+)|(\w+));/gi, (entity, hex, decimal, name) => {
    if (hex || decimal) return String.fromCodePoint(hex ? Number.parseInt(hex, 16) : Number(decimal));
    return ENTITIES[name] ?? entity;
  });

const textOf = (html) => unescape(html.replace(/<[^>]*>/g, "")).trim();

const attribute = (tag, name) => {
  const found = new RegExp(`\\s${name}="([^"]*)"`).exec(tag);
  return found ? unescape(found[1]) : undefined;
};

/** Follows no redirect by itself, so that it can be told of. */
export async function visit(url, options = {}) {
  const response = await fetch(url, { redirect: "manual", ...options, headers: { accept: "text/html", ...options.headers } });
  return { status: response.status, location: response.headers.get("location"), page: new Page(url, await response.text()) };
}

class Page {
  constructor(url, html) {
    this.url = url;
    this.html = html;
  }

  get heading() {
    return textOf(/<h1\b[^>]*>(.*?)<\/h1>/s.exec(this.html)?.[1] ?? "");
  }

  get paragraphs() {
    return [...this.html.matchAll(/<p\b[^>]*>(.*?)<\/p>/gs)].map(([, text]) => textOf(text));
  }

  /** What the person is asked. */
  get prompt() {
    return textOf(/<div class="prompt"[^>]*>(.*?)<\/div>/s.exec(this.html)?.[1] ?? "");
  }

  /** The fields of the form that have a label: its text, and the tag of the field. */
  get fields() {
    return [...this.html.matchAll(/<label\b([^>]*\bfor="[^"]*"[^>]*)>(.*?)<\/label>/gs)].map(([, label, text]) => {
      const id = attribute(label, "for");
      const [tag, kind] = new RegExp(`<(input|select|textarea)\\b[^>]*\\sid="${id}"[^>]*>`).exec(this.html);
      return { label: textOf(text), kind, tag };
    });
  }

  /** The value of the option of a select that reads `text`. */
  #option(tag, text) {
    const start = this.html.indexOf(tag);
    const inside = this.html.slice(start, this.html.indexOf("</select>", start));
    const options = [...inside.matchAll(/<option\b([^>]*)>(.*?)<\/option>/gs)];
    return attribute(options.find(([, , label]) => textOf(label) === text)[1], "value");
  }

  /** Sends the form. `filled` has what is typed, chosen or checked, by label; `button` is pressed. */
  submit(filled, button) {
    const form = /<form\b[^>]*>/.exec(this.html)[0];
    const pressed = [...this.html.matchAll(/<button\b([^>]*)>(.*?)<\/button>/gs)].find(([, , text]) => textOf(text) === button)[1];
    const sent = this.fields.flatMap(({ label, kind, tag }) => {
      const given = filled[label.replace(/ \(optional\)$/, "")];
      const name = attribute(tag, "name");
      if (kind === "select") return [[name, given === undefined ? "" : this.#option(tag, given)]];
      if (attribute(tag, "type") === "checkbox") return given ? [[name, attribute(tag, "value")]] : [];
      return [[name, given ?? attribute(tag, "value") ?? ""]];
    });
    sent.push([attribute(pressed, "name"), attribute(pressed, "value")]);
    return visit(new URL(attribute(form, "action"), this.url), {
      method: attribute(form, "method"),
      headers: { "content-type": "application/x-www-form-urlencoded", origin: new URL(this.url).origin, "sec-fetch-site": "same-origin" },
      body: new URLSearchParams(sent).toString(),
    });
  }
}
