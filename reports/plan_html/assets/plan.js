"use strict";
// The what-if charts. The formulas are those of the planner's curves, evaluated on the coefficients
// in #curves: bytes and FLOPs of the feed-forward block, links at their datasheet rate.

document.documentElement.classList.add("js");
const byId = (id) => document.getElementById(id);
const on = (target, type, act) => target.addEventListener(type, act);
const data = JSON.parse(byId("curves").textContent);
const SERIES = [
  ["compute", "compute", "compute"],
  ["dp", "dp", "DP"],
  ["fsdp", "fsdp", "FSDP"],
  ["tp", "tp", "TP over all"],
  ["fsdp+tp", "mixed", "FSDP + TP"],
];

on(byId("theme"), "click", () => {
  const root = document.documentElement;
  const system = matchMedia("(prefers-color-scheme: dark)").matches;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : system;
  root.dataset.theme = dark ? "light" : "dark";
});

on(byId("save"), "click", () => {
  const blob = new Blob([byId("document").textContent], { type: "application/json" });
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = "meshscope-plan.json";
  link.click();
  URL.revokeObjectURL(link.href);
});

// ---------------------------------------------------------------- formulas

// Bytes per second of the weights' traffic when tensor parallelism of degree `tensor` shards them.
function dataRate(machine, chips, tensor) {
  if (machine.axes) {
    const beside = tensor > 1 ? machine.axes - 1 : machine.axes;
    return tensor * machine.link * Math.max(1, beside);
  }
  const inside = tensor * machine.link;
  if (chips <= machine.node) return inside;
  return Math.min(inside, Math.max(tensor, machine.node) * machine.network);
}

function tensorRate(machine, tensor) {
  if (machine.axes || tensor <= machine.node) return machine.link;
  return Math.min(machine.link, machine.node * machine.network);
}

// Seconds of a step for every strategy: compute, communication, the larger of both in each phase.
function times(model, machine, at) {
  const { batch: b, chips: n, tensor: y } = at;
  const [d, f] = [model.hidden, model.ffn];
  const stored = f * model.sparsity; // what data parallelism moves, be it used or not
  const math = (4 * b * d * f) / (n * machine.flops * at.efficiency);
  const whole = dataRate(machine, n, 1);
  const lone = (4 * b * d) / tensorRate(machine, n);
  const weights = (4 * d * stored) / dataRate(machine, n, y);
  const activations = (4 * b * d * y) / n / tensorRate(machine, y);
  const mixed = y === 1 ? (4 * d * stored) / whole : Math.max(activations, weights);
  const phases = {
    dp: [0, (8 * d * stored) / whole],
    fsdp: [(4 * d * stored) / whole, (8 * d * stored) / whole],
    tp: [lone, lone],
    "fsdp+tp": [mixed, 2 * mixed],
  };
  const found = {};
  for (const [name, [forward, backward]] of Object.entries(phases)) {
    found[name] = {
      math_s: 3 * math * model.layers,
      comm_s: (forward + backward) * model.layers,
      step_s: (Math.max(math, forward) + Math.max(2 * math, backward)) * model.layers,
    };
  }
  return found;
}

// ---------------------------------------------------------------- words

function seconds(value) {
  for (const [scale, unit] of [[1, "s"], [1e-3, "ms"], [1e-6, "us"]]) {
    if (value >= scale) return `${Number((value / scale).toPrecision(3))} ${unit}`;
  }
  return `${Number((value / 1e-9).toPrecision(3))} ns`;
}

function count(value) {
  for (const [scale, unit] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
    if (value >= scale) return `${Number((value / scale).toPrecision(3))}${unit}`;
  }
  return String(Math.round(value));
}

// ---------------------------------------------------------------- state

const controls = Object.fromEntries(
  ["model", "machine", "batch", "chips", "tensor", "efficiency"].map((id) => [id, byId(`c-${id}`)]),
);
const degrees = JSON.parse(controls.tensor.dataset.list);

function state() {
  return {
    model: data.models[controls.model.selectedIndex],
    machine: data.machines[controls.machine.selectedIndex],
    batch: 2 ** Number(controls.batch.value),
    chips: Math.max(1, Math.round(2 ** Number(controls.chips.value))),
    tensor: degrees[Number(controls.tensor.value)],
    efficiency: Number(controls.efficiency.value) / 100,
  };
}

// ---------------------------------------------------------------- drawing

const SVG = "http://www.w3.org/2000/svg";
const [WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM] = [560, 300, 56, 84, 10, 36];

function add(parent, tag, attributes, text) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (text !== undefined) made.textContent = text;
  parent.append(made);
  return made;
}

const value = (row, name) => (name === "compute" ? row.dp.math_s : row[name].comm_s);

