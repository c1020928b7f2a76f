// The page: requests the newest verdict, waits for the next one, and shows it.

import { NeedsKey, get, mark, useKey } from "./api.js";
import { html } from "./dom.js";
import { Graph, legend } from "./graph.js";
import { changeList, incidentDetail, incidentList, serviceDetail, serviceTable } from "./incidents.js";
import { clean, clock, span, times, zone } from "./words.js";

const MAX_SERVICES = 200; // in the graph
const WAIT_S = 20;
const STATES = {
  waiting: ["Waiting", "No verdict since the watch started."],
  learning: ["Learning", "Too few snapshots to know the baseline: no verdict so far."],
  blind: ["Blind", "Too few measurements for a verdict. Missing measurements are not anomalies."],
  normal: ["Normal", "All measurements are within bounds."],
  anomalous: ["Anomalous", ""],
  unreachable: ["Not reachable", "The watch does not respond. The page shows its last response."],
  stale: ["No news", ""],
};
// Columns that a mesh need not have; the table says that they are empty.
const OPTIONAL = ["node.connections", "node.cpu_cores", "node.memory_bytes"];
const $ = (id) => document.getElementById(id);
const page = { latest: null, at: 0, graph: null, incidents: [], changes: [], detail: null, reachable: true, around: "" };
const graph = new Graph($("canvas"), (name) => { location.hash = `service=${encodeURIComponent(name)}`; });

function route() {
  const [kind, value] = location.hash.slice(1).split("=", 2);
  try { return { [kind]: decodeURIComponent(value ?? "") }; } catch { return {}; }
}

/** The server's time: the browser's own clock may be wrong. */
function now() {
  return page.latest ? page.latest.now_s + (performance.now() - page.at) / 1000 : Date.now() / 1000;
}

async function load(wait) {
  const known = page.latest?.verdict?.time_s;
  const query = wait && known !== undefined ? `?after=${known}&wait=${WAIT_S}` : "";
  page.latest = await get(`verdict${query}`, AbortSignal.timeout((WAIT_S + 15) * 1000));
  page.at = performance.now();
  await loadGraph();
}

/** The graph around the wanted service; of the whole mesh if that was not in the newest interval. */
async function getGraph() {
  const path = `graph?limit=${MAX_SERVICES}`;
  if (page.around) {
    try { return await get(`${path}&around=${encodeURIComponent(page.around)}`); } catch (error) {
      if (error.status !== 400) throw error;
      page.around = "";
    }
  }
  return get(path);
}

async function loadGraph() {
  const [found, recent, planned] = await Promise.all([getGraph(), get("incidents"), get("changes")]);
  page.graph = found.graph;
  page.incidents = recent.incidents;
  page.changes = planned.changes;
  await loadIncident();
}

/** Load the incident of the address, else the newest open one. */
async function loadIncident() {
  const { incident, service } = route();
  const id = incident ?? (service === undefined ? page.incidents.find((each) => each.end_s === null)?.id : undefined);
  page.detail = id === undefined ? null : (await get(`incidents/${encodeURIComponent(id)}`)) ?? { missing: id };
}

function show() {
  const { latest, graph: drawn } = page;
  const verdict = latest?.verdict ?? null;
  showState(verdict);
  $("notices").replaceChildren(...notices(verdict));
  const { service } = route();
  const hasServices = Boolean(drawn?.nodes.length);
  $("table").hidden = !hasServices;
  $("nothing").hidden = hasServices;
  $("nothing").textContent = !page.reachable ? "" : !drawn
    ? "The first interval since the start is not over yet."
    : "The newest interval has no service. The reasons are listed under “Not measured”; `hopline mesh queries` shows each query.";
  if (drawn) {
    graph.draw(drawn, service ?? null, ranks());
    const old = verdict && drawn.time_s < verdict.time_s ? ` as of ${clock(drawn.time_s)}` : "";
    const part = drawn.nodes.length < drawn.total_services;
    $("graph-title").textContent = part ? `Live graph: ${drawn.nodes.length} of ${drawn.total_services} services${page.around ? ` around ${clean(page.around, 40)}` : ", highest scores and neighbours"}${old}` : old ? `Graph${old}` : "Live graph";
    $("table").replaceChildren(...serviceTable(drawn));
    $("names").replaceChildren(...drawn.nodes.slice(0, 500).map((node) => html("option", { value: node.service })));
  }
  const parts = [];
  if (service !== undefined && drawn) parts.push(serviceDetail(drawn, service));
  if (page.detail?.missing) parts.push(html("section", { class: "card" }, html("h2", {}, "Incident"), html("p", { class: "quiet" }, `${clean(page.detail.missing, 60)} is not stored any more: it may have ended hours ago.`)));
  else if (page.detail) parts.push(incidentDetail(page.detail, now(), setMark));
  parts.push(incidentList(page.incidents, page.detail?.incident?.id, now()));
  const planned = changeList(page.changes, now());
  if (planned) parts.push(planned);
  const focused = $("panel").contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
  $("panel").replaceChildren(...parts);
  if (focused) [...$("panel").querySelectorAll("a")].find((link) => link.getAttribute("href") === focused)?.focus({ preventScroll: true });
}

