// Elements, numbers and times as the page shows them. Text is never read as HTML: keys come from clients.

export const $ = (id) => document.getElementById(id);

export function element(name, text, className) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  if (className) made.className = className;
  return made;
}

// Sets a text only if it is another one, so that a selection stays, and a screen reader does not repeat it.
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

export const number = (value) => value.toLocaleString("en", { maximumFractionDigits: 1 });

// Three digits, so that small values do not become 0.
export const precise = (value) => value.toLocaleString("en", { maximumSignificantDigits: 3 });

export function clock(seconds) {
  const date = new Date(1000 * seconds);
  const time = date.toLocaleTimeString("en-GB");
  const isToday = date.toDateString() === new Date().toDateString();
  return isToday ? time : `${date.toLocaleDateString("en-GB", { day: "numeric", month: "short" })}, ${time}`;
}

export function zone() {
  const minutes = -new Date().getTimezoneOffset();
  const pad = (value) => String(value).padStart(2, "0");
  const size = Math.abs(minutes);
  return minutes ? `UTC${minutes < 0 ? "−" : "+"}${pad(Math.floor(size / 60))}:${pad(size % 60)}` : "UTC";
}

// The two largest units of a time in seconds.
export function span(seconds) {
  const units = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];
  let rest = Math.max(0, Math.round(seconds));
  const first = units.findIndex(([, size]) => rest >= size);
  if (first < 0) return "0 s";
  const parts = units.slice(first, first + 2).map(([unit, size]) => {
    const count = Math.floor(rest / size);
    rest -= count * size;
    return [count, unit];
  });
  return parts.filter(([count]) => count > 0).map(([count, unit]) => `${count} ${unit}`).join(" ");
}

// Shows a row for each item. The row of an item that was shown before stays the same element: a button is not replaced
// while somebody presses it.
export function showRows(body, items, { id, make, update }) {
  const focused = document.activeElement;
  const old = new Map([...body.children].map((row) => [row.dataset.id, row]));
  items.forEach((item, index) => {
    const name = id(item);
    let row = old.get(name);
    if (!row) {
      row = make(item);
      row.dataset.id = name;
      row.setAttribute("role", "row");
    }
    old.delete(name);
    update(row, item);
    if (body.children[index] !== row) body.insertBefore(row, body.children[index] ?? null);
  });
  for (const row of old.values()) row.remove();
  // A row that has moved has lost it.
  if (focused !== document.activeElement && focused.isConnected) focused.focus();
}

export function makeCell(label, className) {
  const cell = element("td", "", className);
  cell.setAttribute("role", "cell");
  if (label) cell.dataset.label = label;
  return cell;
}
