// Draws the last 15 minutes. The server keeps them, so they are there for somebody who opens the page afterwards.

import { $, clock, element, precise, setText, span } from "./dom.js";

const SECONDS = 900;
// The size of a plot, in its own units. It is stretched to its place.
const [WIDTH, HEIGHT] = [900, 100];

const perSecond = (field) => (sample) => sample[field] / sample.seconds;
const milliseconds = (field) => (sample) => (sample[field] === null ? null : 1000 * sample[field]);

// A line that is optional is only drawn if it has a value other than 0.
const CHARTS = [
  { name: "Admitted per second", unit: "/s", lines: [{ name: "admitted", value: perSecond("allowed"), color: "blue" }] },
  {
    name: "Denied per second", unit: "/s", lines: [
      { name: "denied", value: perSecond("denied"), color: "red" },
      { name: "would be denied (shadow)", value: perSecond("would_be_denied"), color: "violet", optional: true },
    ],
  },
  {
    name: "Without Redis per second", unit: "/s", lines: [
      { name: "decided locally", value: perSecond("local"), color: "amber" },
      { name: "allowed without a limit", value: perSecond("unchecked"), color: "violet", optional: true },
      { name: "failed", value: perSecond("failed"), color: "red", optional: true },
    ],
  },
  {
    name: "Time of a check", unit: " ms", lines: [
      { name: "99% took at most", value: milliseconds("p99"), color: "blue" },
      { name: "half took at most", value: milliseconds("p50"), color: "amber" },
    ],
  },
];

let history = null;
let now = 0;
let started = 0;
// The share of the width where the pointer is.
let pointer = null;

function shape(name, attributes) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [attribute, value] of Object.entries(attributes)) made.setAttribute(attribute, value);
  return made;
}

// A number of one or two digits, not below a value.
function round(value) {
  if (value <= 0) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 1.5, 2, 3, 5, 7.5, 10].map((factor) => factor * power).find((bound) => bound >= value * (1 - 1e-9));
}

const x = (time) => WIDTH * Math.max(0, 1 - (now - time) / SECONDS);
const y = (value, top) => HEIGHT * (1 - value / top);

// The parts of a line without gaps: where nothing was measured, nothing is drawn.
function parts(samples, value) {
  const all = [];
  let before = null;
  for (const sample of samples) {
    const found = value(sample);
    if (found !== null) {
      const start = sample.time - sample.seconds;
      if (before === null || start - before > 1) all.push([[start, found]]);
      all.at(-1).push([sample.time, found]);
      before = sample.time;
    }
  }
  return all;
}

function paths({ value, color }, index, samples, top) {
  const style = index > 0 ? `${color} dashed` : color;
  return parts(samples, value).flatMap((points) => {
    const line = points.map(([time, value]) => `${x(time).toFixed(1)},${y(value, top).toFixed(1)}`).join(" ");
    const [first, last] = [points[0][0], points.at(-1)[0]].map((time) => x(time).toFixed(1));
    const area = shape("polygon", { points: `${first},${HEIGHT} ${line} ${last},${HEIGHT}`, class: `area ${color}` });
    return [area, shape("polyline", { points: line, class: `line ${style}` })];
  });
}

function swatch({ color }, index) {
  const svg = shape("svg", { class: "swatch", viewBox: "0 0 24 12", "aria-hidden": "true" });
  svg.append(shape("line", { x1: 0, y1: 6, x2: 24, y2: 6, class: `line ${index > 0 ? `${color} dashed` : color}` }));
  return svg;
}

function draw(chart, samples, shown) {
  const drawn = chart.lines.map((line, index) => ({ line, index }))
    .filter(({ line }) => !line.optional || samples.some((sample) => line.value(sample) > 0));
  const values = drawn.flatMap(({ line }) => samples.map(line.value)).filter((value) => value !== null);
  const top = round(Math.max(0, ...values));
  const shapes = [HEIGHT / 2, 0, HEIGHT].map((y) => shape("line", { x1: 0, y1: y, x2: WIDTH, y2: y, class: "grid" }));
  // Before the first sample nothing is known.
  const first = samples.length ? samples[0].time - samples[0].seconds : now;
  shapes.push(shape("rect", { x: 0, y: 0, width: Math.max(0, x(first)), height: HEIGHT, class: "unknown" }));
  for (const { line, index } of drawn.toReversed()) shapes.push(...paths(line, index, samples, top));
  if (pointer !== null && shown) {
    shapes.push(shape("line", { x1: x(shown.time), y1: 0, x2: x(shown.time), y2: HEIGHT, class: "cursor" }));
  }
  chart.svg.replaceChildren(...shapes);
  setText(chart.top, `${precise(top)}${chart.unit}`);
  const texts = drawn.map(({ line }) => {
    const value = shown ? line.value(shown) : null;
    return [line.name, value === null ? "–" : `${precise(value)}${chart.unit}`];
  });
  chart.legend.replaceChildren(...drawn.map(({ line, index }, position) => {
    const item = element("li");
    item.append(swatch(line, index), " ", element("b", texts[position][1]), " ", element("span", line.name, "small"));
    return item;
  }));
  const most = values.length ? `at most ${precise(Math.max(...values))}${chart.unit} in 15 minutes` : "no values";
  chart.svg.setAttribute("aria-label", `${chart.name}: ${texts.map((text) => text.join(" ")).join(", ")}; ${most}`);
}

function redraw() {
  if (!history) return;
  const samples = history.samples.filter((sample) => sample.time > now - SECONDS);
  const time = pointer === null ? now : now - SECONDS * (1 - pointer);
  const shown = pointer === null
    ? samples.at(-1)
    : samples.find((sample) => sample.time >= time && sample.time - sample.seconds <= time) ?? null;
  for (const chart of CHARTS) draw(chart, samples, shown);
  const age = now - started;
  const start = age < SECONDS ? ` The process started ${span(age)} ago.` : "";
  setText($("history-note"), pointer !== null
    ? `At ${clock(time)}, ${span(now - time)} ago.${shown ? "" : " Nothing is known of this time."}`
    : `All policies together, in steps of ${history.seconds} s.${start}`);
}

function make(chart) {
  const figure = element("figure");
  const plot = element("div", undefined, "plot");
  chart.svg = shape("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img" });
  chart.top = element("span", "", "top");
  chart.legend = element("ul", undefined, "legend");
  plot.append(chart.svg, chart.top);
  plot.addEventListener("pointermove", (event) => {
    const { left, width } = plot.getBoundingClientRect();
    pointer = Math.min(1, Math.max(0, (event.clientX - left) / width));
    redraw();
  });
  for (const end of ["pointerleave", "pointercancel"]) {
    plot.addEventListener(end, () => {
      pointer = null;
      redraw();
    });
  }
  const axis = element("div", undefined, "axis");
  axis.append(element("span", "15 min ago"), element("span", "now"));
  figure.append(element("figcaption", chart.name), chart.legend, plot, axis);
  return figure;
}

export function showHistory(status, answer) {
  if (!CHARTS[0].svg) $("charts").append(...CHARTS.map(make));
  ({ time: now, started } = status);
  history = answer ?? history;
  redraw();
}
