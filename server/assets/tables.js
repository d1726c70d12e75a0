// The policies, and the keys that are denied most or blocked.

import { keyButtons } from "./actions.js";
import { $, clock, element, makeCell, number, setText, showRows, span } from "./dom.js";

// The names of the columns on a phone, which has less room.
const POLICY_COLUMNS = [
  "Quotas", "Admitted/s", "Denied/s", "Admitted", "Denied", "Would be denied", "Without Redis", "In flight",
];

let before = null;

// The checks of a policy that Redis did not decide.
function withoutRedis({ local, unchecked, failed }) {
  const parts = [[local, "local"], [unchecked, "not limited"], [failed, "failed"]];
  return parts.filter(([count]) => count > 0).map(([count, name]) => `${number(count)} ${name}`).join(", ") || "0";
}

export function showPolicies(status) {
  const seconds = before ? status.time - before.time : 0;
  const old = new Map((before?.policies ?? []).map((policy) => [policy.name, policy]));
  const rate = (policy, field) => {
    const earlier = old.get(policy.name);
    // A process that has restarted counts from 0.
    const more = earlier ? policy[field] - earlier[field] : -1;
    return more >= 0 && seconds > 0 ? number(more / seconds) : "–";
  };
  const some = (has) => status.policies.some(has);
  const isShown = [
    ...Array(6).fill(true), some((policy) => policy.is_shadow || policy.would_be_denied > 0),
    status.store === "redis", some((policy) => policy.held !== null),
  ];
  const heads = $("policies").closest("table").tHead.rows[0].cells;
  isShown.forEach((shown, index) => { heads[index].hidden = !shown; });
  showRows($("policies"), status.policies, {
    id: (policy) => policy.name,
    make: (policy) => {
      const row = element("tr");
      const name = element("th", policy.name);
      name.scope = "row";
      name.setAttribute("role", "rowheader");
      const cells = POLICY_COLUMNS.map((title, index) => (index ? makeCell(title, "number") : makeCell("", "wide")));
      row.append(name, ...cells);
      return row;
    },
    update: (row, policy) => {
      const quotas = policy.quotas.map(({ name, quota }) => `${name} ${quota}`).join(", ");
      const texts = [
        policy.name,
        (quotas || "in the requests") + (policy.is_shadow ? " (shadow)" : ""),
        rate(policy, "allowed"), rate(policy, "denied"), number(policy.allowed), number(policy.denied),
        number(policy.would_be_denied), withoutRedis(policy), policy.held === null ? "–" : number(policy.held),
      ];
      texts.forEach((text, index) => {
        setText(row.cells[index], text);
        row.cells[index].hidden = !isShown[index];
      });
      row.cells[5].classList.toggle("bad", policy.denied > (old.get(policy.name)?.denied ?? Infinity));
    },
  });
  setText($("since"), `Totals count since ${clock(status.started)}, when the process started: ${span(status.time - status.started)}.`);
  before = status;
}

// Shows keys with a number each, and the actions on them.
function showKeys(body, keys, title, count, actions) {
  showRows(body, keys, {
    id: ({ policy, key }) => JSON.stringify([policy, key]),
    make: () => {
      const row = element("tr");
      row.append(makeCell("", "wide"), makeCell("", "wide key"), makeCell(title, "number wide"), makeCell("", "wide actions"));
      return row;
    },
    update: (row, item) => {
      const { policy, key } = item;
      setText(row.cells[0], policy + (item.note ?? ""));
      setText(row.cells[1], key);
      setText(row.cells[2], number(item[count]));
      const names = actions(item).join(" ");
      if (row.dataset.actions !== names) {
        row.dataset.actions = names;
        row.cells[3].replaceChildren(keyButtons(names.split(" "), { policy, key }));
      }
    },
  });
  body.closest("table").hidden = keys.length === 0;
}

export function showDenied({ denied, blocked, policies }) {
  setText($("denied-note"), denied.keys.length
    ? `In the last ${denied.seconds} seconds:`
    : `No key was denied in the last ${denied.seconds} seconds.`);
  const shadows = new Set(policies.filter((policy) => policy.is_shadow).map((policy) => policy.name));
  const keys = denied.keys.map((item) => ({ ...item, note: shadows.has(item.policy) ? " (shadow: let through)" : "" }));
  const isBlocked = ({ policy, key }) => blocked.some((block) => block.policy === policy && block.key === key);
  const actions = (item) => ["peek", "reset", isBlocked(item) ? "unblock" : "block"];
  showKeys($("denied"), keys, "Denials, about", "count", actions);
}

export function showBlocked({ blocked }) {
  setText($("blocked-note"), blocked.length ? "" : "No key is blocked.");
  showKeys($("blocked"), blocked, "Seconds left", "seconds", () => ["peek", "reset", "unblock"]);
}

// The policies of the form for any key.
export function showChoices({ policies }) {
  const select = $("key-policy");
  const names = policies.map((policy) => policy.name);
  if (JSON.stringify(names) === select.dataset.names) return;
  const chosen = select.value;
  select.dataset.names = JSON.stringify(names);
  select.replaceChildren(...names.map((name) => element("option", name)));
  if (names.includes(chosen)) select.value = chosen;
}
