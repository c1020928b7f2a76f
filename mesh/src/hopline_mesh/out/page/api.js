// Asks the watch. Where it wants an API key, the key is kept for this tab only.

const KEY = "hopline-mesh-key";

export class NeedsKey extends Error {}

/** The JSON at a path; relative, so that a proxy may serve the page below any prefix. */
export async function ask(path, signal) {
  const key = sessionStorage.getItem(KEY);
  const headers = key ? { authorization: `Bearer ${key}` } : {};
  const answer = await fetch(`v1/mesh/${path}`, { headers, signal, cache: "no-store" });
  if (answer.status === 401) throw new NeedsKey();
  if (answer.status === 404) return null;
  if (!answer.ok) throw new Error(`the watch answered ${answer.status}`);
  return answer.json();
}

export function useKey(key) {
  sessionStorage.setItem(KEY, key);
}
