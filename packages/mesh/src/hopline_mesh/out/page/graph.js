// Draws the live graph; positions change only when services or call paths change.

import { html, svg } from "./dom.js";
import { BOX, DOT, layout } from "./layout.js";
import { amount, clean, featureName, level, shortName, times } from "./words.js";

const PAD = 24;
const DENSE = 70; // services; above this number they are dots
const NAMED = 12; // dots with names before zooming in

export class Graph {
  /** @param holder element to draw in; @param choose called with a service's name */
  constructor(holder, choose) {
    this.holder = holder;
    this.choose = choose;
    this.key = "";
    this.view = null;
    this.places = null;
    this.svg = svg("svg", {
      role: "group", tabindex: "0", class: "mesh",
      "aria-label": "Graph of services. Plus and minus change the size, arrows move it, zero fits it.",
    });
    this.holder.append(this.svg);
    this.listen();
  }

  /** @param ranks service -> rank among the suspects of an open incident */
  draw(graph, chosen, ranks) {
    this.ranks = ranks;
    const key = JSON.stringify([graph.nodes.map((node) => node.service), graph.edges.map((edge) => [edge.caller, edge.callee])]);
    if (key !== this.key) {
      this.dense = graph.nodes.length > DENSE;
      this.cell = this.dense ? DOT : BOX;
      this.svg.classList.toggle("dense", this.dense);
      this.places = layout(graph.nodes.length, graph.edges.map((edge) => [edge.caller, edge.callee]), this.cell, this.aspect());
      this.key = key;
      this.fit();
    }
    const focused = document.activeElement?.dataset?.service;
    const { x, y } = this.places;
    const order = [...graph.edges].sort((a, b) => a.blamed - b.blamed);
    this.svg.replaceChildren(
      this.arrows(),
      svg("g", { class: "edges", "aria-hidden": "true" }, order.map((edge) => this.edge(edge, graph, x, y, chosen))),
      svg("g", { class: "nodes" }, graph.nodes.map((node, index) => this.node(node, index, graph, x, y, chosen))),
      this.dense ? this.names(graph, x, y, chosen) : "",
    );
    if (focused !== undefined)
      [...this.svg.querySelectorAll(".node")].find((node) => node.dataset.service === focused)?.focus({ preventScroll: true });
  }

  arrows() {
    const arrow = (id) => svg("marker", { id, viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 9, markerHeight: 9, markerUnits: "userSpaceOnUse", orient: "auto" }, svg("path", { d: "M0 0 8 4 0 8z" }));
    return svg("defs", {}, arrow("arrow"), arrow("arrow-blamed"));
  }

  edge(edge, graph, x, y, chosen) {
    const { caller, callee } = edge;
    const names = [graph.nodes[caller].service, graph.nodes[callee].service];
    const values = graph.edge_features.map((feature, column) => `${featureName(feature)} ${amount(feature, edge.values[column])}`);
    const faded = chosen !== null && !names.includes(chosen);
    return svg("path", {
      d: path(this.cell, x[caller], y[caller], x[callee], y[callee], caller === callee),
      class: `edge${edge.blamed ? " blamed" : ""}${faded ? " faded" : ""}`,
      "stroke-width": (1 + (this.dense ? 2.5 : 4.5) * Math.sqrt(edge.share ?? 0.05)).toFixed(2),
      "marker-end": `url(#${edge.blamed ? "arrow-blamed" : "arrow"})`,
    }, svg("title", {}, `${names.map((name) => clean(name)).join(" → ")}\n${values.join("\n")}`));
  }