async function setMark(kind) {
  try {
    await mark(page.detail.incident.id, kind);
    await loadGraph();
  } catch (error) {
    alert(error.message);
  }
  show();
}

/** service -> its rank among the suspects of open incidents; the newest incident's rank wins. */
function ranks() {
  const found = new Map();
  for (const { end_s, suspects } of page.incidents) {
    if (end_s !== null) continue;
    suspects.forEach(({ service }, index) => { if (!found.has(service)) found.set(service, index + 1); });
  }
  return found;
}

function showState(verdict) {
  const age = page.latest ? now() - page.latest.published_s : 0;
  const late = verdict && age > 3 * page.latest.interval_s;
  const state = !page.reachable ? "unreachable" : late ? "stale" : verdict?.state ?? "waiting";
  const [word, text] = STATES[state];
  const open = page.incidents.filter((incident) => incident.end_s === null).length;
  const message = state === "stale" ? `No verdict for ${span(age)}.`
    : state === "anomalous" ? `${open} open incident${open === 1 ? "" : "s"}.` : text;
  const pill = $("state");
  if (pill.textContent !== word) pill.textContent = word; // a screen reader announces each change
  pill.dataset.state = state;
  $("message").textContent = message;
  document.title = open ? `(${open}) ${word} · Mesh watch` : `${word} · Mesh watch`;
  const facts = [];
  if (verdict && ["normal", "anomalous"].includes(verdict.state)) facts.push(`anomaly score ${times(verdict.score)} the threshold`);
  if (page.graph) facts.push(`${page.graph.total_services.toLocaleString()} services, ${page.graph.total_edges.toLocaleString()} call paths`);
  if (verdict) facts.push(`verdict at ${clock(verdict.time_s)} (${zone()})`);
  $("facts").textContent = facts.join(" · ");
}

function notices(verdict) {
  const found = [];
  const gaps = (verdict?.gaps ?? []).filter((gap) => gap.reason !== "no series" || !OPTIONAL.includes(gap.what));
  if (gaps.length) {
    found.push(html("details", { class: "notice", open: verdict.state === "blind" },
      html("summary", {}, html("b", {}, "Not measured: "), gaps.slice(0, 4).map((gap) => clean(gap.what, 40)).join(", "), gaps.length > 4 ? ` and ${gaps.length - 4} more` : ""),
      html("ul", {}, gaps.slice(0, 50).map((gap) => html("li", {}, html("code", {}, clean(gap.what, 80)), ` ${clean(gap.reason, 300)}`)))));
  }
  if (verdict?.suppressed.length) {
    const names = verdict.suppressed;
    found.push(html("p", { class: "notice planned" }, html("b", {}, "Planned change, not judged: "), names.slice(0, 6).map((name) => clean(name, 60)).join(", "), names.length > 6 ? ` and ${names.length - 6} more` : ""));
  }
  return found;
}

function requestKey() {
  return new Promise((resolve) => {
    const input = html("input", { id: "key", type: "password", autocomplete: "off", required: true });
    $("panel").replaceChildren(html("form", { class: "card key", onsubmit: (event) => { event.preventDefault(); useKey(input.value.trim()); resolve(); } },
      html("h2", {}, "Authentication required"), html("label", { for: "key" }, "API key with the permission read "), input, html("button", {}, "Use it")));
    input.focus();
  });
}

async function run() {
  let wait = false;
  for (;;) {
    try {
      await load(wait);
      page.reachable = true;
      // Long polling needs the time of a previous verdict.
      wait = page.latest.verdict !== null;
      show();
      document.body.dataset.shown = page.latest.verdict?.time_s ?? "none";
      if (!wait) await pause(2000);
    } catch (error) {
      wait = false;
      if (error instanceof NeedsKey) { await requestKey(); continue; }
      page.reachable = false;
      show();
      await pause(3000);
    }
  }
}

const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

$("legend").append(legend());
$("zoom-in").addEventListener("click", () => graph.zoom(1 / 1.25));
$("zoom-out").addEventListener("click", () => graph.zoom(1.25));
$("whole").addEventListener("click", () => graph.fit());
$("find").addEventListener("submit", async (event) => {
  event.preventDefault();
  const name = $("name").value.trim();
  page.around = name && page.graph && page.graph.nodes.length < page.graph.total_services ? name : "";
  location.hash = name ? `service=${encodeURIComponent(name)}` : "";
  try { await loadGraph(); } catch { /* the loop reports it */ }
  show();
});
addEventListener("hashchange", async () => {
  try { await loadIncident(); } catch { /* the loop reports it */ }
  show();
});
setInterval(() => showState(page.latest?.verdict ?? null), 5000);
run();
