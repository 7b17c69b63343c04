"use strict";
// Progressive parts of the report: theme, saving the document, sortable tables, the timeline.
// The page is complete without this script. Foreign text only ever goes through textContent or
// canvas text. Times are nanoseconds from the start of a rank's first step.

document.documentElement.classList.add("js");
const byId = (id) => document.getElementById(id);
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const system = matchMedia("(prefers-color-scheme: dark)");
const on = (target, type, act, options) => target.addEventListener(type, act, options);
let repaint = () => {};

// ---------------------------------------------------------------- page

on(byId("theme"), "click", () => {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : system.matches;
  root.dataset.theme = dark ? "light" : "dark";
  repaint();
});
on(system, "change", () => repaint());

on(byId("save"), "click", () => {
  const blob = new Blob([byId("document").textContent], { type: "application/json" });
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = "meshscope.json";
  link.click();
  URL.revokeObjectURL(link.href);
});

on(window, "beforeprint", () => {
  for (const details of document.querySelectorAll("details")) details.open = true;
});

function sortBy(th) {
  const column = [...th.parentNode.children].indexOf(th);
  const down = th.getAttribute("aria-sort") !== "descending";
  for (const other of th.parentNode.children) other.removeAttribute("aria-sort");
  th.setAttribute("aria-sort", down ? "descending" : "ascending");
  const body = th.closest("table").tBodies[0];
  const value = (row) => row.cells[column].textContent.trim();
  const rows = [...body.rows].sort((a, b) => {
    const [x, y] = [value(a), value(b)];
    const [m, n] = [parseFloat(x.replace(/[,<]/g, "")), parseFloat(y.replace(/[,<]/g, ""))];
    const order = Number.isNaN(m) || Number.isNaN(n) ? x.localeCompare(y) : m - n;
    return down ? -order : order;
  });
  body.append(...rows);
}
for (const th of document.querySelectorAll("#ranks th, #steps th")) {
  th.tabIndex = 0;
  on(th, "click", () => sortBy(th));
  on(th, "keydown", (event) => {
    if (event.key === "Enter") sortBy(th);
  });
}

// ---------------------------------------------------------------- timeline data

async function unpack(text) {
  const bytes = Uint8Array.from(atob(text), (char) => char.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).json();
}

// Slices of a lane become typed arrays; slices that overlap on one stream are stacked by depth.
function buildLanes(data) {
  const lanes = [];
  let at = 0;
  let comm = 0;
  data.lanes.forEach(([rank, device, label, summary], index) => {
    const count = data.count[index];
    const lane = { rank, device, label, summary, depth: 1, longest: 0 };
    lane.start = new Float64Array(count);
    lane.dur = new Float64Array(count);
    lane.kind = new Uint32Array(count);
    lane.row = new Uint8Array(count);
    lane.exposed = new Float64Array(count).fill(NaN);
    const open = [];
    let start = 0;
    for (let i = 0; i < count; i++, at++) {
      start += data.start[at];
      lane.start[i] = start;
      lane.dur[i] = data.dur[at];
      lane.kind[i] = data.kind[at];
      if (data.kinds[data.kind[at]][1] === "comm") lane.exposed[i] = data.exposed[comm++];
      let row = open.findIndex((end) => end <= start);
      if (row < 0) row = open.length < 8 ? open.length : 7;
      open[row] = start + data.dur[at];
      lane.row[i] = row;
      lane.longest = Math.max(lane.longest, data.dur[at]);
    }
    lane.depth = Math.max(open.length, 1);
    lanes.push(lane);
  });
  return lanes;
}

// First slice that may reach past `time`: none that starts before it minus the longest does.
function firstFrom(lane, time) {
  let low = 0;
  let high = lane.start.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (lane.start[middle] < time - lane.longest) low = middle + 1;
    else high = middle;
  }
  return low;
}

function time(ns) {
  for (const [scale, unit] of [[1e9, "s"], [1e6, "ms"], [1e3, "us"]]) {
    if (Math.abs(ns) >= scale) return `${(ns / scale).toPrecision(4)} ${unit}`;
  }
  return `${Math.round(ns)} ns`;
}

// ---------------------------------------------------------------- timeline view

