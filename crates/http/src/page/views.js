// The views of the page. Each returns elements for the state that it is given.

import { chart } from "./charts.js";
import { curveParts } from "./curve.js";
import { byteRate, bytes, digits, el, latency, moment, percent, perSecond, span, table } from "./format.js";

const column = (name) => (point) => point[name];
const all = (point) => point.ram_bytes + point.ssd_bytes + point.backing_bytes;
const part = (name) => (point) => (100 * point[name]) / all(point);

const CHARTS = [
  { title: "Operations", format: perSecond, series: [
    { name: "READ", of: column("reads") }, { name: "WRITE", of: column("writes") },
    { name: "Look-ups", of: column("looks") }, { name: "Changes of names", of: column("changes") }] },
  { title: "Throughput", format: byteRate, base: 1024, series: [
    { name: "Read", of: column("read_bytes") }, { name: "Written", of: column("written_bytes") }] },
  { title: "Latency", format: latency, series: [
    { name: "READ, median", of: column("read_p50") }, { name: "READ, 99 %", of: column("read_p99") },
    { name: "WRITE, median", of: column("write_p50") }, { name: "WRITE, 99 %", of: column("write_p99") }] },
  { title: "Where reads come from", format: percent, shape: "areas", top: 100, cache: true, has: (point) => all(point) > 0, series: [
    { name: "Memory", of: part("ram_bytes") }, { name: "Cache devices", of: part("ssd_bytes") },
    { name: "Backing store", of: part("backing_bytes") }] },
  { title: "Spared", about: "Traffic of the cache less the traffic of the backing store that it caused.",
    format: byteRate, base: 1024, shape: "signed", cache: true, series: [{ name: "Spared", of: column("spared_bytes") }] },
  { title: "Dirty data", about: "Data that only the cache has.", format: bytes, base: 1024, shape: "areas", cache: true,
    series: [{ name: "Dirty", of: column("dirty_bytes") }] },
  { title: "Destage", format: byteRate, base: 1024, cache: true, series: [
    { name: "Written to the log", of: column("logged_bytes") }, { name: "Destaged", of: column("destaged_bytes") },
    { name: "Past the cache", of: column("direct_bytes") }] },
  { title: "Processors and requests in flight", format: digits, series: [
    { name: "Processors", of: column("processors") }, { name: "In flight", of: column("inflight") }] },
];

/** The health, with what to do. */
export function health(status) {
  if (status.health.state === "OK") return [el("p", { class: "panel good" }, el("b", {}, "OK"), " Everything works.")];
  return [el("div", { class: "panel bad" }, el("h2", {}, "DEGRADED"),
    el("ul", {}, status.health.reasons.map((reason) => el("li", {}, capital(reason)))))];
}

function capital(text) {
  return text.charAt(0).toUpperCase() + text.slice(1) + (/[.!?]$/.test(text) ? "" : ".");
}

function tile(name, value, more) {
  return el("div", { class: "panel tile" }, el("dt", {}, name), el("dd", {}, el("b", {}, value), el("small", {}, more ?? "")));
}

/** The figures of the moment, and the charts. */
export function overview({ status, history, latest, spans, chosen, choose, width }) {
  const now = latest ?? {};
  const rate = (name) => now[name] ?? 0;
  const operations = rate("reads") + rate("writes") + rate("commits") + rate("looks") + rate("changes");
  const pool = status.pool;
  const tiles = [
    tile("Operations", perSecond(operations), `${digits(rate("errors"))} errors/s`),
    tile("Read", byteRate(rate("read_bytes")), `99 % within ${latency(rate("read_p99"))}`),
    tile("Written", byteRate(rate("written_bytes")), `99 % within ${latency(rate("write_p99"))}`),
  ];
  if (pool) {
    const c = pool.counters;
    const reads = c.blocks_read_ram + c.blocks_read_ssd + c.blocks_read_backing;
    const share = (count) => (reads ? percent((100 * count) / reads) : "–");
    const hits = reads ? percent((100 * (c.blocks_read_ram + c.blocks_read_ssd)) / reads) : "–";
    tiles.push(
      tile("Hits since the start", hits, `memory ${share(c.blocks_read_ram)}, devices ${share(c.blocks_read_ssd)}`),
      tile("Dirty data", bytes(pool.dirty_bytes), pool.dirty_bytes ? `oldest ${span(pool.dirty_age_ns / 1e9)}` : "all destaged"),
      tile("Destage", byteRate(rate("destaged_bytes")), estimate(pool.dirty_bytes, rate("destaged_bytes"))),
      tile("Spared", byteRate(rate("spared_bytes")), "of the backing store's traffic"));
  }
  const choice = el("div", { class: "choice", role: "group", "aria-label": "Time shown" }, spans.map(([name, seconds]) =>
    el("button", { type: "button", "aria-pressed": String(seconds === chosen), onclick: () => choose(seconds) }, name)));
  const charts = CHARTS.filter((one) => pool || !one.cache).map((one) => chart(one, history, width));
  return [el("h2", { class: "hidden" }, "Overview"), el("dl", { class: "tiles" }, tiles), choice,
    el("div", { class: "charts" }, charts)];
}

