// Charts of the history, as inline SVG.

import { clock, el, moment } from "./format.js";

const HEIGHT = 150;
const LEFT = 66;
const BOTTOM = 20;
const TOP = 6;

/** Returns a round number that is not below a value, for the upper end of an axis. */
function roundUp(value, base) {
  if (value <= 0) return 1;
  const power = base ** Math.floor(Math.log(value) / Math.log(base));
  const steps = base === 10 ? [1, 2, 5, 10] : [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024];
  return power * steps.find((step) => value <= power * step * 1.0001);
}

/** Returns a figure as text without zeros at its end: marks are round numbers. */
const short = (text) => text.replace(/(\.\d*?)0+(?!\d)/, "$1").replace(/\.(?!\d)/, "");

/** Returns the times of the marks below a chart. */
function timeMarks(from, to, most) {
  const steps = [30, 60, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 432000, 864000];
  const step = 1000 * (steps.find((length) => (to - from) / (1000 * length) <= most) ?? 864000);
  const zone = new Date(to).getTimezoneOffset() * 60000;
  const marks = [];
  for (let at = Math.ceil((from - zone) / step) * step + zone; at <= to; at += step) marks.push(at);
  return { marks, days: step >= 86400000 };
}

/** Returns a path through points, with a gap where the server did not run. */
function line(points, x, y, gap) {
  let path = "";
  let last = -Infinity;
  for (const [time, value] of points) {
    path += `${time - last > gap ? "M" : "L"}${x(time).toFixed(1)} ${y(value).toFixed(1)}`;
    last = time;
  }
  return path;
}

/** Returns the area between two lines, with gaps. */
function area(points, x, y, gap) {
  const runs = [];
  let last = -Infinity;
  for (const point of points) {
    if (point[0] - last > gap) runs.push([]);
    runs[runs.length - 1].push(point);
    last = point[0];
  }
  const edge = (run, at) => run.map((point) => `${x(point[0]).toFixed(1)} ${y(point[at]).toFixed(1)}`);
  return runs.map((run) => `M${[...edge(run, 1), ...edge(run.toReversed(), 2)].join("L")}Z`).join("");
}

/**
 * Returns a chart. `series` is a list of { name, of: (point) => number }. `shape` is "lines", "areas" (stacked), or
 * "signed" (an area around zero). Points without a figure, for which `has` is false, leave a gap.
 */
export function chart({ title, about, series, shape = "lines", format, base = 10, top, has }, history, width) {
  const { from, to, gap } = history;
  const points = has ? history.points.filter(has) : history.points;
  const values = points.map((point) => series.map((one) => one.of(point)));
  const sums = shape === "areas" ? values.map((row) => row.reduce((a, b) => a + b, 0)) : values.flat();
  const most = top ?? roundUp(sums.reduce((a, b) => Math.max(a, b), 0), base);
  const least = shape === "signed" && sums.some((value) => value < 0)
    ? -roundUp(-sums.reduce((a, b) => Math.min(a, b), 0), base) : 0;
  const x = (time) => LEFT + ((time - from) / (to - from)) * (width - LEFT - 8);
  const y = (value) => TOP + (1 - (value - least) / (most - least)) * (HEIGHT - TOP - BOTTOM);
  const marks = least < 0 ? [least, 0, most] : [0, most / 2, most];
  const drawn = marks.flatMap((value) => [
    el("line", { class: value === 0 ? "zero" : "grid", x1: LEFT, x2: width - 8, y1: y(value), y2: y(value) }),
    el("text", { class: "mark", x: LEFT - 6, y: y(value) + 4, "text-anchor": "end" }, short(format(value))),
  ]);
  const times = timeMarks(from, to, Math.max(2, Math.floor(width / 90)));
  for (const time of times.marks) {
    const text = times.days ? moment(time).slice(5, 10) : clock(time, to - from < 180000);
    drawn.push(el("text", { class: "mark", x: x(time), y: HEIGHT - 4, "text-anchor": "middle" }, text));
  }
  const base0 = points.map(() => 0);
  series.forEach((one, at) => {
    const style = `series s${at + 1}`;
    if (shape === "lines") {
      const path = line(points.map((point, row) => [point.time_ms, values[row][at]]), x, y, gap);
      drawn.push(el("path", { class: style, d: path }));
      return;
    }
    const filled = points.map((point, row) => {
      const low = shape === "areas" ? base0[row] : 0;
      base0[row] = low + values[row][at];
      return [point.time_ms, base0[row], low];
    });
    drawn.push(el("path", { class: `${style} filled`, d: area(filled, x, y, gap) }));
  });
  const latest = values.at(-1);
  const legend = series.map((one, at) => el("li", {},
    el("svg", { class: "key", viewBox: "0 0 22 8", "aria-hidden": "true" },
      el("line", { class: `series s${at + 1}`, x1: 0, x2: 22, y1: 4, y2: 4 })),
    `${one.name} `, el("b", {}, latest ? format(latest[at]) : "–")));
  const spoken = latest
    ? series.map((one, at) => {
        const each = values.map((row) => row[at]);
        return `${one.name}: now ${format(latest[at])}, at most ${format(each.reduce((a, b) => Math.max(a, b), 0))}`;
      }).join("; ")
    : "no figures yet";
  const heading = el("figcaption", {}, el("h3", {}, title), about ? el("p", { class: "quiet" }, about) : null,
    el("ul", { class: "legend" }, legend));
  const empty = latest ? null : el("text", { class: "mark", x: width / 2, y: HEIGHT / 2, "text-anchor": "middle" },
    "No figures yet");
  return el("figure", { class: "panel chart" }, heading,
    el("svg", { role: "img", "aria-label": `${title}. ${spoken}.`, viewBox: `0 0 ${width} ${HEIGHT}` }, drawn, empty ?? []));
}
