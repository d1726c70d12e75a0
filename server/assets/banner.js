// Says whether limits are enforced, and by what. It follows from what was decided in the last seconds.

import { $, clock, number, setText, span } from "./dom.js";
import { samples, sum, sums } from "./metrics.js";

const REASONS = {
  timeout: "Redis does not reply in time",
  unavailable: "Redis cannot be reached",
  server: "Redis replies with errors",
  overloaded: "more checks arrive than Redis can decide in time",
};
// How many counts of failures are kept: one per second for 10 s, and the one before them.
const FAILURES = 11;
const failures = [];
let reason = null;

function show(title, text, numbers) {
  $("banner").hidden = !title;
  // The name of the tab, which is seen while another one is open.
  document.title = title ? `${title} – fleetlimit-server` : "fleetlimit-server";
  setText($("banner-title"), title);
  setText($("banner-text"), text);
  setText($("banner-numbers"), numbers);
}

// The most frequent reason of failures in the last seconds. Without any, that of the last ones.
function why(metrics) {
  const latest = sums(metrics, "fleetlimit_check_failures_total", "error_type");
  // A process that has restarted counts from 0.
  const isRestarted = [...latest].some(([type, count]) => count < (failures.at(-1)?.get(type) ?? 0));
  if (isRestarted) failures.length = 0;
  failures.push(latest);
  if (failures.length > FAILURES) failures.shift();
  const more = Object.keys(REASONS).map((type) => [type, (latest.get(type) ?? 0) - (failures[0].get(type) ?? 0)]);
  const [type, count] = more.sort(([, a], [, b]) => b - a)[0];
  if (count > 0) reason = REASONS[type];
  return reason ?? "Redis failed";
}

function breakers(metrics) {
  const open = [...sums(metrics, "fleetlimit_redis_breaker_open", "fleetlimit_server")].filter(([, count]) => count > 0);
  const servers = open.map(([server]) => server).join(", ");
  return servers ? ` The circuit breaker of ${servers} is open.` : "";
}

export function showBanner(status, metrics) {
  const because = why(metrics);
  const { degraded } = status;
  if (!degraded) {
    reason = null;
    return show("", "", "");
  }
  const { store, local, unchecked, failed, seconds } = degraded;
  const since = `since ${clock(degraded.since)} (${span(status.time - degraded.since)})`;
  const all = store + local + unchecked + failed;
  // Others are decided as always, such as those of blocked keys.
  const part = (count) => `${count === all ? "all" : `${number(count)} of`} ${number(all)} checks that needed Redis`;
  const numbers = [
    failed && `${part(failed)} failed`,
    unchecked && `${part(unchecked)} were allowed without a limit`,
    local && `${part(local)} were decided by this instance's share`,
  ].filter(Boolean).join(", ");
  const age = status.time - degraded.last;
  const end = age > 2 ? ` The last of these was ${span(age)} ago.` : "";
  const state = `In the last ${seconds} s, ${numbers}.${end}${breakers(metrics)}`;
  if (failed) {
    const title = failed === all ? "Checks fail: limits cannot be checked" : "Some checks fail";
    const text = `Gateways have received errors instead of decisions ${since}, because ${because} and the failure mode is closed.`;
    show(title, text, `${state} Whether these requests pass depends on the gateway.`);
  } else if (unchecked) {
    const title = unchecked === all ? "Limits are not enforced" : "Some limits are not enforced";
    const text = `Checks have been allowed whatever the limit is ${since}, because ${because} and the failure mode is open.`;
    show(title, text, state);
  } else if (local) {
    const share = samples(metrics, "fleetlimit_fleet_share");
    const size = share.length ? ` of each limit (${number(100 * sum(share))}%)` : "";
    const title = local === all ? "Limits are enforced locally" : "Some limits are enforced locally";
    show(title, `This instance has decided by its share${size} ${since}, because ${because}.`, state);
  } else {
    const text = `Redis did not decide the last check that needed it, at ${clock(degraded.last)}, ${span(age)} ago. ` +
      `This began at ${clock(degraded.since)}.`;
    show("The last checks were decided without Redis", text, `No check has needed Redis since.${breakers(metrics)}`);
  }
}

// The numbers below are old, for this reason.
export function showStale(reason, last) {
  show(reason.replace(/\.$/, ""), `The numbers below are those of ${clock(last)}.`, "");
}
