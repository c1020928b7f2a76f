// The list of incidents, one incident, and one service.

import { chart } from "./chart.js";
import { html } from "./dom.js";
import { amount, clean, clock, featureName, level, short, span, subject, times } from "./words.js";

const MAX_CHARTS = 6;
const FIRST_ROWS = 5;
const MARKS = { acknowledged: "acknowledged", muted: "muted", not_an_incident: "not an incident" };

/** @param chosen id of the selected incident; @param now Unix seconds */
export function incidentList(incidents, chosen, now) {
  if (!incidents.length)
    return html("section", { class: "card" }, html("h2", {}, "Incidents"), html("p", { class: "quiet" }, "None in the last hours."));
  const open = incidents.filter((incident) => incident.end_s === null).length;
  return html("section", { class: "card" },
    html("h2", {}, "Incidents ", html("span", { class: "count" }, open ? `${open} open` : "none open")),
    html("ul", { class: "incidents" }, incidents.map((incident) => {
      const muted = incident.mark && incident.mark.kind !== "acknowledged";
      return html("li", {}, html("a", {
        href: `#incident=${encodeURIComponent(incident.id)}`, class: incident.end_s === null && !muted ? "open" : "over",
        "aria-current": incident.id === chosen ? "true" : null,
      },
        html("span", { class: "who" }, clean(incident.name)),
        html("span", { class: "what" }, clean(incident.headline, 300)),
        html("span", { class: "when" }, when(incident, now), incident.mark ? ` · ${MARKS[incident.mark.kind]}` : ""),
        html("span", { class: "peak" }, times(incident.peak_score))));
    })));
}

function when(incident, now) {
  if (incident.end_s === null) return `since ${clock(incident.start_s)}, ${span(now - incident.start_s)}`;
  return `${clock(incident.start_s)}, lasted ${span(incident.end_s - incident.start_s)}`;
}

/** @param setMark called with a kind of mark, or null to remove it */
export function incidentDetail({ incident, series }, now, setMark = () => {}) {
  const total = incident.suspects.reduce((sum, suspect) => sum + suspect.score, 0) || 1;
  const suspects = incident.suspects.filter((suspect, rank) => !rank || Math.round((100 * suspect.score) / total));
  const evidence = distinct(suspects.flatMap((suspect) => suspect.evidence));
  return html("section", { class: "card incident", "aria-labelledby": "incident-title" },
    html("div", { class: "bar" },
      html("h2", { id: "incident-title" }, clean(incident.name)),
      html("span", { class: `pill small ${incident.end_s === null ? "going" : "over"}` }, incident.end_s === null ? "open" : "ended")),
    html("p", { class: "headline" }, clean(incident.headline, 300)),
    html("p", { class: "quiet" }, times_of(incident, now), ` · peak anomaly score ${times(incident.peak_score)} the threshold · `, html("code", {}, clean(incident.id, 40))),
    incident.links.length ? html("p", { class: "links" }, "Look at: ", incident.links.map(({ name, url }, index) => [index ? " · " : "", html("a", { href: url, rel: "noopener noreferrer", target: "_blank" }, clean(name, 60))])) : null,
    marks(incident, setMark),
    html("h3", {}, "Suspects", html("span", { class: "key" }, "share of the evidence")),
    html("ol", { class: "suspects" }, suspects.slice(0, 8).map((suspect) => html("li", {},
      html("a", { href: `#service=${encodeURIComponent(suspect.service)}` }, subject(suspect)),
      meter(suspect.score / total), html("span", { class: "number" }, `${Math.round((100 * suspect.score) / total)} %`)))),
    evidence.length ? html("h3", {}, "Evidence") : null,
    evidence.length ? evidenceTable(evidence) : null,
    series.length ? html("h3", {}, "Over time ", html("span", { class: "key" }, html("span", { class: "line seen" }), "seen ", html("span", { class: "line expected" }), "expected")) : null,
    html("div", { class: "charts" }, inOrder(series, evidence).filter(measured).slice(0, MAX_CHARTS).map((each) => chart(each, incident))));
}

function measured(series) {
  return series.points.some(([, expected, seen]) => expected !== null || seen !== null);
}