  node(node, index, graph, x, y, chosen) {
    const kind = node.suppressed ? "planned" : level(node.score);
    const calls = graph.edges.filter((edge) => edge.caller === index).length;
    const label = [
      clean(node.service),
      node.suppressed ? "planned change, anomaly score ignored" : node.score === null ? "no anomaly score" : `anomaly score ${times(node.score)} the threshold`,
      node.incident ? `suspect ${this.ranks.get(node.service) ?? ""}`.trim() : null,
      `calls ${calls} service${calls === 1 ? "" : "s"}`,
    ].filter(Boolean).join(", ");
    const faded = chosen !== null && chosen !== node.service && !connected(graph, index, chosen);
    const act = () => this.choose(node.service);
    const marked = kind === "over" || node.incident;
    const mark = node.suppressed ? "planned" : node.score !== null && (kind === "over" || kind === "near") ? times(node.score) : "";
    const box = svg("g", {
      class: ["node", kind, node.incident ? "suspected" : "", faded ? "faded" : ""].join(" "),
      transform: `translate(${x[index].toFixed(1)} ${y[index].toFixed(1)})`,
      tabindex: "0", role: "button", "aria-label": label, "aria-pressed": String(chosen === node.service),
      onclick: act,
      onkeydown: (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); act(); } },
    }, svg("title", {}, label), this.dense ? this.dot(marked) : this.box(node, mark, marked));
    box.dataset.service = node.service;
    return box;
  }

  box(node, mark, marked) {
    const { width, height } = this.cell;
    const rank = node.incident && this.ranks.get(node.service);
    return [
      marked ? svg("rect", { class: "halo", x: -5, y: -5, width: width + 10, height: height + 10, rx: 12 }) : null,
      svg("rect", { class: "box", width, height, rx: 8 }),
      svg("rect", { class: "light", x: 7, y: 7, width: 5, height: height - 14, rx: 2.5 }),
      svg("text", { x: 20, y: height / 2 }, shortName(node.service, node.suppressed ? 10 : mark ? 12 : 17)),
      mark ? svg("text", { class: "score", x: width - 10, y: height / 2 }, mark) : null,
      rank ? [svg("circle", { class: "rank", r: 10 }), svg("text", { class: "rank-number" }, rank)] : null,
    ];
  }

  dot(marked) {
    const middle = this.cell.height / 2;
    return [
      marked ? svg("circle", { class: "halo", cx: middle, cy: middle, r: middle + 7 }) : null,
      svg("circle", { class: "box light", cx: middle, cy: middle, r: middle }),
    ];
  }

  /** Names of dots, on top of everything; only the most important ones until the user zooms in. */
  names(graph, x, y, chosen) {
    const weight = (node) => (node.service === chosen ? 2e9 : 0) + (node.incident ? 1e9 : 0) + (node.score ?? -1);
    const order = graph.nodes.map((node, index) => ({ node, index })).sort((a, b) => weight(b.node) - weight(a.node));
    return svg("g", { class: "names", "aria-hidden": "true" }, order.map(({ node, index }, rank) => svg("text", {
      class: rank < NAMED || node.service === chosen ? level(node.score) : "rest",
      x: x[index] + this.cell.width + 5, y: y[index] + this.cell.height / 2,
    }, `${node.incident && this.ranks.has(node.service) ? `${this.ranks.get(node.service)}. ` : ""}${shortName(node.service, 20)}${node.score !== null && node.score >= 1 && !node.suppressed ? ` ${times(node.score)}` : ""}`)).reverse());
  }

  // Size and place

  aspect() {
    const { width, height } = this.svg.getBoundingClientRect();
    return width && height ? width / height : 1.6;
  }

  fit() {
    const { width, height } = this.places;
    const names = this.dense ? 110 : 0; // of the last column
    this.view = { x: -PAD, y: -PAD, width: width + names + 2 * PAD, height: height + 2 * PAD };
    this.show();
  }

  zoom(factor, at = null) {
    if (!this.view) return;
    const { x, y, width, height } = this.view;
    const point = at ?? { x: x + width / 2, y: y + height / 2 };
    const bounded = Math.min(Math.max(width * factor, 150), 4 * (this.places.width + 2 * PAD)) / width;
    this.view = { x: point.x - (point.x - x) * bounded, y: point.y - (point.y - y) * bounded, width: width * bounded, height: height * bounded };
    this.show();
  }

  move(dx, dy) {
    if (!this.view) return;
    this.view.x += dx * this.view.width;
    this.view.y += dy * this.view.height;
    this.show();
  }

  show() {
    const { x, y, width, height } = this.view;
    this.svg.setAttribute("viewBox", `${x} ${y} ${width} ${height}`);
    this.svg.classList.toggle("zoomed", width < 0.6 * this.places.width);
  }

  listen() {
    const here = (event) => new DOMPoint(event.clientX, event.clientY).matrixTransform(this.svg.getScreenCTM().inverse());
    this.svg.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !this.svg.contains(document.activeElement)) return; // the page scrolls
      event.preventDefault();
      this.zoom(event.deltaY > 0 ? 1.15 : 1 / 1.15, here(event));
    }, { passive: false });
    let held = null;
    this.svg.addEventListener("pointerdown", (event) => { if (this.view && !event.target.closest(".node")) held = here(event); });
    this.svg.addEventListener("pointermove", (event) => {
      if (!held) return;
      const now = here(event);
      this.view.x -= now.x - held.x;
      this.view.y -= now.y - held.y;
      this.show();
    });
    for (const end of ["pointerup", "pointerleave", "pointercancel"]) this.svg.addEventListener(end, () => { held = null; });
    const keys = {
      "+": () => this.zoom(1 / 1.25), "=": () => this.zoom(1 / 1.25), "-": () => this.zoom(1.25), 0: () => this.fit(),
      ArrowLeft: () => this.move(-0.1, 0), ArrowRight: () => this.move(0.1, 0), ArrowUp: () => this.move(0, -0.1), ArrowDown: () => this.move(0, 0.1),
    };
    this.svg.addEventListener("keydown", (event) => {
      const act = keys[event.key];
      if (!act || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      act();
    });
  }
}

