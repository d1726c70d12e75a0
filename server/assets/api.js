// Calls of the server, with the token if there is one. It is kept until the tab is closed.

export const setToken = (token) => sessionStorage.setItem("token", token);

async function call(path, options = {}) {
  const token = sessionStorage.getItem("token");
  const headers = { ...options.headers, ...(token ? { Authorization: `Bearer ${token}` } : {}) };
  try {
    const response = await fetch(path, { ...options, headers, cache: "no-store" });
    const text = await response.text();
    return { ok: response.ok, status: response.status, text, json: () => JSON.parse(text) };
  } catch {
    throw new Error("The server does not answer.");
  }
}

export const get = (path) => call(path);

// Returns the answer, or null if it has no body.
export async function post(path, body) {
  const headers = { "Content-Type": "application/json" };
  const response = await call(path, { method: "POST", headers, body: JSON.stringify(body) });
  if (response.status === 204) return null;
  if (response.ok) return response.json();
  let detail = response.text;
  try {
    detail = response.json().detail;
  } catch {
    // A proxy may have answered.
  }
  throw new Error(`The server says ${response.status}: ${detail}`);
}