/** Returns the time until dirty data is destaged at a rate. */
function estimate(dirty, rate) {
  if (!dirty) return "nothing to do";
  return rate > 0 ? `${span(dirty / rate)} for all dirty data` : "waits for an idle moment";
}

const WORK = { load: "Clean data is loaded", rebuild: "Dirty data gets its second copy", removal: "Data leaves", scrub: "Scrub" };

/** Returns the progress of a work on the pool, with the time left. */
function progress({ kind, device, done, total, left_ns: left }) {
  const amount = (value) => (kind === "load" || kind === "scrub" ? digits(value) : bytes(value));
  const unit = kind === "load" || kind === "scrub" ? " segments" : "";
  const time = left === undefined || left === null ? "the time left is not known yet" : `${span(left / 1e9)} left`;
  return el("p", { class: "progress" }, el("label", {}, `${WORK[kind] ?? kind}${device ? ` ${device}` : ""} `,
    el("progress", { max: total || 1, value: done })), ` ${amount(done)} of ${amount(total)}${unit}, ${time}`);
}

/** The devices of the pool, work in progress, and the actions. */
export function pool({ status, administrator, act, advice, width }) {
  const pool = status.pool;
  if (!pool) return [el("h2", {}, "Pool"), el("p", { class: "panel" },
    "This server has no cache: reads and writes go straight to the backing store.")];
  const wear = (device, name) => device.wear?.[name];
  const columns = [["Device", 0], ["State", 0], ["Size", 1], ["Life used", 1], ["Spare", 1], ["Media errors", 1], ["Serial", 0]];
  if (administrator) columns.push(["Action", 0]);
  const rows = pool.devices.map((device) => {
    const row = [device.path, el("span", { class: `state ${device.state}` }, device.state), bytes(device.size_bytes),
      wear(device, "life_used_percent") === undefined || wear(device, "life_used_percent") === null ? "–" : `${wear(device, "life_used_percent")} %`,
      wear(device, "spare_percent") === undefined || wear(device, "spare_percent") === null ? "–" : `${wear(device, "spare_percent")} %`,
      wear(device, "media_errors") ?? "–", device.serial ?? "–"];
    if (administrator) {
      row.push(device.state === "healthy" ? el("button", { type: "button", "aria-label": `Remove ${device.path}`, onclick: () => act({
        title: `Remove ${device.path}?`, yes: "Remove", action: { action: "remove", path: device.path },
        text: "Its data is copied or destaged first. With one device left, writes go through to the backing store. "
          + "Do not pull it before an event says that it is not used any more." }) }, "Remove") : "–");
    }
    return row;
  });
  const work = (pool.work ?? []).map(progress);
  const scrub = pool.scrub;
  const bad = `${digits(scrub.blocks_checked)} copies checked, ${digits(scrub.blocks_repaired)} repaired, ${digits(scrub.blocks_dropped)} dropped, ${digits(scrub.blocks_lost)} lost`;
  const facts = [
    ["Mode", status.mode === status.effective_mode ? status.mode : `${status.mode}; in force: ${status.effective_mode}`],
    ["Clean data", bytes(pool.clean_bytes)], ["Dirty data", bytes(pool.dirty_bytes)],
    ["In memory", `${bytes(pool.ram_bytes)} of ${bytes(pool.ram_limit_bytes)}`],
    ["Index", `${bytes(pool.index_bytes)} for ${digits(pool.objects)} files`],
    ["Last scrub", scrub.number ? bad : "none since the start"]];
  return [el("h2", {}, "Pool"), table("Cache devices", columns, rows, "No device is left."),
    pool.notes?.length ? el("ul", { class: "panel" }, pool.notes.map((note) => el("li", {}, capital(note)))) : null,
    work.length ? el("div", { class: "panel", "aria-live": "polite" }, el("h3", {}, "In progress"), work) : null,
    el("dl", { class: "panel facts" }, facts.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value)))),
    ...curveParts(advice, width),
    administrator ? actions(status, act) : el("p", { class: "quiet panel" },
      "To add or remove devices, run ", el("code", {}, "forebay web"), " on the server and open its URL.")];
}