function times_of(incident, now) {
  const start = `Began ${clock(incident.start_s)}`;
  return incident.end_s === null ? `${start}, ${span(now - incident.start_s)} ago` : `${start}, ended ${clock(incident.end_s)} after ${span(incident.end_s - incident.start_s)}`;
}

/** What people say of the incident, and buttons to say it. */
function marks(incident, setMark) {
  const { mark } = incident;
  const button = (kind, text, title) => html("button", { type: "button", title, onclick: () => setMark(kind) }, text);
  if (mark) return html("p", { class: "marks" }, html("b", {}, capital(MARKS[mark.kind])), mark.by ? ` by ${clean(mark.by, 60)}` : "", mark.at_s ? ` at ${clock(mark.at_s)} ` : " ", button(null, "Undo", "Remove the mark"));
  return html("p", { class: "marks" },
    button("acknowledged", "Acknowledge", "Someone looks after it"),
    button("muted", "Mute", "End its alert; the page still shows it"),
    button("not_an_incident", "Not an incident", "As muted, and the next training takes its time as normal"));
}

const capital = (text) => text[0].toUpperCase() + text.slice(1);

/** Planned changes and troubles of the last hours: what was excused, and what Kubernetes reported. */
export function changeList(changes, now) {
  if (!changes.length) return null;
  // A workload and its Services have the same change: one line.
  const lines = new Map();
  for (const change of changes) {
    const key = JSON.stringify([change.kind, change.start_s, change.end_s, change.detail]);
    lines.set(key, [...(lines.get(key) ?? []), change]);
  }
  return html("section", { class: "card changes" }, html("h2", {}, "Planned changes and troubles"),
    html("ul", {}, [...lines.values()].slice(0, 20).map((same) => html("li", {},
      same.slice(0, 4).map(({ service }, index) => [index ? ", " : "", html("a", { href: `#service=${encodeURIComponent(service)}` }, clean(service, 80))]),
      same.length > 4 ? ` and ${same.length - 4} more` : "",
      html("span", {}, ` ${same[0].kind.replaceAll("_", " ")}`, same[0].detail ? `: ${clean(same[0].detail, 120)}` : ""),
      html("span", { class: "when" }, when(same[0], now))))),
    lines.size > 20 ? html("p", { class: "quiet" }, `and ${lines.size - 20} more`) : null);
}

/** A share as a bar; an element without styles, because the page's policy forbids inline styles. */
function meter(share) {
  return html("progress", { max: "1", value: Math.max(0, Math.min(1, share)).toFixed(3), "aria-hidden": "true" });
}

/** Evidence without repetitions: the same measurement may be evidence against several suspects. */
function distinct(evidence) {
  const found = new Map();
  for (const each of evidence) {
    if (!found.has(keyOf(each))) found.set(keyOf(each), each);
  }
  return [...found.values()];
}

const keyOf = ({ feature, service, caller }) => JSON.stringify([feature, service, caller]);

/** Sort charts: evidence against the first suspects comes first. */
function inOrder(series, evidence) {
  const rank = new Map(evidence.map((each, index) => [keyOf(each), index]));
  return [...series].sort((a, b) => (rank.get(keyOf(a)) ?? 1e9) - (rank.get(keyOf(b)) ?? 1e9));
}

function evidenceTable(evidence) {
  const rows = evidence.slice(0, 30).map((each, index) => html("tr", { hidden: index >= FIRST_ROWS },
    html("th", { scope: "row" }, featureName(each.feature), html("span", { class: "where" }, subject(each)),
      each.detail ? html("span", { class: "where" }, clean(each.detail, 200)) : null),
    html("td", { class: "number" }, amount(each.feature, each.expected)),
    html("td", { class: "number strong" }, each.seen === null && each.expected !== null ? "gone" : amount(each.feature, each.seen)),
    html("td", { class: "number" }, times(each.score))));
  const more = rows.length > FIRST_ROWS ? html("button", { type: "button", class: "more", onclick: () => {
    for (const row of rows) row.hidden = false;
    more.remove();
  } }, `${rows.length - FIRST_ROWS} more`) : null;
  return html("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Evidence" }, html("table", {},
    html("thead", {}, html("tr", {}, ["Measurement", "Expected", "Seen", "Anomaly score"].map((text, column) => html("th", { scope: "col", class: column ? "number" : null }, text)))),
    html("tbody", {}, rows)), more);
}

