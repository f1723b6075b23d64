// Figures and times as text, and elements of the page.

/** Returns an element. Texts are never parsed as HTML. */
export function el(tag, attributes = {}, ...children) {
  const svg = ["svg", "path", "line", "g", "rect", "title", "text"].includes(tag);
  const made = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.flat(2).filter((child) => child !== null && child !== undefined));
  return made;
}

/** Returns a figure with three digits. */
export function digits(value) {
  const size = Math.abs(value);
  if (size >= 100 || Number.isInteger(value)) return Math.round(value).toLocaleString("en");
  return value.toFixed(size >= 10 ? 1 : 2);
}

/** Returns bytes with a unit. */
export function bytes(value) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
  let at = 0;
  let left = value;
  while (Math.abs(left) >= 1000 && at < units.length - 1) {
    left /= 1024;
    at += 1;
  }
  return `${at === 0 ? Math.round(left) : digits(left)} ${units[at]}`;
}

export const perSecond = (value) => `${digits(value)}/s`;
export const byteRate = (value) => `${bytes(value)}/s`;
export const percent = (value) => `${digits(value)} %`;

/** Returns seconds with a unit: a latency. */
export function latency(value) {
  if (value === 0) return "0";
  if (value < 1e-3) return `${digits(value * 1e6)} µs`;
  if (value < 1) return `${digits(value * 1e3)} ms`;
  return `${digits(value)} s`;
}

/** Returns a span of seconds in the two largest units. */
export function span(seconds) {
  const whole = Math.max(0, Math.round(seconds));
  const parts = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
  const at = parts.findIndex(([length]) => whole >= length);
  if (at < 0) return "0 s";
  const [length, unit] = parts[at];
  const first = `${Math.floor(whole / length)} ${unit}`;
  if (at === parts.length - 1) return first;
  const [next, nextUnit] = parts[at + 1];
  const rest = Math.floor((whole % length) / next);
  return rest ? `${first} ${rest} ${nextUnit}` : first;
}

const two = (number) => String(number).padStart(2, "0");

/** Returns the local time of a moment in milliseconds. */
export function clock(ms, withSeconds = true) {
  const at = new Date(ms);
  const text = `${two(at.getHours())}:${two(at.getMinutes())}`;
  return withSeconds ? `${text}:${two(at.getSeconds())}` : text;
}

/** Returns the local date and time of a moment in milliseconds. */
export function moment(ms) {
  const at = new Date(ms);
  return `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())} ${clock(ms)}`;
}

/** Returns a table. A column is [heading, is a figure]; cells are texts or elements. */
export function table(caption, columns, rows, empty) {
  // On a phone a row is a card. The roles keep the table for screen readers there.
  const head = columns.map(([name, figure]) =>
    el("th", { scope: "col", role: "columnheader", class: figure && "figure" }, name));
  const cell = (value, at) => el(at === 0 ? "th" : "td", {
    scope: at === 0 && "row", role: at === 0 ? "rowheader" : "cell", "data-label": columns[at][0],
    class: columns[at][1] && "figure" }, value);
  const row = (cells) => el("tr", { role: "row" }, cells);
  const body = rows.length
    ? rows.map((cells) => row(cells.map(cell)))
    : [row(el("td", { role: "cell", colspan: columns.length, class: "quiet" }, empty))];
  return el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": caption },
    el("table", { role: "table" }, el("caption", {}, caption), el("thead", { role: "rowgroup" }, row(head)),
      el("tbody", { role: "rowgroup" }, body)));
}
