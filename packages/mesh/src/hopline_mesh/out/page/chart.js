// One number of an incident over time: expected and seen, with the incident's start and end.

import { html, svg } from "./dom.js";
import { amount, clock, featureName, subject } from "./words.js";

const SIZE = { width: 460, height: 150, left: 58, right: 10, top: 14, bottom: 22 };

export function chart(series, incident) {
  const points = series.points.map(([time, expected, seen]) => ({ time, expected, seen }));
  const known = points.flatMap((point) => [point.expected, point.seen]).filter((value) => value !== null);
  const title = `${subject(series)}: ${featureName(series.feature)}`;
  const caption = html("figcaption", {}, html("b", {}, featureName(series.feature)), ` ${subject(series)}`);
  if (points.length < 2 || !known.length)
    return html("figure", { class: "chart" }, caption, html("p", { class: "quiet" }, "No measurements over time."));
  const scale = scales(points, known);
  const drawing = svg("svg", { viewBox: `0 0 ${SIZE.width} ${SIZE.height}`, role: "img", "aria-label": described(title, series, points, incident) },
    span(incident, scale), axes(series.feature, scale),
    svg("path", { class: "expected", d: line(points, "expected", scale) }),
    svg("path", { class: "seen", d: line(points, "seen", scale) }),
    marks(incident, scale));
  const readout = html("output", { class: "readout" });
  hover(drawing, points, series.feature, scale, readout);
  return html("figure", { class: "chart" }, caption, drawing, readout);
}

function scales(points, known) {
  const first = points[0].time, last = points[points.length - 1].time;
  let low = Math.min(...known), high = Math.max(...known);
  if (low >= 0 && low < 0.6 * high) low = 0;
  if (high === low) high = low + (Math.abs(low) || 1);
  high += 0.06 * (high - low);
  const { width, height, left, right, top, bottom } = SIZE;
  return {
    first, last, low, high,
    x: (time) => left + ((width - left - right) * (time - first)) / (last - first || 1),
    y: (value) => height - bottom - ((height - top - bottom) * (value - low)) / (high - low),
    time: (x) => first + ((last - first) * (x - left)) / (width - left - right),
  };
}

/** A path with gaps at missing values. */
function line(points, name, { x, y }) {
  let text = "", open = false;
  for (const point of points) {
    const value = point[name];
    if (value === null) { open = false; continue; }
    text += `${open ? "L" : "M"}${x(point.time).toFixed(1)} ${y(value).toFixed(1)}`;
    if (!open) text += "h.1"; // a single point shows as a dot
    open = true;
  }
  return text;
}

function axes(feature, { x, y, low, high, first, last }) {
  const { width, left, right, height } = SIZE;
  const parts = [];
  for (const value of [low, (low + high) / 2, high * 0.98 + low * 0.02]) {
    parts.push(svg("line", { class: "grid", x1: left, x2: width - right, y1: y(value), y2: y(value) }),
      svg("text", { class: "y", x: left - 6, y: y(value) }, amount(feature, value)));
  }
  for (const [part, anchor] of [[0, "start"], [0.5, "middle"], [1, "end"]]) {
    const time = first + part * (last - first);
    parts.push(svg("text", { class: "x", x: x(time), y: height - 6, "text-anchor": anchor }, clock(time, { withSeconds: last - first < 600 })));
  }
  return svg("g", { class: "axes" }, parts);
}

function ends(incident, { first, last }) {
  const start = Math.max(incident.start_s, first), end = Math.min(incident.end_s ?? last, last);
  return { start, end: Math.max(start, end) };
}

function span(incident, scale) {
  const { start, end } = ends(incident, scale);
  return svg("rect", { class: "during", x: scale.x(start), width: Math.max(1, scale.x(end) - scale.x(start)), y: SIZE.top, height: SIZE.height - SIZE.top - SIZE.bottom });
}

function marks(incident, scale) {
  const mark = (time, text, anchor) => svg("g", { class: "mark" },
    svg("line", { x1: scale.x(time), x2: scale.x(time), y1: SIZE.top - 4, y2: SIZE.height - SIZE.bottom }),
    svg("text", { x: scale.x(time) + (anchor === "end" ? -4 : 4), y: SIZE.top - 4, "text-anchor": anchor }, text));
  const { start, end } = ends(incident, scale);
  const found = [];
  if (incident.start_s >= scale.first) found.push(mark(start, "start", scale.x(start) > SIZE.width - 60 ? "end" : "start"));
  if (incident.end_s !== null && incident.end_s <= scale.last) found.push(mark(end, "end", scale.x(end) > SIZE.width - 60 ? "end" : "start"));
  return svg("g", {}, found);
}

function hover(drawing, points, feature, scale, readout) {
  const cursor = svg("line", { class: "cursor", y1: SIZE.top, y2: SIZE.height - SIZE.bottom, visibility: "hidden" });
  drawing.append(cursor);
  drawing.addEventListener("pointermove", (event) => {
    const at = new DOMPoint(event.clientX, event.clientY).matrixTransform(drawing.getScreenCTM().inverse());
    const time = scale.time(at.x);
    const near = points.reduce((best, point) => (Math.abs(point.time - time) < Math.abs(best.time - time) ? point : best));
    cursor.setAttribute("x1", scale.x(near.time));
    cursor.setAttribute("x2", scale.x(near.time));
    cursor.setAttribute("visibility", "visible");
    readout.textContent = `${clock(near.time)}: seen ${amount(feature, near.seen)}, expected ${amount(feature, near.expected)}`;
  });
  drawing.addEventListener("pointerleave", () => {
    cursor.setAttribute("visibility", "hidden");
    readout.textContent = "";
  });
}

function described(title, { feature }, points, incident) {
  const before = points.filter((point) => point.time < incident.start_s && point.seen !== null);
  const during = points.filter((point) => point.time >= incident.start_s && point.seen !== null);
  const mean = (some) => amount(feature, some.reduce((sum, point) => sum + point.seen, 0) / some.length);
  const parts = [title];
  if (before.length) parts.push(`about ${mean(before)} before the incident`);
  if (during.length) parts.push(`about ${mean(during)} since it began at ${clock(incident.start_s)}`);
  return parts.join(", ");
}
