/* SPDX-License-Identifier: Apache-2.0
 *
 * panels.js - colours, tables and charts, and the start of it all. Every number is one that
 * hpreport computed (--json prints the same); here it is divided by steps and ranks and shown.
 */

/* In the order of `kind` in run.h. */
const KINDS = [
  {name: "unshard", light: "#d8932f", dark: "#d39a45", communicates: true},
  {name: "reduce", light: "#c05340", dark: "#cc6a58", communicates: true},
  {name: "replicate", light: "#8459a8", dark: "#a27fc4", communicates: true},
  {name: "wait for unshard", light: "#f6dcb1", dark: "#5c4522", waits: true},
  {name: "wait for reduce", light: "#f0c5bc", dark: "#5e322b", waits: true},
  {name: "wait for replicate", light: "#dccbea", dark: "#453458", waits: true},
  {name: "wait", light: "#dfe2e5", dark: "#3a4147", waits: true},
  {name: "forward", light: "#459a72", dark: "#4fa67e"},
  {name: "backward", light: "#33709f", dark: "#4d8cbd"},
  {name: "optimizer, gradients", light: "#7b8b98", dark: "#82919d"},
  {name: "checkpoint", light: "#97863f", dark: "#a89a58"},
  {name: "other", light: "#b4bbc1", dark: "#59626a"},
];
const COMM = ["unshard", "reduce", "replicate"];

function makePalette() {
  const isDark = matchMedia("screen and (prefers-color-scheme: dark)").matches;
  const css = getComputedStyle(document.documentElement), v = (name) => css.getPropertyValue(name).trim();
  return {
    kinds: KINDS.map((k) => isDark ? k.dark : k.light),
    onKinds: KINDS.map((k) => k.waits ? v("--text") : "#ffffff"),
    ranks: ["#33709f", "#d8932f", "#459a72", "#c05340", "#8459a8", "#7b8b98", "#3fa3a8", "#b0598f"],
    text: v("--text"), muted: v("--muted"), line: v("--line"), track: v("--track"), accent: v("--accent"),
    bad: v("--bad"), faint: isDark ? "#4b555d" : "#c3c9ce",
  };
}

/* Numbers are text too; what is null is left out. */
function element(tag, attributes, children = []) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  for (const child of children)
    if (child !== null && child !== undefined) made.append(child instanceof Node ? child : String(child));
  return made;
}

/* Columns are [title, is a number]; a cell is text or an element. */
function table(columns, rows, lastIsTotal = false) {
  const cell = (tag, i, content) => element(tag, columns[i][1] ? {class: "n"} : {}, [content]);
  const head = element("tr", {}, columns.map(([title], i) => cell("th", i, title)));
  const body = rows.map((row, k) => element("tr", lastIsTotal && k === rows.length - 1 ? {class: "total"} : {},
    row.map((content, i) => cell("td", i, content))));
  return element("table", {}, [element("thead", {}, [head]), element("tbody", {}, body)]);
}

/* Parts are [share of the whole width, colour]. */
function meter(parts) {
  const fills = parts.filter(([share]) => share > 0).map(([share, colour]) =>
    element("i", {style: `width:${(100 * share).toFixed(2)}%;background:${colour}`}));
  return element("div", {class: "meter"}, [element("div", {}, fills)]);
}
const METER = ["", false];
function place(id, ...children) { document.getElementById(id).replaceChildren(...children); }
const sum = (of) => COMM.reduce((total, kind) => total + of[kind], 0);
const share = (part, whole) => whole > 0 ? part / whole : 0;
const percent = (part, whole) => whole > 0 ? Math.round(100 * part / whole) + "%" : "–";
const ms = (value) => value === 0 ? "0" : timeText(value * 1e6);

/* How many steps of one rank the sums over training passes are. */
function parts(figures) {
  return Math.max(figures.passes.filter((p) => p.kind !== "evaluate").length, 1) * figures.run.traces.length;
}

function tile(value, label, mood = "") {
  return element("div", {class: `tile ${mood}`}, [element("b", {}, [value]), element("span", {}, [label])]);
}

function drawTiles(f) {
  const c = f.communication, peak = Math.max(...f.memory.ranks.map((r) => r.peak_bytes));
  const latest = f.skew.ranks.reduce((a, b) => share(b.last, b.collectives) > share(a.last, a.collectives) ? b : a);
  const tiles = [
    tile(f.steps.train ? ms(f.steps.median_ms) : "–", `a step, the median of ${f.steps.train}`),
    tile(sum(c.busy_ms) ? Math.round(c.hidden_percent) + "%" : "–", "of communication was hidden"),
    tile(bytesText(peak), f.memory.steady_bytes && f.memory.bound_bytes ? `peak of memory, of ${bytesText(f.memory.bound_bytes)} allowed` : "peak of what steps take"),
    tile(latest.last ? `rank ${latest.rank}` : "none", latest.last ? `came last in ${percent(latest.last, latest.collectives)} of its collectives` : "came last"),
    f.verdict ? tile(f.verdict.sound ? "sound" : "unsound", "said the verifier", f.verdict.sound ? "good" : "bad")
              : tile("–", "not verified"),
  ];
  place("tiles", ...tiles);
}

