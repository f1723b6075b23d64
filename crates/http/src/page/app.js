// The state of the page: what the server sends, the view that is shown, and the actions of an administrator.

import { el, moment, span } from "./format.js";
import * as views from "./views.js";

const SPANS = [["15 min", 900], ["1 h", 3600], ["6 h", 21600], ["24 h", 86400], ["7 d", 604800], ["30 d", 2592000]];
const VIEWS = ["overview", "pool", "clients", "events"];
const at = (id) => document.getElementById(id);

const state = {
  status: null, before: null, columns: [], points: [], step: 1000, span: 3600, latest: null,
  advice: null, activity: null, activityBefore: null, events: [], filter: { severity: "info", text: "" }, session: { administrator: null }, view: "overview",
};

async function get(path) {
  const response = await fetch(path);
  if (!response.ok) throw new Error((await response.json()).error);
  return response.json();
}

/** Returns the figures of a point by name. */
function named(values) {
  return Object.fromEntries(state.columns.map((name, index) => [name, values[index]]));
}

async function loadHistory() {
  const { step_ms, columns, points } = await get(`/api/history?span=${state.span}&points=720`);
  Object.assign(state, { step: step_ms, columns });
  state.points = points.map(named);
  state.latest ??= state.points.at(-1) ?? null;
}

/** Loads the miss-ratio curve, which moves slowly. */
async function loadAdvice() {
  state.advice = await get("/api/advice");
  show();
}

/** Adds the figures of a second. For long times, the history is loaded again when a new point is due. */
function addFigures(values) {
  if (!state.columns.length) return;
  state.latest = named(values);
  const last = state.points.at(-1)?.time_ms ?? 0;
  if (state.step <= 5000) {
    state.points.push(state.latest);
    state.points = state.points.filter((point) => point.time_ms > state.latest.time_ms - state.span * 1000);
  } else if (state.latest.time_ms - last > 2 * state.step) {
    loadHistory().then(show, failed);
  }
}

/** Returns the rate of a counter of a client or an operation, from the last two states. */
function rates(name, counter) {
  const list = (status) => [...(status?.clients ?? []), ...(status?.procedures ?? [])];
  const find = (status) => list(status).find((one) => (one.address ?? one.name) === name);
  const [now, then] = [find(state.status), find(state.before)];
  const seconds = (state.status?.uptime_ns - state.before?.uptime_ns) / 1e9;
  return now && then && seconds > 0 ? Math.max(0, now[counter] - then[counter]) / seconds : 0;
}

/** Asks what clients do, while its view is shown. */
async function loadActivity() {
  if (state.view !== "clients" || loadActivity.runs) return;
  loadActivity.runs = true;
  try {
    const activity = await get("/api/activity");
    [state.activityBefore, state.activity] = [state.activity, activity];
  } finally {
    loadActivity.runs = false;
  }
  show();
}

function chartWidth() {
  const room = at("view").clientWidth || 800;
  return Math.max(280, (room >= 900 ? (room - 16) / 2 : room) - 26);
}

function context() {
  const to = state.latest?.time_ms ?? Date.now();
  // A young history fills the chart: an hour that is empty but for a minute shows nothing.
  const first = state.points[0]?.time_ms ?? to;
  const from = Math.max(to - state.span * 1000, Math.min(first, to - 120000));
  const history = { points: state.points, from, to, gap: Math.max(3 * state.step, 5000) };
  return {
    ...state, history, spans: SPANS, chosen: state.span, width: chartWidth(), rates, act,
    administrator: state.session.administrator,
    choose: (seconds) => { state.span = seconds; loadHistory().then(show, failed); },
    search: (filter) => { state.filter = filter; show(); },
  };
}