/** One service: its measurements, callees and callers. */
export function serviceDetail(graph, name) {
  const index = graph.nodes.findIndex((node) => node.service === name);
  const close = html("a", { href: "#", class: "close", "aria-label": "Close" }, "×");
  if (index < 0)
    return html("section", { class: "card" }, html("div", { class: "bar" }, html("h2", {}, clean(name)), close), html("p", { class: "quiet" }, "This service is not in the mesh at present."));
  const node = graph.nodes[index];
  const calls = (from, to, verb) => {
    const edges = graph.edges.filter((edge) => edge[from] === index).sort((a, b) => (b.share ?? 0) - (a.share ?? 0));
    if (!edges.length) return null;
    return [html("h3", {}, verb), html("ul", { class: "calls" }, edges.slice(0, 12).map((edge) => {
      const other = graph.nodes[edge[to]].service;
      return html("li", { class: edge.blamed ? "blamed" : null },
        html("a", { href: `#service=${encodeURIComponent(other)}` }, clean(other, 60)),
        html("span", { class: "number" }, edge.share === null ? "" : `${short(100 * edge.share)} %`));
    }), edges.length > 12 ? html("li", { class: "quiet" }, `and ${edges.length - 12} more`) : null)];
  };
  return html("section", { class: "card service" },
    html("div", { class: "bar" }, html("h2", {}, clean(name)), close),
    html("p", {}, html("span", { class: `dot ${node.suppressed ? "planned" : level(node.score)}`, "aria-hidden": "true" }),
      node.suppressed ? "Planned change: the anomaly score is ignored. " : null,
      node.score === null ? "No anomaly score yet." : `Anomaly score ${times(node.score)} the threshold.`,
      node.incident ? html("a", { href: `#incident=${encodeURIComponent(node.incident)}` }, " Suspected in an incident") : null),
    html("dl", {}, graph.node_features.flatMap((feature, column) => [html("dt", {}, featureName(feature)), html("dd", {}, node.values[column] === null ? "not measured" : amount(feature, node.values[column]))])),
    calls("caller", "callee", "Calls"), calls("callee", "caller", "Called by"));
}

/** The services of the graph as a table. */
export function serviceTable(graph) {
  const rows = graph.nodes.map((node, index) => ({ node, index })).sort((a, b) => (b.node.score ?? -1) - (a.node.score ?? -1)).slice(0, 50);
  const isMeasured = graph.node_features.map((_, column) => graph.nodes.some((node) => node.values[column] !== null));
  const empty = graph.node_features.filter((_, column) => !isMeasured[column]);
  return [
    html("h2", { id: "table-title" }, "Services by anomaly score"),
    html("div", { class: "scroll", tabindex: "0", role: "region", "aria-labelledby": "table-title" }, html("table", {},
      html("thead", {}, html("tr", {}, html("th", { scope: "col" }, "Service"), html("th", { scope: "col", class: "number" }, "Anomaly score"), graph.node_features.filter((_, column) => isMeasured[column]).map((feature) => html("th", { scope: "col", class: "number" }, featureName(feature))))),
      html("tbody", {}, rows.map(({ node }) => html("tr", {},
        html("th", { scope: "row" }, html("span", { class: `dot ${node.suppressed ? "planned" : level(node.score)}`, "aria-hidden": "true" }), html("a", { href: `#service=${encodeURIComponent(node.service)}` }, clean(node.service, 80))),
        html("td", { class: "number" }, node.suppressed ? "planned" : times(node.score)),
        node.values.map((value, column) => isMeasured[column] ? html("td", { class: "number" }, amount(graph.node_features[column], value)) : null)))))),
    empty.length ? html("p", { class: "quiet" }, `Not measured for any of these services: ${empty.map(featureName).join(", ")}.`) : "",
  ];
}