function drawAbout(f) {
  const v = f.verdict || {}, about = document.getElementById("about");
  const words = [about.textContent.split(" · ").pop(), `${f.run.ranks} ranks`, f.run.mesh ? `mesh ${f.run.mesh.join(" × ")}` : null,
                 v.mode, v.schedule ? `schedule ${v.schedule}` : null, v.mode ? `prefetch ${v.prefetch}` : null];
  about.textContent = words.filter((w) => w).join(" · ");
}

function drawLegend(data, palette) {
  const used = new Set(data.what.map((w) => w[4]));
  const items = KINDS.map((kind, i) => used.has(i) ? element("span", {}, [
    element("i", {class: "swatch", style: `background:${palette.kinds[i]}`}), kind.name]) : null);
  place("legend", ...items.filter((i) => i));
}

function drawExposed(f, palette) {
  const c = f.communication, n = parts(f), busy = sum(c.busy_ms), exposed = sum(c.exposed_ms);
  const most = Math.max(...COMM.map((k) => Math.max(c.busy_ms[k], c.exposed_ms[k])));
  const hidden = (b, e) => b > 0 ? Math.round(100 * Math.max(b - e, 0) / b) + "%" : "–";
  const rows = COMM.map((k, i) => [
    element("span", {}, [element("i", {class: "swatch", style: `background:${palette.kinds[i]}`}), k]),
    ms(c.busy_ms[k] / n), ms(c.exposed_ms[k] / n), hidden(c.busy_ms[k], c.exposed_ms[k]),
    meter([[share(Math.min(c.exposed_ms[k], c.busy_ms[k]), most), palette.kinds[i]], [share(Math.max(c.busy_ms[k] - c.exposed_ms[k], 0), most), palette.kinds[i + 3]]])]);
  rows.push(["all", ms(busy / n), ms(exposed / n), hidden(busy, exposed), ""]);
  place("exposed-kinds", element("h3", {}, ["By kind"]),
        table([["", false], ["busy", true], ["exposed", true], ["hidden", true], METER], rows, true));

  const top = c.units.slice(0, 12), largest = Math.max(...top.map((u) => sum(u.exposed_ms)), 0);
  const units = top.map((u) => [u.unit ?? "no unit", ...COMM.map((k) => ms(u.exposed_ms[k] / n)),
    percent(sum(u.exposed_ms), exposed), meter(COMM.map((k, i) => [share(u.exposed_ms[k], largest), palette.kinds[i]]))]);
  place("exposed-units", element("h3", {}, [c.units.length > top.length ? `By unit, the first ${top.length} of ${c.units.length}` : "By unit"]),
        table([["unit", false], ...COMM.map((k) => [k, true]), ["share", true], METER], units));
}

function drawSkew(f, palette) {
  const ranks = f.skew.ranks, most = Math.max(...ranks.map((r) => share(r.last, r.collectives)));
  const rows = ranks.map((r, i) => [`rank ${r.rank}`, percent(r.last, r.collectives), ms(r.median_ms), ms(r.max_ms),
    meter([[share(share(r.last, r.collectives), most), palette.ranks[i % palette.ranks.length]]])]);
  place("skew-ranks", element("h3", {}, ["By rank: how often it came last, and how far behind then"]),
        table([["", false], ["last in", true], ["median", true], ["most", true], METER], rows));
  const top = f.skew.by_collective.slice(0, 10), largest = Math.max(...top.map((r) => r.total_ms), 0);
  const lines = top.map((r) => [`${r.name} ${r.unit ?? ""}`, ms(r.median_ms), ms(r.max_ms),
    r.last_rank === null ? "–" : `rank ${r.last_rank} (${percent(r.last, r.n)})`,
    meter([[share(r.total_ms, largest), palette.kinds[COMM.indexOf(r.stream)]]])]);
  place("skew-rows", element("h3", {}, [`By collective, ${top.length < f.skew.by_collective.length ? `the first ${top.length} of ${f.skew.by_collective.length}` : "all"}; the bar is the skew of all steps together`]),
        table([["", false], ["median", true], ["most", true], ["last most often", false], METER], lines));
}

