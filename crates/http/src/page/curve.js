// The miss-ratio curve: a plot for the eye, and a table for everyone.

import { bytes, digits, el, table } from "./format.js";

const HEIGHT = 210;
const LEFT = 66;
const BOTTOM = 34;
const TOP = 10;

/** Returns a part of 1 in whole percent: estimates are not more exact. */
const percent = (part) => `${Math.round(100 * part)} %`;

/** Returns a plot of the part of block reads that the cache serves, by its size on a logarithmic axis. */
function plot(points, now, width) {
  const sizes = points.map((point) => Math.log(point.cache_bytes));
  const [first, last] = [sizes[0], sizes.at(-1)];
  const x = (size) => LEFT + ((Math.log(size) - first) / (last - first || 1)) * (width - LEFT - 30);
  const y = (ratio) => TOP + (1 - ratio) * (HEIGHT - TOP - BOTTOM);
  const drawn = [0, 0.25, 0.5, 0.75, 1].flatMap((ratio) => [
    el("line", { class: ratio ? "grid" : "zero", x1: LEFT, x2: width - 8, y1: y(ratio), y2: y(ratio) }),
    el("text", { class: "mark", x: LEFT - 6, y: y(ratio) + 4, "text-anchor": "end" }, percent(ratio))]);
  const room = Math.max(1, Math.ceil((points.length * 62) / (width - LEFT)));
  points.forEach((point, at) => {
    if (at % room === 0) {
      drawn.push(el("text", { class: "mark", x: x(point.cache_bytes), y: HEIGHT - 16, "text-anchor": "middle" }, bytes(point.cache_bytes)));
    }
  });
  drawn.push(el("line", { class: "zero", x1: x(now), x2: x(now), y1: TOP, y2: y(0), "stroke-dasharray": "3 3" }),
    el("text", { class: "mark", x: x(now), y: HEIGHT - 3, "text-anchor": "middle" }, "now"),
    el("path", { class: "series s1", d: points.map((point, at) =>
      `${at ? "L" : "M"}${x(point.cache_bytes).toFixed(1)} ${y(point.hit_ratio).toFixed(1)}`).join("") }));
  const spoken = points.map((point) => `${bytes(point.cache_bytes)}: ${percent(point.hit_ratio)}`).join("; ");
  return el("svg", { role: "img", viewBox: `0 0 ${width} ${HEIGHT}`,
    "aria-label": `Part of block reads from the cache, by its size. ${spoken}. Now ${bytes(now)}.` }, drawn);
}

/** Returns the parts of a view about the size of the cache. */
export function curveParts(advice, width) {
  if (!advice) return [];
  const heading = el("h3", {}, "Reads from the cache, by its size");
  if (advice.none) return [el("div", { class: "panel" }, heading, el("p", { class: "quiet" }, `No estimate: ${advice.none}.`))];
  const { curve, best, facts } = advice;
  if (!curve.enough) return [el("div", { class: "panel" }, heading, el("p", { class: "quiet" }, best))];
  const sentences = [el("p", {}, el("b", {}, best)), facts.length ? el("ul", {}, facts.map((fact) => el("li", {}, fact))) : null];
  const mark = (point) => (point.cache_bytes === curve.cache_bytes ? `${bytes(point.cache_bytes)} (now)` : bytes(point.cache_bytes));
  const rows = curve.points.map((point) => [mark(point), percent(point.hit_ratio), percent(1 - point.hit_ratio),
    digits(point.coalescing), point.filled ? "yes" : "not yet"]);
  return [
    el("figure", { class: "panel chart" }, el("figcaption", {}, heading,
      el("p", { class: "quiet" }, "Estimated from a sample of the requests; a request counts half after an hour."), sentences),
    plot(curve.points, curve.cache_bytes, width)),
    table("Estimates by the size of the cache devices", [["Size", 0], ["Reads from the cache", 1], ["Missed", 1],
      ["Writes for each destaged block", 1], ["Filled", 0]], rows, "No estimate yet."),
  ];
}
