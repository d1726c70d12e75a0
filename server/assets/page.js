// Shows the admin API, once a second. The rates are differences between two answers.
"use strict";

const INTERVAL = 1000;
const $ = (id) => document.getElementById(id);
// How many histograms are kept: one per second for 30 s, and the one before them.
const LATENCIES = 31;
const latencies = [];
let before = null;
let isPaused = false;

// Text is never read as HTML: keys come from clients.
function element(name, text, className) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  if (className) made.className = className;
  return made;
}

const number = (value) => value.toLocaleString("en", { maximumFractionDigits: 1 });

function row(cells) {
  const made = element("tr");
  made.append(...cells);
  return made;
}

function showPolicies(status, seconds) {
  const old = new Map((before?.policies ?? []).map((policy) => [policy.name, policy]));
  const rate = (policy, field) => {
    const earlier = old.get(policy.name);
    // A process that has restarted counts from 0.
    const more = earlier ? policy[field] - earlier[field] : -1;
    return more >= 0 && seconds > 0 ? number(more / seconds) : "–";
  };
  $("policies").replaceChildren(...status.policies.map((policy) => {
    const name = element("th", policy.name);
    name.scope = "row";
    const quotas = policy.quotas.map(({ name, quota }) => `${name} ${quota}`).join(", ");
    return row([
      name,
      element("td", (quotas || "in the requests") + (policy.is_shadow ? " (shadow)" : "")),
      element("td", rate(policy, "allowed"), "number"),
      element("td", rate(policy, "denied"), "number"),
      element("td", number(policy.allowed), "number"),
      element("td", number(policy.denied), "number"),
      element("td", policy.held === null ? "–" : number(policy.held), "number"),
    ]);
  }));
}

function showDenied(denied) {
  $("denied-note").textContent = denied.keys.length
    ? `In the last ${denied.seconds} seconds:`
    : `No key was denied in the last ${denied.seconds} seconds.`;
  $("denied").replaceChildren(...denied.keys.map(({ policy, key, count }) =>
    row([element("td", policy), element("td", key, "key"), element("td", number(count), "number")])));
}

function showBlocked(blocked) {
  $("blocked-note").textContent = blocked.length ? "" : "No key is blocked.";
  $("blocked").replaceChildren(...blocked.map(({ policy, key, seconds }) =>
    row([element("td", policy), element("td", key, "key"), element("td", number(seconds), "number")])));
}

// Of the metrics with this name: the labels and the value of each.
function samples(metrics, name) {
  return metrics.split("\n")
    .filter((line) => line.startsWith(name + "{") || line.startsWith(name + " "))
    .map((line) => [line.slice(name.length, line.lastIndexOf(" ")), Number(line.slice(line.lastIndexOf(" ") + 1))]);
}

const sum = (values) => values.reduce((total, [, value]) => total + value, 0);

// A counter by the value of its only label.
function counts(metrics, name) {
  const all = samples(metrics, name).map(([labels, value]) => `${/="([^"]*)"/.exec(labels)[1]} ${number(value)}`);
  return all.sort().join(", ") || "none";
}

// The numbers of measured values up to each bound.
function histogram(metrics, name) {
  const buckets = new Map();
  for (const [labels, value] of samples(metrics, `${name}_bucket`)) {
    const bound = /le="([^"]*)"/.exec(labels)[1];
    const key = bound === "+Inf" ? Infinity : Number(bound);
    buckets.set(key, (buckets.get(key) ?? 0) + value);
  }
  return buckets;
}

// The smallest bound that covers this share of the values recorded between two histograms.
function quantile(earlier, latest, share) {
  const later = [...latest].map(([bound, count]) => [bound, count - (earlier.get(bound) ?? 0)]);
  const sorted = later.sort(([a], [b]) => a - b);
  const all = sorted.at(-1)?.[1] ?? 0;
  return all > 0 ? sorted.find(([, count]) => count >= share * all)[0] : null;
}

