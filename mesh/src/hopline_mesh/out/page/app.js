// The page: asks for the newest verdict, waits for the next one, and shows it.

import { NeedsKey, ask, useKey } from "./api.js";
import { html } from "./dom.js";
import { Graph, legend } from "./graph.js";
import { incidentDetail, incidentList, serviceDetail, serviceTable } from "./incidents.js";
import { clean, clock, span, times } from "./words.js";

const AT_MOST = 200; // services that are drawn
const WAIT_S = 20;
const STATES = {
  waiting: ["Waiting", "The watch has judged nothing since it began."],
  learning: ["Learning", "Too little was seen yet to say what is normal: no verdict so far."],
  blind: ["Blind", "Too little could be measured to judge. What is missing is no fault of a service."],
  normal: ["Normal", "Nothing is out of bounds."],
  anomalous: ["Anomalous", ""],
  unreachable: ["Not reachable", "The watch does not answer. What is shown is the last that it told."],
  stale: ["No news", ""],
};
const $ = (id) => document.getElementById(id);
const page = { told: null, at: 0, graph: null, incidents: [], detail: null, reachable: true, around: "" };
const graph = new Graph($("canvas"), (name) => { location.hash = `service=${encodeURIComponent(name)}`; });

function route() {
  const [kind, value] = location.hash.slice(1).split("=", 2);
  try { return { [kind]: decodeURIComponent(value ?? "") }; } catch { return {}; }
}

/** The server's time: the browser's own clock may be wrong. */
function now() {
  return page.told ? page.told.now_s + (performance.now() - page.at) / 1000 : Date.now() / 1000;
}

async function load(wait) {
  const known = page.told?.verdict?.time_s;
  const query = wait && known !== undefined ? `?after=${known}&wait=${WAIT_S}` : "";
  page.told = await ask(`verdict${query}`, AbortSignal.timeout((WAIT_S + 15) * 1000));
  page.at = performance.now();
  await more();
}

async function more() {
  const around = page.around ? `&around=${encodeURIComponent(page.around)}` : "";
  const [found, kept] = await Promise.all([ask(`graph?limit=${AT_MOST}${around}`), ask("incidents")]);
  page.graph = found.graph;
  page.incidents = kept.incidents;
  await detail();
}

/** The incident that is shown: the one that was asked for, else the newest that goes on. */
async function detail() {
  const { incident, service } = route();
  const id = incident ?? (service === undefined ? page.incidents.find((each) => each.end_s === null)?.id : undefined);
  page.detail = id === undefined ? null : (await ask(`incidents/${encodeURIComponent(id)}`)) ?? { missing: id };
}

function show() {
  const { told, graph: drawn } = page;
  const verdict = told?.verdict ?? null;
  showState(verdict);
  $("notices").replaceChildren(...notices(verdict));
  const { service } = route();
  const some = Boolean(drawn?.nodes.length);
  $("table").hidden = !some;
  $("nothing").hidden = some;
  if (drawn) {
    graph.draw(drawn, service ?? null, ranks());
    const old = verdict && drawn.time_s < verdict.time_s ? ` as of ${clock(drawn.time_s)}` : "";
    const part = drawn.nodes.length < drawn.total_services;
    $("graph-title").textContent = part ? `Live graph: ${drawn.nodes.length} of ${drawn.total_services} services${page.around ? ` around ${clean(page.around, 40)}` : ", the worst and what is around them"}${old}` : old ? `Graph${old}` : "Live graph";
    $("table").replaceChildren(...serviceTable(drawn));
    $("names").replaceChildren(...drawn.nodes.slice(0, 500).map((node) => html("option", { value: node.service })));
  }
  const parts = [];
  if (service !== undefined && drawn) parts.push(serviceDetail(drawn, service));
  if (page.detail?.missing) parts.push(html("section", { class: "card" }, html("h2", {}, "Incident"), html("p", { class: "quiet" }, `${clean(page.detail.missing, 60)} is not kept: it may have ended hours ago.`)));
  else if (page.detail) parts.push(incidentDetail(page.detail, now()));
  parts.push(incidentList(page.incidents, page.detail?.incident?.id, now()));
  const focused = $("panel").contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
  $("panel").replaceChildren(...parts);
  if (focused) [...$("panel").querySelectorAll("a")].find((link) => link.getAttribute("href") === focused)?.focus({ preventScroll: true });
}