const GUTTER = 132;
const RULER = 22;
const ROW = 17;
const GAP = 5;
const MIN_SPAN = 200;
const MAX_HEIGHT = 558;
const LIGHT = ["dp_replicate", "cp", "ep"]; // colours that carry dark text in both themes
const PALE = ["compute", "idle", "memcpy", "unknown"]; // colours that follow the theme
const FONT = "10.5px ui-monospace, Menlo, Consolas, monospace"; // one width: labels fit by count

function startTimeline(data) {
  const canvas = byId("tl-canvas");
  const scroll = byId("tl-scroll");
  const status = byId("tl-status");
  const tip = document.createElement("div");
  const pen = canvas.getContext("2d");
  const lanes = buildLanes(data);
  const ranks = [...new Set(lanes.map((lane) => lane.rank))];
  const ends = data.windows.map((w) => w[5]);
  const bounds = [Math.min(...data.windows.map((w) => w[4])), Math.max(...ends)];
  const view = { rank: "", from: 0, to: 1, shown: [], height: 0, mark: null, picked: null };
  let matches = null;
  let colours = {};
  let letter = 6;
  tip.id = "tl-tip";
  tip.hidden = true;
  document.body.append(tip);

  function lookUpColours() {
    colours = {};
    for (const name of ["ink", "muted", "line", "panel", "accent"]) colours[name] = css(`--${name}`);
    colours.kinds = data.kinds.map((kind) => css(`--k-${kind[5]}`));
    pen.font = FONT;
    letter = pen.measureText("m").width;
    const tile = document.createElement("canvas");
    tile.width = tile.height = 6;
    const brush = tile.getContext("2d");
    brush.strokeStyle = css("--hatch");
    brush.moveTo(0, 6);
    brush.lineTo(6, 0);
    brush.stroke();
    colours.hatch = pen.createPattern(tile, "repeat");
  }

  function option(select, value, label) {
    const node = document.createElement("option");
    node.value = value;
    node.textContent = label;
    select.append(node);
  }

  function choose(rank) {
    view.rank = String(rank);
    view.shown = lanes.filter((lane) => rank === "all" || lane.rank === Number(rank));
    let y = RULER;
    for (const lane of view.shown) {
      lane.y = y;
      lane.tall = lane.depth * ROW + GAP;
      y += lane.tall;
    }
    view.height = y;
    byId("tl-rank").value = view.rank;
    const steps = byId("tl-step");
    steps.replaceChildren();
    option(steps, "", "all shown");
    for (const w of windowsOf(rank)) option(steps, String(w[2]), w[3]);
    resize();
  }

  // Windows to choose from: those of one rank, on its first device.
  function windowsOf(rank) {
    const mine = data.windows.filter((w) => w[0] === (rank === "all" ? ranks[0] : Number(rank)));
    return mine.filter((w) => w[1] === mine[0][1]);
  }

  function fitStep(step) {
    const all = data.windows.filter((w) => view.rank === "all" || w[0] === Number(view.rank));
    const chosen = step === "" ? all : all.filter((w) => w[2] === Number(step));
    if (!chosen.length) return;
    const from = Math.min(...chosen.map((w) => w[4]));
    const to = Math.max(...chosen.map((w) => w[5]));
    byId("tl-step").value = step;
    moveTo(from - (to - from) * 0.01, to + (to - from) * 0.01);
  }

  function moveTo(from, to) {
    const room = (bounds[1] - bounds[0]) * 0.05;
    const span = Math.min(Math.max(to - from, MIN_SPAN), bounds[1] - bounds[0] + 2 * room);
    const start = Math.min(Math.max((from + to - span) / 2, bounds[0] - room), bounds[1] + room - span);
    view.from = start;
    view.to = start + span;
    draw();
  }

  function zoom(factor, pivot = (view.from + view.to) / 2) {
    moveTo(pivot + (view.from - pivot) * factor, pivot + (view.to - pivot) * factor);
  }

  function pan(share) {
    const by = (view.to - view.from) * share;
    moveTo(view.from + by, view.to + by);
  }

  function resize() {
    const width = scroll.clientWidth;
    const height = Math.min(view.height + 2, MAX_HEIGHT);
    const ratio = devicePixelRatio || 1;
    canvas.width = width * ratio;
    canvas.height = height * ratio;
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
    byId("tl-space").style.height = `${Math.max(view.height + 2 - height, 0)}px`;
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    draw();
  }

  const plot = () => canvas.clientWidth - GUTTER;
  const toX = (ns) => GUTTER + ((ns - view.from) / (view.to - view.from)) * plot();
  const toTime = (x) => view.from + ((x - GUTTER) / plot()) * (view.to - view.from);

  function draw() {
    const [width, height] = [canvas.clientWidth, canvas.clientHeight];
    pen.clearRect(0, 0, width, height);
    pen.font = FONT;
    pen.textBaseline = "middle";
    pen.save();
    pen.beginPath();
    pen.rect(GUTTER, 0, width - GUTTER, height);
    pen.clip();
    for (const lane of view.shown) {
      const y = lane.y - scroll.scrollTop;
      if (y > height || y + lane.tall < 0) continue;
      drawBorders(lane, y);
      drawLane(lane, y, width);
    }
    if (view.mark) drawMark(height);
    pen.restore();
    drawLabels(width, height);
    drawRuler(width);
    publish();
  }

  function drawLane(lane, y, width) {
    const painted = new Float64Array(lane.depth).fill(-1);
    const scale = plot() / (view.to - view.from);
    for (let i = firstFrom(lane, view.from); i < lane.start.length && lane.start[i] < view.to; i++) {
      const right = toX(lane.start[i] + lane.dur[i]);
      // Slices narrower than what is already painted in this pixel cannot be seen.
      if (right < GUTTER || right <= painted[lane.row[i]]) continue;
      const left = Math.max(toX(lane.start[i]), GUTTER, painted[lane.row[i]]);
      const wide = Math.max(right - left, 0.8);
      painted[lane.row[i]] = left + wide < width ? Math.floor(left + wide) : width;
      drawSlice(lane, i, left, y + lane.row[i] * ROW, Math.min(wide, width), lane.dur[i] * scale);
    }
  }

  function drawSlice(lane, i, x, y, wide, whole) {
    const kind = data.kinds[lane.kind[i]];
    pen.globalAlpha = matches && !matches.has(lane.kind[i]) ? 0.15 : 1;
    pen.fillStyle = colours.kinds[lane.kind[i]];
    const seen = wide > 3 ? wide - 0.8 : wide; // a hair between neighbours of one colour
    pen.fillRect(x, y, seen, ROW - 1);
    if (kind[1] === "idle" && wide > 3) {
      pen.fillStyle = colours.hatch;
      pen.fillRect(x, y, seen, ROW - 1);
    }
    if (kind[6]) {
      pen.fillStyle = css(`--k-${kind[6]}`);
      pen.fillRect(x, y + ROW - 5, seen, 4);
    }
    if (whole > 26) {
      const label = kind[3] || data.names[kind[0]];
      pen.fillStyle = LIGHT.includes(kind[5]) ? "#1b2027" : PALE.includes(kind[5]) ? colours.ink : "#fff";
      pen.fillText(label.slice(0, Math.floor((wide - 4) / letter)), x + 3, y + ROW / 2);
    }
    if (view.picked && view.picked.lane === lane && view.picked.index === i) {
      pen.strokeStyle = colours.ink;
      pen.lineWidth = 2;
      pen.strokeRect(x + 1, y + 1, Math.max(wide - 2, 1), ROW - 3);
    }
    pen.globalAlpha = 1;
  }

  function drawBorders(lane, y) {
    pen.fillStyle = colours.muted;
    for (const w of data.windows) {
      if (w[0] !== lane.rank || w[1] !== lane.device) continue;
      for (const edge of [w[4], w[5]]) pen.fillRect(Math.round(toX(edge)), y - GAP, 1, lane.tall);
    }
  }

  function drawMark(height) {
    const left = toX(view.mark.start);
    const wide = Math.max(toX(view.mark.start + view.mark.dur) - left, 2);
    pen.strokeStyle = pen.fillStyle = colours.accent;
    pen.lineWidth = 1.5;
    pen.strokeRect(left, RULER, wide, height);
    pen.globalAlpha = 0.16;
    pen.fillRect(left, RULER, wide, height);
    pen.globalAlpha = 1;
  }

  function drawLabels(width, height) {
    pen.fillStyle = colours.panel;
    pen.fillRect(0, 0, GUTTER - 1, height);
    pen.textAlign = "right";
    let last = null;
    for (const lane of view.shown) {
      const y = lane.y - scroll.scrollTop;
      if (lane.rank !== last) {
        pen.fillStyle = colours.line;
        pen.fillRect(0, y - 3, width, 1);
      }
      pen.fillStyle = lane.summary ? colours.ink : colours.muted;
      const label = lane.summary ? `rank ${lane.rank} · ${lane.label}` : lane.label;
      pen.fillText(label.slice(0, 24), GUTTER - 8, y + ROW / 2);
      last = lane.rank;
    }
    pen.textAlign = "left";
  }

  function drawRuler(width) {
    pen.fillStyle = colours.panel;
    pen.fillRect(0, 0, width, RULER - 4);
    const span = view.to - view.from;
    const rough = span / Math.max(plot() / 110, 1);
    const power = 10 ** Math.floor(Math.log10(rough));
    const tick = power * [1, 2, 5, 10].find((n) => n * power >= rough);
    pen.fillStyle = colours.muted;
    const decimals = Math.max(0, 6 - Math.floor(Math.log10(tick)));
    for (let at = Math.ceil(view.from / tick) * tick; at < view.to; at += tick) {
      const x = toX(at);
      pen.fillRect(x, RULER - 8, 1, 4);
      pen.fillText(`${(at / 1e6).toFixed(decimals)} ms`, x + 3, 9);
    }
  }

  // What is shown, for tests and for scripts that read the page.
  function publish() {
    const { rank, from, to, mark } = view;
    const shown = { rank, from: Math.round(from), to: Math.round(to) };
    Object.assign(canvas.dataset, shown, { mark: mark ? `${mark.start},${mark.dur}` : "" });
  }

  function sliceAt(x, y) {
    const top = y + scroll.scrollTop;
    const lane = view.shown.find((l) => top >= l.y && top < l.y + l.depth * ROW);
    if (!lane || x < GUTTER) return null;
    const row = Math.floor((top - lane.y) / ROW);
    const slack = ((view.to - view.from) / plot()) * 2;
    const at = toTime(x);
    let best = null;
    let nearest = slack;
    for (let i = firstFrom(lane, at - slack); i < lane.start.length && lane.start[i] <= at + slack; i++) {
      const off = Math.max(lane.start[i] - at, at - lane.start[i] - lane.dur[i], 0);
      if (lane.row[i] === row && off <= nearest) [best, nearest] = [{ lane, index: i }, off];
    }
    return best;
  }

  function describe({ lane, index }) {
    const [name, work, axis, op, bytes] = data.kinds[lane.kind[index]];
    const exposed = lane.exposed[index];
    const lines = [
      data.names[name],
      `${time(lane.dur[index])} at ${(lane.start[index] / 1e6).toFixed(6)} ms, rank ${lane.rank}, ${lane.label}`,
    ];
    const facts = [work, axis, op, bytes].filter(Boolean).join(" · ");
    if (facts) lines.push(facts);
    if (!Number.isNaN(exposed)) lines.push(`exposed ${time(exposed)}`);
    return lines.join("\n");
  }

  function pick(found) {
    view.picked = found;
    status.textContent = found ? describe(found).replaceAll("\n", " — ") : "";
    draw();
  }

  function find(text) {
    const wanted = text.trim().toLowerCase();
    matches = null;
    if (wanted) {
      matches = new Set();
      data.kinds.forEach(([name, work, axis, op], index) => {
        const all = `${data.names[name]} ${work} ${axis || ""} ${op || ""}`.toLowerCase();
        if (all.includes(wanted)) matches.add(index);
      });
    }
    let [count, total] = [0, 0];
    for (const lane of view.shown.filter((l) => matches && !l.summary)) {
      lane.kind.forEach((kind, i) => {
        if (matches.has(kind)) [count, total] = [count + 1, total + lane.dur[i]];
      });
    }
    status.textContent = matches ? `${count.toLocaleString("en")} slices, ${time(total)} in all` : "";
    draw();
  }

  function nextMatch() {
    const after = view.picked ? view.picked.lane.start[view.picked.index] : view.from;
    let best = null;
    for (const lane of view.shown) {
      if (lane.summary) continue;
      const index = lane.start.findIndex((at, i) => at > after && matches.has(lane.kind[i]));
      if (index >= 0 && (!best || lane.start[index] < best.lane.start[best.index])) best = { lane, index };
    }
    if (best) jump(best.lane.start[best.index], best.lane.dur[best.index]);
    if (best) pick(best);
  }

  function jump(start, dur) {
    const around = Math.max(dur * 4, 20 * MIN_SPAN);
    moveTo(start - around, start + dur + around);
  }

  function showEvidence(button) {
    const [rank, start, dur] = ["rank", "start", "dur"].map((key) => Number(button.dataset[key]));
    const inside = (w) => w[0] === rank && start + dur >= w[4] && start <= w[5];
    byId("timeline").scrollIntoView({ block: "start" });
    const window = data.windows.find(inside);
    if (!window) {
      status.textContent = `Rank ${rank} at ${(start / 1e6).toFixed(3)} ms is in a step that the timeline leaves out.`;
      return;
    }
    if (view.rank !== "all" || view.height > MAX_HEIGHT) choose(rank);
    view.mark = { start, dur };
    view.picked = null;
    byId("tl-step").value = String(window[2]);
    status.textContent = `${time(dur)} at ${(start / 1e6).toFixed(3)} ms on rank ${rank}`;
    jump(start, dur);
    canvas.focus({ preventScroll: true });
  }

  const KEYS = {
    ArrowLeft: () => pan(-0.2),
    ArrowRight: () => pan(0.2),
    ArrowUp: () => { scroll.scrollTop -= 40; },
    ArrowDown: () => { scroll.scrollTop += 40; },
    "+": () => zoom(0.6),
    "=": () => zoom(0.6),
    "-": () => zoom(1 / 0.6),
    f: () => fitStep(byId("tl-step").value),
    n: () => matches && nextMatch(),
    Escape: () => { view.mark = null; pick(null); },
  };

  on(canvas, "keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || !KEYS[event.key]) return;
    event.preventDefault();
    KEYS[event.key]();
  });
  on(canvas, "wheel", (event) => {
    if (!event.ctrlKey && !event.metaKey && document.activeElement !== canvas) return;
    event.preventDefault();
    zoom(Math.exp(Math.max(-60, Math.min(60, event.deltaY)) / 180), toTime(event.offsetX));
  }, { passive: false });

  let drag = null;
  on(canvas, "pointerdown", (event) => {
    drag = { x: event.clientX, y: event.clientY, from: view.from, to: view.to, moved: false };
    canvas.setPointerCapture(event.pointerId);
  });
  on(canvas, "pointermove", (event) => {
    if (drag) {
      const by = ((drag.x - event.clientX) / plot()) * (drag.to - drag.from);
      drag.moved = drag.moved || Math.abs(drag.x - event.clientX) > 3;
      if (drag.moved) moveTo(drag.from + by, drag.to + by);
    }
    const found = drag && drag.moved ? null : sliceAt(event.offsetX, event.offsetY);
    tip.hidden = !found;
    if (!found) return;
    tip.textContent = describe(found);
    tip.style.left = `${Math.max(4, Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 4))}px`;
    tip.style.top = `${Math.min(event.clientY + 16, innerHeight - tip.offsetHeight - 4)}px`;
  });
  on(canvas, "pointerup", (event) => {
    if (drag && !drag.moved) pick(sliceAt(event.offsetX, event.offsetY));
    drag = null;
  });
  on(canvas, "pointerleave", () => { tip.hidden = true; });
  on(scroll, "scroll", draw);
  new ResizeObserver(resize).observe(scroll);
  on(byId("tl-rank"), "change", (event) => {
    choose(event.target.value);
    fitStep(byId("tl-step").value);
  });
  on(byId("tl-step"), "change", (event) => fitStep(event.target.value));
  on(byId("tl-find"), "input", (event) => find(event.target.value));
  on(byId("tl-find"), "keydown", (event) => {
    if (event.key === "Enter" && matches) nextMatch();
  });
  for (const [id, key] of [["tl-in", "+"], ["tl-out", "-"], ["tl-fit", "f"]]) on(byId(id), "click", KEYS[key]);
  for (const button of document.querySelectorAll("button.show")) {
    on(button, "click", () => showEvidence(button));
  }

  repaint = () => { lookUpColours(); draw(); };
  lookUpColours();
  if (ranks.length > 1) option(byId("tl-rank"), "all", "all shown");
  for (const rank of ranks) option(byId("tl-rank"), String(rank), String(rank));
  const [rank, step] = data.default || [ranks[0], ""];
  choose(ranks.length > 1 ? "all" : rank);
  if (view.height > MAX_HEIGHT) choose(rank);
  fitStep(String(step));
  canvas.dataset.ready = "true";
}

if (byId("slices")) {
  unpack(JSON.parse(byId("slices").textContent)).then(startTimeline, () => {
    byId("tl-status").textContent = "This browser cannot unpack the timeline (DecompressionStream is missing).";
  });
}
