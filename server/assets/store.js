// The facts about the store and the configuration.

import { $, element, number } from "./dom.js";
import { histogram, quantile, samples, sum, sums } from "./metrics.js";

// How many histograms are kept: one per second for 30 s, and the one before them.
const LATENCIES = 31;
const latencies = [];

// A counter by the value of its only label.
function counts(metrics, name, label) {
  const all = [...sums(metrics, name, label)].map(([value, count]) => `${value} ${number(count)}`);
  return all.sort().join(", ") || "none";
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

function controlPlane({ server, connected, version, rejected }) {
  if (!connected) return [`${server}: not connected`, true];
  if (rejected) return [`${server}: version ${rejected.version} was rejected`, true];
  return [`${server}: version ${version ?? "none"}`, version === null];
}

export function showStore(status, metrics) {
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
  facts.push(["Decided by lists, blocks and limits of 0", counts(metrics, "fleetlimit_server_overruled_total", "by")]);
  const errors = counts(metrics, "fleetlimit_server_grpc_errors_total", "code");
  facts.push(["gRPC requests that failed", errors, errors !== "none"]);
  facts.push(["Configuration", ...configuration(status, metrics)]);
  if (status.control_plane) facts.push(["Control plane", ...controlPlane(status.control_plane)]);
  $("server").replaceChildren(...facts.map(([name, value, isBad]) => {
    const pair = element("div");
    pair.append(element("dt", name), element("dd", value, isBad ? "bad" : undefined));
    return pair;
  }));
}
