// Asks the server once a second, and shows what it answers. The files that this one names have a part of the page each.

import { initActions, setStore } from "./actions.js";
import { get, setToken } from "./api.js";
import { showBanner, showStale } from "./banner.js";
import { $, clock, setText, zone } from "./dom.js";
import { showHistory } from "./history.js";
import { showStore } from "./store.js";
import { showBlocked, showChoices, showDenied, showPolicies } from "./tables.js";

const INTERVAL = 1000;
let isPaused = false;
// The time of the latest numbers, and the time when the history was asked for, in seconds since 1970.
let latest = null;
let asked = 0;
let historySeconds = 0;

function say(text, isBad) {
  setText($("state"), text);
  $("state").className = isBad ? "bad" : "";
}

function fail(reason) {
  say(reason, true);
  if (latest) showStale(reason, latest);
}

// The history changes once in a few seconds only.
async function askForHistory(time) {
  if (time > asked && time - asked < historySeconds) return null;
  const response = await get("api/history");
  if (!response.ok) return null;
  const history = response.json();
  [asked, historySeconds] = [time, history.seconds];
  return history;
}

async function update() {
  const [response, metrics] = await Promise.all([get("api/status"), get("metrics")]);
  $("login").hidden = response.status !== 401;
  if (response.status === 401) return fail("A token is needed.");
  if (!response.ok || !metrics.ok) return fail(`The server says ${(response.ok ? metrics : response).status}.`);
  const status = response.json();
  const history = await askForHistory(status.time);
  showBanner(status, metrics.text);
  showHistory(status, history);
  showStore(status, metrics.text);
  showPolicies(status);
  showDenied(status);
  showBlocked(status);
  showChoices(status);
  setStore(status.store);
  latest = status.time;
  say(`Up to date at ${clock(latest)} (${zone()})`);
}

async function tryUpdate() {
  try {
    await update();
  } catch (error) {
    fail(error.message);
  }
}

async function run() {
  for (;;) {
    if (!isPaused) await tryUpdate();
    await new Promise((resolve) => setTimeout(resolve, INTERVAL));
  }
}

$("pause").addEventListener("click", () => {
  isPaused = !isPaused;
  $("pause").setAttribute("aria-pressed", String(isPaused));
  setText($("pause"), isPaused ? "Continue" : "Pause");
  if (isPaused && latest) say(`Paused at ${clock(latest)} (${zone()})`);
});
$("login").addEventListener("submit", (event) => {
  event.preventDefault();
  setToken($("token").value);
  tryUpdate();
});
initActions(tryUpdate);
run();