/** Draws the view. Parts that have not changed stay in place, so that no click and no text that is typed is lost. */
function show() {
  if (!state.status) return;
  const view = at("view");
  const focused = document.activeElement;
  const inside = view.contains(focused);
  const name = (one) => one.id || one.getAttribute("aria-label") || one.textContent;
  const [key, start] = inside ? [name(focused), focused.selectionStart ?? null] : [null, null];
  const same = view.dataset.view === state.view;
  const made = views[state.view](context()).filter(Boolean);
  const before = [...view.children];
  const kept = made.map((part) => (same && before.find((old) => old.outerHTML === part.outerHTML)) || part);
  before.filter((old) => !kept.includes(old)).forEach((old) => {
    // A table that is replaced stays where it was scrolled to.
    const next = kept.find((part) => part.ariaLabel && part.ariaLabel === old.ariaLabel);
    if (next) requestAnimationFrame(((left) => () => { next.scrollLeft = left; })(old.scrollLeft));
    old.remove();
  });
  let place = view.firstElementChild;
  for (const part of kept) {
    if (part === place) place = place.nextElementSibling;
    else view.insertBefore(part, place);
  }
  view.dataset.view = state.view;
  if (inside && !focused.isConnected) {
    const again = [...view.querySelectorAll("button, input, select, [tabindex]")].find((one) => name(one) === key);
    again?.focus({ preventScroll: true });
    if (start !== null) again?.setSelectionRange?.(start, start);
  }
  const { health } = state.status;
  const shown = JSON.stringify(health);
  if (at("health").dataset.shown !== shown) {
    at("health").dataset.shown = shown;
    at("health").replaceChildren(...views.health(state.status));
  }
  const names = state.status.exports.map((one) => one.path).join(", ");
  at("where").textContent = `${names} · version ${state.status.version} · up ${span(state.status.uptime_ns / 1e9)}`;
  document.title = `${health.state === "OK" ? "" : "DEGRADED: "}Forebay, ${names}`;
  for (const link of document.querySelectorAll("nav a")) {
    if (link.hash === `#${state.view}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
}

function showRights() {
  const { administrator } = state.session;
  at("rights").replaceChildren(...(administrator
    ? [`Administrator: ${administrator}. `, el("button", { type: "button", id: "leave", onclick: leave }, "Give the rights up")]
    : ["You may look. For actions, run ", el("code", {}, "forebay web"), " on the server and open its URL."]));
}

function tell(text, bad) {
  at("told").textContent = text;
  at("told").className = bad ? "bad" : "good";
  clearTimeout(tell.timer);
  tell.timer = setTimeout(() => { at("told").textContent = ""; at("told").className = ""; }, 8000);
}

const failed = (error) => tell(error.message, true);

async function post(path, body) {
  const response = await fetch(path, { method: "POST", headers: { "X-Forebay-Key": state.session.key }, body: JSON.stringify(body) });
  const answer = await response.json();
  if (!response.ok) throw new Error(answer.error);
  return answer.message;
}

/** Asks for a confirmation, and carries out an action. */
function act({ title, text, yes, action }) {
  const dialog = at("confirm");
  at("confirm-title").textContent = title;
  at("confirm-text").textContent = text;
  at("confirm-yes").textContent = yes;
  dialog.returnValue = "no";
  dialog.onclose = () => {
    if (dialog.returnValue !== "yes") return;
    tell("The server works on it.", false);
    if (at("add-path")) at("add-path").value = "";
    post("/api/act", action).then((message) => { tell(message, false); refresh(); }, failed);
  };
  dialog.showModal();
}

function leave() {
  post("/api/leave", {}).then((message) => { state.session = { administrator: null }; tell(message, false); showRights(); show(); }, failed);
}

async function refresh() {
  state.status = await get("/api/status");
  show();
}

function route(focus) {
  const name = location.hash.slice(1);
  if (name === "main") return;
  state.view = VIEWS.includes(name) ? name : "overview";
  at("view").dataset.view = "";
  show();
  loadActivity().catch(failed);
  if (focus) { at("main").focus({ preventScroll: true }); scrollTo(0, 0); }
}

/** Follows the server. The browser connects again by itself when the connection ends. */
function follow() {
  const source = new EventSource("/api/live");
  const on = (name, use) => source.addEventListener(name, (event) => { use(JSON.parse(event.data)); show(); });
  source.onopen = () => { at("link").textContent = "Live"; at("link").className = "good"; };
  source.onerror = () => {
    at("link").textContent = `No answer since ${moment(Date.now())}; trying again`;
    at("link").className = "bad";
    if (source.readyState === EventSource.CLOSED) { source.close(); setTimeout(follow, 5000); }
  };
  on("figures", addFigures);
  on("status", (status) => { state.before = state.status; state.status = status; loadActivity().catch(failed); });
  on("happened", (event) => { state.events = [...state.events.filter((one) => one.sequence !== event.sequence), event].slice(-1000); });
}

async function start() {
  try {
    [state.session, state.events, state.status] =
      await Promise.all([get("/api/session"), get("/api/events?last=500"), get("/api/status")]);
    await loadHistory();
  } catch (error) {
    failed(error);
    setTimeout(start, 5000);
    return;
  }
  showRights();
  route(false);
  loadAdvice().catch(failed);
  setInterval(() => loadAdvice().catch(() => {}), 30000);
  follow();
}

addEventListener("hashchange", () => route(true));
addEventListener("resize", () => show());
addEventListener("beforeprint", () => show());
start();