function connected(graph, index, name) {
  return graph.edges.some(({ caller, callee }) =>
    (caller === index && graph.nodes[callee].service === name) || (callee === index && graph.nodes[caller].service === name));
}

/** From the right side of the caller to the left side of the callee; calls back go around below. */
function path(cell, fromX, fromY, toX, toY, self) {
  const middle = cell.height / 2, startX = fromX + cell.width, startY = fromY + middle, endX = toX - 2, endY = toY + middle;
  if (self) return `M${startX - 20} ${fromY}c0 -24 -36 -24 -36 0`;
  if (toX > fromX) {
    const bend = Math.max(30, (endX - startX) * 0.45);
    return `M${startX} ${startY}C${startX + bend} ${startY} ${endX - bend} ${endY} ${endX} ${endY}`;
  }
  const below = Math.max(fromY, toY) + cell.height + 34;
  return `M${startX} ${startY}C${startX + 60} ${startY} ${startX + 40} ${below} ${(startX + endX) / 2} ${below}S${endX - 60} ${endY} ${endX} ${endY}`;
}

/** The meaning of colours and lines. */
export function legend() {
  const entry = (kind, text) => html("li", { class: kind }, html("span", { class: `dot ${kind}`, "aria-hidden": "true" }), text);
  return html("ul", { class: "legend", "aria-label": "Legend" },
    entry("calm", "anomaly score below 0.4"), entry("some", "up to 0.75"), entry("near", "near the threshold"), entry("over", "above the threshold"),
    entry("planned", "planned change"), entry("none", "no anomaly score"),
    html("li", {}, html("span", { class: "badge", "aria-hidden": "true" }, "1"), "suspect"),
    html("li", {}, html("span", { class: "line blamed", "aria-hidden": "true" }), "call path with evidence"),
    html("li", {}, html("span", { class: "line", "aria-hidden": "true" }), "wider: more of the caller's requests"));
}