/** The actions that are not about one device. */
function actions(status, act) {
  const path = el("input", { id: "add-path", name: "path", required: true, pattern: "/.*", placeholder: "/dev/nvme0n1p4", spellcheck: "false", autocomplete: "off" });
  const force = el("input", { type: "checkbox", id: "add-force" });
  const add = (event) => {
    event.preventDefault();
    act({ title: `Add ${path.value}?`, yes: "Add", action: { action: "add", path: path.value, force: force.checked },
      text: force.checked ? "EVERYTHING ON THE DEVICE IS OVERWRITTEN, also data that exists nowhere else." : "The device becomes part of the cache. A device that holds something else is refused." });
  };
  const modes = ["write-back", "write-through", "write-around", "pass-through"];
  const mode = el("select", { id: "mode" }, modes.map((name) => el("option", { selected: name === status.mode }, name)));
  const change = (event) => {
    event.preventDefault();
    act({ title: `Change the mode to ${mode.value}?`, yes: "Change", action: { action: "mode", mode: mode.value },
      text: "Writes that are acknowledged from then on follow the new mode. Dirty data is destaged as before." });
  };
  const button = (name, id, question) => el("button", { type: "button", id, onclick: () => act(question) }, name);
  return el("div", { class: "panel actions" }, el("h3", {}, "Actions"),
    el("form", { onsubmit: add }, el("label", { for: "add-path" }, "Add a device"), path,
      el("label", { class: "check" }, force, " even if it holds data"), el("button", { id: "add" }, "Add")),
    el("form", { onsubmit: change }, el("label", { for: "mode" }, "Mode"), mode, el("button", { id: "change-mode" }, "Change")),
    el("p", { class: "buttons" },
      button("Flush", "flush", { title: "Destage all dirty data?", yes: "Flush", action: { action: "flush" },
        text: "The backing store is busy until the end. An event reports it." }),
      button("Scrub", "scrub", { title: "Check every copy?", yes: "Scrub", action: { action: "scrub" },
        text: "The cache devices are read once. Bad copies are repaired." })));
}

const LOOKS = ["getattr", "lookup", "access", "readdir"];
const CHANGES = ["setattr", "create", "remove", "rename"];

/** Returns what an entry did since the state before, per second. */
function done(entry, before, seconds) {
  const was = before?.entries.find((one) => one.name === entry.name && one.export === entry.export);
  const rate = (of) => (was && seconds > 0 ? Math.max(0, of(entry) - of(was)) / seconds : 0);
  const sum = (kinds) => (one) => kinds.reduce((all, kind) => all + (one.operations[kind] ?? 0), 0);
  const all = (one) => Object.values(one.operations).reduce((a, b) => a + b, 0);
  return { all: rate(all), total: all(entry), read: rate(sum(["read"])), write: rate(sum(["write"])), commit: rate(sum(["commit"])),
    look: rate(sum(LOOKS)), change: rate(sum(CHANGES)), bytesRead: rate((one) => one.bytes_read), bytesWritten: rate((one) => one.bytes_written) };
}

/** Returns a table of what the entries of a group do, by kinds of operations, busiest first. */
function active(caption, head, name, { activity, activityBefore }, empty) {
  const group = activity?.[name];
  const seconds = activityBefore ? (activity.time_ns - activityBefore.time_ns) / 1e9 : 0;
  const rows = (group?.entries ?? []).map((entry) => [entry, done(entry, activityBefore?.[name], seconds)])
    .sort(([, a], [, b]) => b.all - a.all || b.total - a.total).slice(0, 20)
    .map(([entry, now]) => [entry.export && entry.export !== "/" ? `${entry.export}: ${entry.name}` : entry.name,
      perSecond(now.all), perSecond(now.read), byteRate(now.bytesRead), perSecond(now.write), byteRate(now.bytesWritten),
      perSecond(now.commit), perSecond(now.look), perSecond(now.change), digits(now.total),
      name === "files" ? (entry.shared ? "several" : "one or none") : digits(entry.errors)]);
  return table(caption, [[head, 0], ["Operations", 1], ["READ", 1], ["Read", 1], ["WRITE", 1], ["Written", 1], ["COMMIT", 1],
    ["Look-ups", 1], ["Changes", 1], ["In all", 1], [name === "files" ? "Writers" : "Errors in all", 1]], rows, empty);
}