/** service -> its place among the suspects of incidents that go on; the newest incident's counts. */
function ranks() {
  const found = new Map();
  for (const { end_s, suspects } of page.incidents) {
    if (end_s !== null) continue;
    suspects.forEach(({ service }, index) => { if (!found.has(service)) found.set(service, index + 1); });
  }
  return found;
}

function showState(verdict) {
  const age = page.told ? now() - page.told.published_s : 0;
  const late = verdict && age > 3 * page.told.interval_s;
  const state = !page.reachable ? "unreachable" : late ? "stale" : verdict?.state ?? "waiting";
  const [word, text] = STATES[state];
  const open = page.incidents.filter((incident) => incident.end_s === null).length;
  const said = state === "stale" ? `The watch has judged nothing for ${span(age)}.`
    : state === "anomalous" ? `${open} incident${open === 1 ? " goes" : "s go"} on.` : text;
  const pill = $("state");
  if (pill.textContent !== word) pill.textContent = word; // a screen reader hears changes only
  pill.dataset.state = state;
  $("said").textContent = said;
  document.title = open ? `(${open}) ${word} · Mesh watch` : `${word} · Mesh watch`;
  const facts = [];
  if (verdict && ["normal", "anomalous"].includes(verdict.state)) facts.push(`score ${times(verdict.score)} the threshold`);
  if (page.graph) facts.push(`${page.graph.total_services.toLocaleString()} services, ${page.graph.total_edges.toLocaleString()} call paths`);
  if (verdict) facts.push(`judged ${clock(verdict.time_s)}`);
  $("facts").textContent = facts.join(" · ");
}

function notices(verdict) {
  const found = [];
  if (verdict?.gaps.length) {
    found.push(html("details", { class: "notice", open: verdict.state === "blind" },
      html("summary", {}, html("b", {}, "Not measured: "), verdict.gaps.slice(0, 4).map((gap) => clean(gap.what, 40)).join(", "), verdict.gaps.length > 4 ? ` and ${verdict.gaps.length - 4} more` : ""),
      html("ul", {}, verdict.gaps.slice(0, 50).map((gap) => html("li", {}, html("code", {}, clean(gap.what, 80)), ` ${clean(gap.reason, 300)}`)))));
  }
  if (verdict?.suppressed.length) {
    const names = verdict.suppressed;
    found.push(html("p", { class: "notice planned" }, html("b", {}, "Planned change, not judged: "), names.slice(0, 6).map((name) => clean(name, 60)).join(", "), names.length > 6 ? ` and ${names.length - 6} more` : ""));
  }
  return found;
}

function askForKey() {
  return new Promise((resolve) => {
    const input = html("input", { id: "key", type: "password", autocomplete: "off", required: true });
    $("panel").replaceChildren(html("form", { class: "card key", onsubmit: (event) => { event.preventDefault(); useKey(input.value.trim()); resolve(); } },
      html("h2", {}, "Who asks?"), html("label", { for: "key" }, "API key with the permission to read "), input, html("button", {}, "Use it")));
    input.focus();
  });
}

async function run() {
  let wait = false;
  for (;;) {
    try {
      await load(wait);
      page.reachable = true;
      // Before the first verdict there is none to wait for.
      wait = page.told.verdict !== null;
      show();
      document.body.dataset.shown = page.told.verdict?.time_s ?? "none";
      if (!wait) await pause(2000);
    } catch (error) {
      wait = false;
      if (error instanceof NeedsKey) { await askForKey(); continue; }
      page.reachable = false;
      show();
      await pause(3000);
    }
  }
}

const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

$("legend").append(legend());
$("closer").addEventListener("click", () => graph.zoom(1 / 1.25));
$("farther").addEventListener("click", () => graph.zoom(1.25));
$("whole").addEventListener("click", () => graph.fit());
$("find").addEventListener("submit", async (event) => {
  event.preventDefault();
  const name = $("name").value.trim();
  page.around = name && page.graph && page.graph.nodes.length < page.graph.total_services ? name : "";
  location.hash = name ? `service=${encodeURIComponent(name)}` : "";
  try { await more(); } catch { /* the loop says so */ }
  show();
});
addEventListener("hashchange", async () => {
  try { await detail(); } catch { /* the loop says so */ }
  show();
});
setInterval(() => showState(page.told?.verdict ?? null), 5000);
run();
