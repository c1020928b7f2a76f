// Names, numbers and times as text for people.

const NAMES = {
  request_rate: "requests",
  error_share: "errors",
  p50_ms: "median latency",
  p99_ms: "p99 latency",
  cpu_cores: "CPU",
  memory_bytes: "memory",
  connections: "open connections",
  client_ms: "latency at the caller",
  server_ms: "latency at the callee",
  stuck_rollout: "rollout is stuck",
  oom_kill: "killed for memory",
  crash_loop: "crash loop",
};
const UNITS = { request_rate: "/s", cpu_cores: " cores" };
const BYTES = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
// Line breaks, control characters, and characters that change the direction of the text around them.
const HOSTILE = /[\u0000-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g;

/** A name from the mesh that is safe to show. */
export function clean(name, limit = 160) {
  const text = String(name).replace(HOSTILE, "\ufffd");
  return text.length <= limit ? text : text.slice(0, limit - 1) + "…";
}

/** The name without its namespace. */
export function shortName(name, limit = 18) {
  return clean(String(name).slice(String(name).indexOf("/") + 1), limit);
}

/** The measured service, or call path as caller → service. */
export function subject({ service, caller }) {
  return caller === null || caller === undefined ? clean(service) : `${clean(caller)} → ${clean(service)}`;
}

/** A column in words. */
export function featureName(feature) {
  return NAMES[feature] ?? clean(feature, 60).replaceAll("_", " ");
}

/** A value with its unit. */
export function amount(feature, value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  if (feature.endsWith("_share")) return `${short(100 * value)} %`;
  if (feature.endsWith("_ms")) return Math.abs(value) >= 10000 ? `${short(value / 1000)} s` : `${short(value)} ms`;
  if (feature.endsWith("_bytes")) {
    const power = Math.min(BYTES.length - 1, Math.abs(value) >= 1 ? Math.floor(Math.log(Math.abs(value)) / Math.log(1024)) : 0);
    return `${short(value / 1024 ** power)} ${BYTES[power]}`;
  }
  return `${short(value)}${UNITS[feature] ?? ""}`;
}

/** Three significant digits. */
export function short(value) {
  if (!Number.isFinite(value)) return "–";
  if (value === 0) return "0";
  const digits = Math.max(0, 2 - Math.floor(Math.log10(Math.abs(value))));
  return String(Number(value.toFixed(Math.min(digits, 6))));
}

/** An anomaly score as a multiple of the threshold. */
export function times(score) {
  return score === null || score === undefined ? "no score" : `${score.toFixed(score < 9.95 ? 1 : 0)} ×`;
}

/** The time of day, with the date if it is not today. */
export function clock(seconds, { withSeconds = true } = {}) {
  const when = new Date(seconds * 1000);
  const time = { hour: "2-digit", minute: "2-digit", hourCycle: "h23", ...(withSeconds ? { second: "2-digit" } : {}) };
  const today = when.toDateString() === new Date().toDateString();
  return when.toLocaleString(undefined, today ? time : { month: "short", day: "numeric", ...time });
}

/** The time zone of all times on the page, which is the browser's. */
export function zone() {
  const { timeZone } = Intl.DateTimeFormat().resolvedOptions();
  const short = new Date().toLocaleTimeString("en", { timeZoneName: "short" }).split(" ").pop();
  return timeZone && timeZone !== short ? `${timeZone}, ${short}` : short;
}

/** A duration: "45 s", "3 min", "2 h 5 min". */
export function span(seconds) {
  const whole = Math.max(0, Math.round(seconds));
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min`;
  const hours = Math.floor(whole / 3600);
  return hours < 48 ? `${hours} h ${Math.floor((whole % 3600) / 60)} min` : `${Math.floor(hours / 24)} days`;
}

/** The CSS class for the colour of an anomaly score. */
export function level(score) {
  if (score === null || score === undefined) return "none";
  if (score >= 1) return "over";
  if (score >= 0.75) return "near";
  return score >= 0.4 ? "some" : "calm";
}