/** Exports, clients, and what they do. */
export function clients({ status, rates, activity, activityBefore, administrator }) {
  const what = { activity, activityBefore };
  const hot = administrator
    ? active("Hot files and directories", "Path", "files", what, "No file was used yet.")
    : el("p", { class: "quiet panel" }, "Hot files are shown to administrators: run ", el("code", {}, "forebay web"), " on the server and open its URL.");
  const does = activity && !activity.enabled
    ? [el("p", { class: "quiet panel" }, "What clients do is not counted: the configuration has ", el("code", {}, "profile = false"), ".")]
    : [active("What clients do", "Address", "clients", what, "No client yet."),
      active("What happens in exports", "Name", "exports", what, "No request yet."), hot];
  const exports = status.exports.map((one) => {
    const used = one.total_bytes ? one.total_bytes - one.free_bytes : 0;
    return [one.name, one.path, one.fs_type, bytes(one.total_bytes), bytes(one.free_bytes),
      el("meter", { max: one.total_bytes || 1, value: used, high: 0.9 * one.total_bytes, "aria-label": `Used of ${one.name}` }),
      one.silent_ns ? `no answer for ${span(one.silent_ns / 1e9)}` : "answers"];
  });
  const rows = status.clients.map((one) => [one.address, digits(one.connections), perSecond(rates(one.address, "operations")),
    byteRate(rates(one.address, "bytes_read")), byteRate(rates(one.address, "bytes_written")),
    digits(one.operations), bytes(one.bytes_read), bytes(one.bytes_written)]);
  const calls = [...status.procedures].sort((a, b) => b.count - a.count).map((one) => [one.name.replace("NFS4.", "NFSv4 "),
    perSecond(rates(one.name, "count")), digits(one.count), digits(one.errors), latency(one.latency.mean_ns / 1e9),
    latency(one.latency.p50_ns / 1e9), latency(one.latency.p99_ns / 1e9)]);
  const left = status.clients_known - status.clients.length;
  const state = status.client_state;
  return [el("h2", {}, "Exports and clients"),
    table("Exports", [["Name", 0], ["Directory", 0], ["File system", 0], ["Size", 1], ["Free", 1], ["Used", 0], ["State", 0]], exports, "No export."),
    table("Clients, busiest first", [["Address", 0], ["Connections", 1], ["Operations", 1], ["Reads", 1], ["Writes", 1],
      ["Operations in all", 1], ["Read in all", 1], ["Written in all", 1]], rows, "No client yet."),
    left > 0 ? el("p", { class: "quiet" }, `${left} more clients are not shown.`) : null,
    ...does,
    table("Operations since the start", [["Operation", 0], ["Rate", 1], ["Calls", 1], ["Errors", 1], ["Mean", 1], ["Median", 1], ["99 %", 1]], calls, "No request yet."),
    state ? el("p", { class: "panel" }, `State that clients hold: ${state.clients} NFSv4 clients, ${state.opens} opens, ${state.locks} locks, ${state.delegations} delegations.`) : null];
}

/** The events, newest first. */
export function events({ events, filter, search }) {
  const words = filter.text.toLowerCase();
  const rank = { info: 0, warning: 1, error: 2 };
  const shown = events.filter((one) => rank[one.severity] >= rank[filter.severity]
    && `${one.kind} ${one.message}`.toLowerCase().includes(words));
  const severity = el("select", { id: "severity", onchange: (event) => search({ ...filter, severity: event.target.value }) },
    [["info", "all"], ["warning", "warnings and errors"], ["error", "errors"]].map(([value, name]) =>
      el("option", { value, selected: value === filter.severity }, name)));
  const text = el("input", { id: "search", type: "search", value: filter.text, oninput: (event) => search({ ...filter, text: event.target.value }) });
  const rows = shown.slice(-500).reverse().map((one) => [moment(one.time_ns / 1e6),
    el("span", { class: `state ${one.severity}` }, one.severity), one.kind, one.message]);
  return [el("h2", {}, "Events"),
    el("p", { class: "filter" }, el("label", { for: "severity" }, "Show"), severity, el("label", { for: "search" }, "with"), text),
    table("Events, newest first", [["Time", 0], ["Severity", 0], ["Kind", 0], ["Event", 0]], rows, "No event.")];
}
