// What a person on call does about a key: look at it, reset it, block it, and end a block. What changes something is
// confirmed first. The answer, or the error, is in the same dialog.

import { post } from "./api.js";
import { $, clock, element, number, setText, span } from "./dom.js";

const ACTIONS = {
  peek: { label: "Peek", title: "State of a key" },
  reset: {
    label: "Reset", title: "Reset this key?", confirm: "Reset",
    text: () => `The key has all its permits again, ${scope}.`, done: () => "The key is reset.",
  },
  block: {
    label: "Block…", title: "Block this key?", confirm: "Block",
    text: () => `The key is denied ${scope}, also in shadow mode, until the time is over or somebody unblocks it.`,
    done: (seconds) => `The key is blocked until ${clock(Date.now() / 1000 + seconds)}, for ${span(seconds)}.`,
  },
  unblock: {
    label: "Unblock", title: "Unblock this key?", confirm: "Unblock",
    text: () => `The policy decides about the key again, ${scope}.`, done: () => "The key is not blocked.",
  },
};

let current = null;
let onDone = () => {};
let scope = "";

// The text of a key that is not UTF-8, or has control characters, has escapes. It would name another key.
const isEscaped = (key) => /\\(x[0-9a-f]{2}|[nrt])/.test(key);

function makeButton(name, press) {
  const button = element("button", ACTIONS[name].label);
  button.type = "button";
  button.dataset.action = name;
  button.addEventListener("click", press);
  return button;
}

// The buttons of a listed key.
export function keyButtons(names, target) {
  if (isEscaped(target.key)) return element("span", "Can only be named by its parts, with the API.", "small");
  const buttons = element("div", undefined, "buttons");
  buttons.append(...names.map((name) => {
    const button = makeButton(name, () => open(name, target));
    button.setAttribute("aria-label", `${ACTIONS[name].label} ${target.key} of ${target.policy}`);
    return button;
  }));
  return buttons;
}

function open(name, target) {
  const action = ACTIONS[name];
  current = { name, target };
  setText($("dialog-title"), action.title);
  $("dialog-key").replaceChildren(element("span", target.key, "key"), ` of the policy ${target.policy}`);
  setText($("dialog-text"), action.text?.() ?? "");
  $("dialog-text").hidden = !action.text;
  $("dialog-duration").hidden = name !== "block";
  $("dialog-confirm").hidden = !action.confirm;
  setText($("dialog-confirm"), action.confirm ?? "");
  $("dialog-confirm").className = name === "unblock" ? "" : "danger";
  $("dialog-confirm").disabled = false;
  setText($("dialog-close"), action.confirm ? "Cancel" : "Close");
  $("dialog-answer").replaceChildren();
  $("dialog").showModal();
  $("dialog-close").focus();
  if (!action.confirm) run();
}

async function run() {
  const started = current;
  const { name, target } = started;
  const seconds = Number($("duration").value);
  $("dialog-confirm").disabled = true;
  let answer;
  try {
    const result = await post(`api/${name}`, name === "block" ? { ...target, seconds } : target);
    answer = name === "peek" ? peeked(result) : [element("p", ACTIONS[name].done(seconds))];
    if (started === current) finish();
    onDone();
  } catch (error) {
    answer = [element("p", error.message, "bad")];
    $("dialog-confirm").disabled = false;
  }
  // Another one may be open by now.
  if (started === current) $("dialog-answer").replaceChildren(...answer);
}

function finish() {
  for (const id of ["dialog-confirm", "dialog-duration", "dialog-text"]) $(id).hidden = true;
  setText($("dialog-close"), "Close");
  $("dialog-close").focus();
}

// When permits of a quota are available again.
function refill({ limit, remaining, refill_after: next, reset_after: all }) {
  if (remaining >= limit) return "";
  if (all === undefined) return "A permit is available when it is given back.";
  const [first, last] = [next, all].map((seconds) => span(Math.ceil(seconds)));
  return first === last ? `All are available in ${last}.` : `The next one is available in ${first}, all in ${last}.`;
}

// The answer to a peek: what takes precedence, and what is left of each quota.
function peeked({ blocked, listed, quotas, source }) {
  const notes = [];
  if (listed === "deny") notes.push(element("p", "The key is on the deny list: it is always denied.", "bad"));
  if (listed === "allow") notes.push(element("p", "The key is on the allow list: it is always allowed."));
  if (blocked !== undefined) notes.push(element("p", `The key is blocked for another ${span(blocked)}.`, "bad"));
  if (source !== "store") notes.push(element("p", `Decided by: ${source}.`));
  const list = element("ul", undefined, "quotas");
  list.append(...quotas.map((quota) => {
    const { name, limit, remaining } = quota;
    const left = element("span", `${number(remaining)} of ${number(limit)} left.`, remaining === 0 ? "bad" : undefined);
    const item = element("li");
    item.append(element("strong", name), element("br"), left, " ", element("span", refill(quota)));
    return item;
  }));
  return [...notes, list];
}

// Sets what an action applies to: with the store in memory, to one instance.
export function setStore(store) {
  scope = store === "redis" ? "for all instances" : "for this instance";
}

// Prepares the dialog, and the form for a key that is not listed. `done` is called after each change.
export function initActions(done) {
  onDone = done;
  $("dialog-confirm").addEventListener("click", run);
  $("dialog-close").addEventListener("click", () => $("dialog").close());
  const target = () => ({ policy: $("key-policy").value, key: $("key-text").value });
  $("key-buttons").append(...Object.keys(ACTIONS).map((name) => makeButton(name, () => {
    if ($("key-text").reportValidity()) open(name, target());
  })));
  // Enter only looks.
  $("key-form").addEventListener("submit", (event) => {
    event.preventDefault();
    open("peek", target());
  });
}