/* A chart of one value per pass; at most 400 bars, each the largest of the passes that it covers. */
function chart(title, passes, value, colour, mark) {
  const W = 1400, H = 128, LEFT = 90, TOP = 32, BASE = H - 20, svgTag = "http://www.w3.org/2000/svg";
  const per = Math.ceil(passes.length / 400), n = Math.ceil(passes.length / per), most = Math.max(...passes.map(value), 1e-9);
  const svg = document.createElementNS(svgTag, "svg");
  const add = (tag, attributes, text) => {
    const made = document.createElementNS(svgTag, tag);
    for (const [k, v] of Object.entries(attributes)) made.setAttribute(k, v);
    if (text !== undefined) made.textContent = text;
    (attributes.parent || svg).append(made);
    return made;
  };
  const y = (v) => BASE - v / most * (BASE - TOP), slot = (W - LEFT) / n;
  svg.setAttribute("viewBox", `0 0 ${W} ${H}`);
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", title);
  add("text", {x: 0, y: 11, style: "fill:var(--text);font-weight:600"}, title);
  for (const v of [most, most / 2, 0]) {
    add("line", {x1: LEFT, x2: W, y1: y(v), y2: y(v), stroke: "var(--line)"});
    add("text", {x: LEFT - 10, y: y(v) + 4, "text-anchor": "end"}, v ? ms(v) : "0");
  }
  for (let i = 0; i < n; i++) {
    const some = passes.slice(i * per, (i + 1) * per), worst = some.reduce((a, b) => value(b) > value(a) ? b : a);
    const bar = add("rect", {x: (LEFT + i * slot + slot * 0.1).toFixed(2), width: (slot * 0.8).toFixed(2), y: y(value(worst)).toFixed(2),
                             height: Math.max(BASE - y(value(worst)), 0.5).toFixed(2), fill: colour(worst)});
    const tip = document.createElementNS(svgTag, "title");
    tip.textContent = `step ${worst.step}: ${ms(value(worst))}`;
    bar.append(tip);
  }
  if (mark) {
    add("line", {x1: LEFT, x2: W, y1: y(mark), y2: y(mark), stroke: "var(--accent)", "stroke-dasharray": "5 4"});
    /* Beside the title, where no bar is. */
    add("text", {x: W, y: 11, "text-anchor": "end", style: "fill:var(--accent)"}, `median ${ms(mark)}`);
  }
  add("text", {x: LEFT, y: H - 4}, `step ${passes[0].step}`);
  add("text", {x: W, y: H - 4, "text-anchor": "end"}, `step ${passes.at(-1).step}`);
  return svg;
}

function drawSteps(f, palette) {
  const passes = f.passes.filter((p) => p.kind !== "evaluate");
  if (!passes.length) return place("steps", element("p", {class: "note"}, ["There was no training step."]));
  const rank = (r) => f.run.traces.indexOf(r);
  place("steps", element("p", {class: "note"}, ["From the begin of the pass on the first rank to the end of the update on the last; passes are numbered from 0, evaluations among them."]),
        chart("Time of a step", passes, (p) => p.ms, () => palette.kinds[8], f.steps.median_ms),
        chart("Largest skew in a step, in the colour of the rank that came last", passes, (p) => p.skew_ms,
              (p) => p.last_rank === null ? palette.line : palette.ranks[rank(p.last_rank) % palette.ranks.length]));
}

function drawVerdict(f) {
  const v = f.verdict;
  if (!v) return place("verdict", element("p", {class: "note"}, ["This run has no verdict. hptrain --verify --trace DIR writes one."]));
  const badge = element("span", {class: `badge ${v.sound ? "good" : "bad"}`}, [v.sound ? "sound" : "unsound"]);
  const steady = f.memory.steady_bytes; /* beside what steps take and give back, which is all that lists name */
  const facts = [["ranks", v.ranks], ["steps", v.steps], ["operations", v.operations],
                 v.peak_bytes ? [steady ? "peak, all held" : "peak, of steps", bytesText(v.peak_bytes + steady)] : null,
                 v.bound_bytes ? ["bound", bytesText(v.bound_bytes)] : null];
  place("verdict", element("p", {}, [badge, v.sound || !v.rule ? "" : ` rule ${v.rule}`, " · ", facts.filter((x) => x).map((x) => x.join(" ")).join(" · ")]),
        ...(v.text ? [element("pre", {}, [v.text])] : []));
}

function drawPanels(data, palette) {
  drawLegend(data, palette);
  drawExposed(data.figures, palette);
  drawSkew(data.figures, palette);
  drawSteps(data.figures, palette);
}

function start() {
  const began = performance.now(), data = readData(), root = document.documentElement.dataset;
  const restyle = (timeline) => {
    timeline.palette = makePalette();
    drawPanels(data, timeline.palette);
    timeline.drawNow();
  };
  drawAbout(data.figures);
  drawTiles(data.figures);
  drawVerdict(data.figures);
  drawPanels(data, makePalette());
  const timeline = new Timeline(data, makePalette());
  timeline.drawNow();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => restyle(timeline));
  window.addEventListener("beforeprint", () => restyle(timeline));
  window.addEventListener("afterprint", () => restyle(timeline));
  root.spans = data.lanes.reduce((n, lane) => n + lane.n, 0);
  root.lanes = data.lanes.length;
  root.openMs = (performance.now() - began).toFixed(1);
  root.ready = "yes";
  return timeline;
}

window.addEventListener("error", (e) => { document.documentElement.dataset.error = e.message; });
const timeline = start();