function draw(svg, points, here, axis) {
  for (const old of svg.querySelectorAll(":scope > :not(title):not(desc)")) old.remove();
  const xs = points.map((p) => Math.log2(p.x));
  const ys = points.flatMap((p) => SERIES.map(([name]) => Math.log10(value(p.row, name))));
  const [x0, x1] = [xs[0], xs[xs.length - 1]];
  const [y0, y1] = [Math.floor(Math.min(...ys)), Math.ceil(Math.max(...ys))];
  const px = (x) => LEFT + ((x - x0) / (x1 - x0)) * (WIDTH - LEFT - RIGHT);
  const py = (y) => HEIGHT - BOTTOM - ((y - y0) / (y1 - y0 || 1)) * (HEIGHT - TOP - BOTTOM);
  for (let y = y0; y <= y1; y += 1) {
    add(svg, "line", { class: "grid", x1: LEFT, x2: WIDTH - RIGHT, y1: py(y), y2: py(y) });
    add(svg, "text", { x: LEFT - 6, y: py(y) + 4, "text-anchor": "end" }, seconds(10 ** y));
  }
  for (let i = 0; i < points.length; i += 2) {
    add(svg, "text", { x: px(xs[i]), y: HEIGHT - BOTTOM + 16, "text-anchor": "middle" }, count(points[i].x));
  }
  add(svg, "text", { x: (LEFT + WIDTH - RIGHT) / 2, y: HEIGHT - 4, "text-anchor": "middle" }, axis);
  const at = px(Math.log2(here));
  add(svg, "line", { class: "here", x1: at, x2: at, y1: TOP, y2: HEIGHT - BOTTOM });
  const ends = SERIES.map(([name, style, label]) => {
    const line = points.map((p, i) => `${px(xs[i]).toFixed(1)} ${py(Math.log10(value(p.row, name))).toFixed(1)}`);
    add(svg, "path", { class: `s-${style}`, d: `M${line.join("L")}` });
    return [py(Math.log10(value(points[points.length - 1].row, name))), label];
  });
  ends.sort((a, b) => a[0] - b[0]);
  let last = -Infinity;
  for (const [y, label] of ends) {
    last = Math.max(y, last + 13);
    add(svg, "text", { class: "end", x: WIDTH - RIGHT + 6, y: last + 4 }, label);
  }
}

function cell(row, text, exact) {
  const made = row.insertCell();
  made.textContent = text;
  if (exact !== undefined) {
    made.className = "num";
    made.dataset.s = exact;
  }
}

function fill(details, points) {
  const body = details.querySelector("tbody");
  body.replaceChildren();
  for (const point of points) {
    const row = body.insertRow();
    row.dataset.x = point.x;
    cell(row, count(point.x));
    for (const [name] of SERIES) cell(row, seconds(value(point.row, name)), value(point.row, name));
  }
}

function pointTable(now, at) {
  const body = byId("at-point").querySelector("tbody");
  body.replaceChildren();
  for (const [name, , label] of SERIES.slice(1)) {
    const made = at[name];
    const row = body.insertRow();
    row.dataset.strategy = name;
    cell(row, name === "fsdp+tp" ? `${label}, Y = ${now.tensor}` : label);
    for (const key of ["math_s", "comm_s", "step_s"]) cell(row, seconds(made[key]), made[key]);
    cell(row, made.step_s > made.math_s * (1 + 1e-9) ? "communication" : "compute");
  }
}

// Doublings of x around where the sliders stand.
function sweep(now, key, from, to) {
  const points = [];
  for (let step = from; step <= to; step += 1) {
    const x = now[key] * 2 ** step;
    if (key === "chips" && (x < 1 || x !== Math.round(x))) continue;
    if (key === "chips" && x < now.tensor) continue;
    points.push({ x, row: times(now.model, now.machine, { ...now, [key]: x }) });
  }
  return points;
}

function update() {
  const now = state();
  byId("o-batch").textContent = `${Math.round(now.batch).toLocaleString("en")} tokens`;
  byId("o-chips").textContent = now.chips.toLocaleString("en");
  byId("o-tensor").textContent = now.tensor;
  byId("o-efficiency").textContent = `${controls.efficiency.value} %`;
  pointTable(now, times(now.model, now.machine, now));
  for (const [key, axis] of [["batch", "tokens of a batch"], ["chips", "chips"]]) {
    const points = sweep(now, key, -6, 6);
    if (points.length > 1) draw(byId(`chart-${key}`), points, now[key], axis);
    fill(byId(`table-${key}`), points);
  }
  byId("what-if").dataset.ready = "1";
}

for (const control of Object.values(controls)) on(control, "input", update);
update();