function latency(metrics) {
  const latest = histogram(metrics, "fleetlimit_redis_call_duration_seconds");
  // A process that has restarted counts from 0.
  const isRestarted = (latest.get(Infinity) ?? 0) < (latencies.at(-1)?.get(Infinity) ?? 0);
  if (isRestarted) latencies.length = 0;
  latencies.push(latest);
  if (latencies.length > LATENCIES) latencies.shift();
  const bound = quantile(latencies[0], latest, 0.99);
  if (bound === null) return "no calls";
  return bound === Infinity ? "more than 1 s" : `${number(1000 * bound)} ms`;
}

// What it is, and whether that is bad.
function configuration(status, metrics) {
  if (sum(samples(metrics, "fleetlimit_server_reload_failed")) > 0) return ["the last reload was rejected", true];
  const sections = status.restart_needed.join(", ");
  return sections ? [`as in the files, except ${sections}: these need a restart`, true] : ["as in the files", false];
}

function showServer(status, metrics) {
  const facts = [["Store", status.store]];
  const connections = samples(metrics, "fleetlimit_redis_connections");
  if (status.store === "redis") {
    const open = sum(samples(metrics, "fleetlimit_redis_breaker_open"));
    facts.push(["Circuit breaker", open > 0 ? `open (${open})` : "closed", open > 0]);
    facts.push(["Connections", number(sum(connections))]);
    const instances = samples(metrics, "fleetlimit_fleet_instances");
    if (instances.length) facts.push(["Instances", number(sum(instances))]);
    const share = samples(metrics, "fleetlimit_fleet_share");
    if (share.length) facts.push(["Share in an outage", `${number(100 * sum(share))}%`]);
    facts.push(["99% of calls in 30 s took at most", latency(metrics)]);
  }
  facts.push(["Failure mode", status.failure_mode]);
  facts.push(["Decided by lists, blocks and limits of 0", counts(metrics, "fleetlimit_server_overruled_total")]);
  const errors = counts(metrics, "fleetlimit_server_grpc_errors_total");
  facts.push(["gRPC requests that failed", errors, errors !== "none"]);
  facts.push(["Configuration", ...configuration(status, metrics)]);
  $("server").replaceChildren(...facts.map(([name, value, isBad]) => {
    const pair = element("div");
    pair.append(element("dt", name), element("dd", value, isBad ? "bad" : undefined));
    return pair;
  }));
}

async function get(path) {
  const token = sessionStorage.getItem("token");
  const headers = token ? { Authorization: `Bearer ${token}` } : {};
  return fetch(path, { headers, cache: "no-store" });
}

function say(text, isBad) {
  $("state").textContent = text;
  $("state").className = isBad ? "bad" : "";
}

async function update() {
  const [response, metrics] = await Promise.all([get("api/status"), get("metrics")]);
  $("login").hidden = response.status !== 401;
  if (response.status === 401) return say("A token is needed.", true);
  if (!response.ok || !metrics.ok) return say(`The server says ${response.status}.`, true);
  const status = await response.json();
  showServer(status, await metrics.text());
  showPolicies(status, before ? (status.time - before.time) : 0);
  showDenied(status.denied);
  showBlocked(status.blocked);
  before = status;
  say(`Up to date at ${new Date(status.time * 1000).toLocaleTimeString()}`);
}

async function run() {
  for (;;) {
    if (!isPaused) {
      await update().catch(() => say("The server does not answer.", true));
    }
    await new Promise((resolve) => setTimeout(resolve, INTERVAL));
  }
}

$("pause").addEventListener("click", () => {
  isPaused = !isPaused;
  $("pause").setAttribute("aria-pressed", String(isPaused));
  $("pause").textContent = isPaused ? "Continue" : "Pause";
});
$("login").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem("token", $("token").value);
  update().catch(() => say("The server does not answer.", true));
});
run();
