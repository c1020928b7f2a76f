// Requests to the watch. If it needs an API key, the key is stored for this tab only.

const KEY = "hopline-mesh-key";

export class NeedsKey extends Error {}

/** The JSON at a path; relative, so that a proxy may serve the page below any prefix. */
export async function get(path, signal) {
  const key = sessionStorage.getItem(KEY);
  const headers = key ? { authorization: `Bearer ${key}` } : {};
  const response = await fetch(`v1/mesh/${path}`, { headers, signal, cache: "no-store" });
  if (response.status === 401) throw new NeedsKey();
  if (response.status === 404) return null;
  if (!response.ok) throw Object.assign(new Error(`the watch returned status ${response.status}`), { status: response.status });
  return response.json();
}

/** Set the mark of an incident, or remove it with null. */
export async function mark(id, kind) {
  const key = sessionStorage.getItem(KEY);
  const headers = { "content-type": "application/json", ...(key ? { authorization: `Bearer ${key}` } : {}) };
  const body = JSON.stringify({ mark: kind });
  const response = await fetch(`v1/mesh/incidents/${encodeURIComponent(id)}/mark`, { method: "POST", headers, body });
  if (response.ok) return;
  if (response.status === 401) throw new Error("marks need an API key with the permission admin");
  const { error } = await response.json().catch(() => ({}));
  throw new Error(error?.message ?? `the watch returned status ${response.status}`);
}

export function useKey(key) {
  sessionStorage.setItem(KEY, key);
}
