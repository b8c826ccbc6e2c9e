/* SPDX-License-Identifier: Apache-2.0
 *
 * timeline.js - the overview, the timeline and the memory below it: three canvases, one view.
 *
 * The view is a stretch of time. A change of it is drawn once, in the next frame. What a frame drew
 * is counted in data attributes of the root element, for tests: rects never exceed two per pixel
 * column of a lane.
 */

const GUTTER = 124, RIGHT = 16, AXIS = 40;

/* What is narrower than a pixel, from left to right: summed up by pixel column, and neighbouring
 * columns that look alike are one rectangle. */
class Columns {
  constructor(pixel, scale, y, height, batches) {
    Object.assign(this, {pixel, scale, y, height, batches});
    this.sums = new Float64Array(KINDS.length);
    this.column = -1;
    this.filled = 0;
    this.run = {kind: 0, quarter: 0, from: 0, to: 0};
  }
  add(column, kind, busy) {
    if (column !== this.column) this.close();
    this.column = column;
    this.sums[kind] += busy;
    this.filled += busy;
  }
  /* The column is done. */
  close() {
    if (this.filled === 0) return;
    const {sums, run} = this, quarter = Math.min(3, Math.floor(this.filled * this.scale / this.pixel * 4));
    let kind = 0;
    for (let k = 1; k < sums.length; k++) if (sums[k] > sums[kind]) kind = k;
    sums.fill(0);
    this.filled = 0;
    if (kind !== run.kind || quarter !== run.quarter || this.column !== run.to) {
      this.emit();
      Object.assign(run, {kind, quarter, from: this.column});
    }
    run.to = this.column + 1;
  }
  emit() {
    const {run, pixel} = this;
    if (run.to > run.from)
      this.batches[run.kind][run.quarter].push(GUTTER + run.from * pixel, this.y, (run.to - run.from) * pixel, this.height);
    run.from = run.to;
  }
  end() {
    this.close();
    this.emit();
  }
}

class Timeline {
  constructor(data, palette) {
    Object.assign(this, {data, palette});
    this.canvas = document.getElementById("timeline");
    this.overview = document.getElementById("overview");
    this.memory = document.getElementById("memory");
    this.tip = document.getElementById("tip");
    this.detail = document.getElementById("detail");
    this.passes = data.figures.passes.map((p) => ({...p, begin: p.at_ms * 1e6, end: (p.at_ms + p.ms) * 1e6}));
    this.layOut();
    this.selected = this.hovered = null;
    this.lane = 0;
    this.from = 0;
    this.to = data.total;
    this.listen();
    if (!this.readHash()) this.showStep(this.medianPass());
  }

  /* A row per rank and stream; lanes of greater depth lie in the lower half of their row. */
  layOut() {
    const ranks = new Set(this.data.lanes.map((lane) => lane.rank)).size;
    const small = ranks > 12;
    let y = AXIS, rank = null, row = null;
    this.rows = [];
    for (const lane of this.data.lanes) {
      const isNew = !row || lane.rank !== row.rank || lane.stream !== row.stream;
      if (isNew) {
        if (rank !== null && lane.rank !== rank) y += small ? 5 : 10;
        const height = lane.stream === "compute" ? (small ? 12 : 20) : (small ? 7 : 13);
        row = {rank: lane.rank, stream: lane.stream, y, height, first: lane.rank !== rank, lanes: []};
        rank = lane.rank;
        y += height + 1;
        this.rows.push(row);
      }
      row.lanes.push(lane);
    }
    this.height = y + 10;
    this.canvas.style.height = this.height + "px";
  }

  /* ---- the view ---- */

  get width() { return this.canvas.clientWidth - GUTTER - RIGHT; }
  x(time) { return GUTTER + (time - this.from) / (this.to - this.from) * this.width; }
  time(x) { return this.from + (x - GUTTER) / this.width * (this.to - this.from); }

  show(from, to) {
    const span = Math.min(Math.max(to - from, 200), this.data.total * 1.02);
    const middle = (from + to) / 2, slack = this.data.total * 0.01;
    from = Math.min(Math.max(middle - span / 2, -slack), this.data.total + slack - span);
    this.from = from;
    this.to = from + span;
    this.draw();
  }
  zoom(factor, at = (this.from + this.to) / 2) {
    this.show(at - (at - this.from) * factor, at + (this.to - at) * factor);
  }
  pan(part) {
    const by = (this.to - this.from) * part;
    this.show(this.from + by, this.to + by);
  }

  /* The training pass that took a time nearest to the median. */
  medianPass() {
    const train = this.passes.filter((p) => p.kind === "train"), median = this.data.figures.steps.median_ms;
    const far = (p) => Math.abs(p.ms - median);
    return (train.length ? train : this.passes).reduce((best, p) => best && far(best) <= far(p) ? best : p, null);
  }
  showStep(pass) {
    if (!pass) return this.show(0, this.data.total);
    const slack = (pass.end - pass.begin) * 0.02;
    this.show(pass.begin - slack, pass.end + slack);
  }
  currentPass() {
    const middle = (this.from + this.to) / 2;
    const i = this.passes.findIndex((p) => p.end > middle);
    return i < 0 ? this.passes.length - 1 : i;
  }
  moveStep(by) {
    const i = Math.min(Math.max(this.currentPass() + by, 0), this.passes.length - 1);
    this.showStep(this.passes[i]);
  }

  readHash() {
    const parts = new URLSearchParams(location.hash.slice(1));
    const step = this.passes.find((p) => String(p.step) === parts.get("step"));
    if (step) this.showStep(step);
    else if (parts.has("from") && parts.has("to")) this.show(parts.get("from") * 1e6, parts.get("to") * 1e6);
    else return false;
    return true;
  }

  /* ---- drawing ---- */

  draw() {
    if (this.frame) return;
    this.frame = requestAnimationFrame(() => {
      this.frame = 0;
      this.drawNow();
    });
  }

  drawNow() {
    const began = performance.now();
    this.counts = {rects: 0, visits: 0};
    this.drawOverview();
    this.drawTimeline();
    this.drawMemory();
    const root = document.documentElement.dataset;
    root.rects = this.counts.rects;
    root.visits = this.counts.visits;
    root.columns = Math.ceil(this.width * (window.devicePixelRatio || 1));
    root.frameMs = (performance.now() - began).toFixed(2);
    root.from = (this.from / 1e6).toFixed(6);
    root.to = (this.to / 1e6).toFixed(6);
  }

  /* A cleared context whose unit is a CSS pixel. */
  context(canvas) {
    const scale = window.devicePixelRatio || 1, width = canvas.clientWidth, height = canvas.clientHeight;
    if (canvas.width !== Math.round(width * scale) || canvas.height !== Math.round(height * scale)) {
      canvas.width = Math.round(width * scale);
      canvas.height = Math.round(height * scale);
    }
    const c = canvas.getContext("2d");
    c.setTransform(scale, 0, 0, scale, 0, 0);
    c.clearRect(0, 0, width, height);
    c.font = `11.5px ${getComputedStyle(document.body).fontFamily}`;
    c.textBaseline = "middle";
    return c;
  }

  drawOverview() {
    const c = this.context(this.overview), width = this.width, height = this.overview.clientHeight;
    const most = Math.max(...this.passes.map((p) => p.ms), 0), columns = new Map();
    const x = (time) => GUTTER + time / this.data.total * width;
    for (const p of this.passes) {
      const left = Math.round(x(p.begin)), right = Math.max(Math.round(x(p.end)) - 1, left + 1);
      const old = columns.get(left);
      if (!old || p.ms > old.ms) columns.set(left, {ms: p.ms, right, kind: p.kind});
    }
    for (const [left, p] of columns) {
      const tall = 3 + (height - 12) * p.ms / most;
      c.fillStyle = p.kind === "evaluate" ? this.palette.line : this.palette.faint;
      c.fillRect(left, height - 3 - tall, p.right - left, tall);
      this.counts.rects++;
    }
    this.label(c, "whole run", height / 2, this.palette.muted);
    const left = x(this.from), right = Math.max(x(this.to), left + 3);
    c.strokeStyle = this.palette.accent;
    c.lineWidth = 1.5;
    c.strokeRect(left, 2.5, right - left, height - 4);
  }

  label(c, text, y, colour, x = GUTTER - 10) {
    c.fillStyle = colour;
    c.textAlign = "right";
    c.fillText(text, x, y);
  }

  drawTimeline() {
    const c = this.context(this.canvas);
    this.drawPasses(c);
    this.drawAxis(c);
    for (const row of this.rows) {
      c.fillStyle = this.palette.track;
      c.fillRect(GUTTER, row.y, this.width, row.height);
      if (row.first) {
        c.textAlign = "left";
        c.fillStyle = this.palette.text;
        c.fillText(`rank ${row.rank}`, 12, row.y + row.height / 2);
      }
      this.label(c, row.stream || "stream", row.y + row.height / 2, this.palette.muted);
    }
    c.save();
    c.beginPath();
    c.rect(GUTTER, 0, this.width, this.height);
    c.clip();
    this.drawLanes(c);
    this.drawNames(c);
    if (this.hovered) this.frameSpan(c, this.hovered, this.palette.text, 1);
    if (this.selected) {
      this.frameSpan(c, this.selected, this.palette.accent, 2);
      const target = this.targetOf(this.selected);
      if (target) this.frameSpan(c, target, this.palette.accent, 2);
    }
    c.restore();
  }

  /* Numbers of steps, while there is room for them. */
  drawPasses(c) {
    const words = {train: "step", no_sync: "no-sync", defer_replicate: "deferred", evaluate: "evaluate"};
    let free = GUTTER;
    for (const p of this.passes) {
      if (p.end < this.from || p.begin > this.to) continue;
      const left = Math.max(this.x(p.begin), GUTTER), right = Math.min(this.x(p.end), GUTTER + this.width);
      const isCut = p.begin < this.from && right - left < this.width / 3;
      if (left < free || isCut) continue;
      const text = right - left > 70 ? `${words[p.kind]} ${p.step} · ${timeText(p.ms * 1e6)}` : String(p.step);
      const wide = c.measureText(text).width;
      c.fillStyle = this.palette.line;
      if (p.begin >= this.from) c.fillRect(left, 4, 1, this.height - 8);
      this.counts.rects++;
      c.textAlign = "left";
      c.fillStyle = p.kind === "evaluate" ? this.palette.muted : this.palette.text;
      if (left + wide + 6 < GUTTER + this.width) c.fillText(text, left + 5, 12);
      free = left + Math.max(wide + 12, 24);
    }
  }

  drawAxis(c) {
    const rough = (this.to - this.from) / Math.max(this.width / 110, 1), power = 10 ** Math.floor(Math.log10(rough));
    const tick = [1, 2, 5, 10].map((k) => k * power).find((k) => k >= rough);
    c.textAlign = "center";
    for (let i = Math.ceil(Math.max(this.from, 0) / tick); i * tick <= Math.min(this.to, this.data.total); i++) {
      const x = this.x(i * tick);
      c.fillStyle = this.palette.line;
      c.fillRect(x, AXIS - 7, 1, 5);
      c.fillStyle = this.palette.muted;
      if (x > GUTTER + 20 && x < GUTTER + this.width - 20) c.fillText(this.axisText(i * tick, tick), x, AXIS - 13);
    }
  }

  /* All labels of an axis in one unit, with as many digits as tell them apart. */
  axisText(time, tick) {
    const [unit, name] = this.to >= 1e9 && tick >= 1e7 ? [1e9, "s"] : tick >= 1e4 ? [1e6, "ms"] : [1e3, "µs"];
    return (time / unit).toFixed(Math.max(0, Math.ceil(-Math.log10(tick / unit) - 1e-9))) + " " + name;
  }

  /* Rectangles are collected by kind and how much of a pixel they fill, then filled in one go each. */
  drawLanes(c) {
    const batches = KINDS.map(() => [[], [], [], []]);
    for (const row of this.rows)
      for (const lane of row.lanes) {
        const inner = lane.depth > 0, top = inner ? row.y + row.height * 0.5 : row.y + 1;
        const height = inner ? row.height * 0.5 - 2 : row.height - 2;
        this.collect(lane, top, height, batches);
      }
    for (let kind = 0; kind < KINDS.length; kind++)
      for (let quarter = 0; quarter < 4; quarter++) {
        const batch = batches[kind][quarter];
        c.fillStyle = this.palette.kinds[kind];
        c.globalAlpha = (quarter + 1) / 4;
        for (let i = 0; i < batch.length; i += 4) c.fillRect(batch[i], batch[i + 1], batch[i + 2], batch[i + 3]);
        this.counts.rects += batch.length / 4;
      }
    c.globalAlpha = 1;
  }

  /* Down the lane's tree, no further than to nodes narrower than a device pixel. Those of one pixel
   * become a column in the colour of the kind that takes most of it. */
  collect(lane, y, height, batches) {
    const pixel = 1 / (window.devicePixelRatio || 1), scale = this.width / (this.to - this.from);
    const {from, to} = this, columns = new Columns(pixel, scale, y, height, batches);
    let visits = 0;
    const visit = (level, i) => {
      const node = lane.levels[level], begin = node.begin[i], end = node.end[i];
      visits++;
      if (end <= from || begin >= to) return;
      const isWide = (end - begin) * scale >= pixel;
      if (!isWide) {
        columns.add(Math.floor((begin - from) * scale / pixel), node.kind[i], node.busy[i]);
      } else if (level > 0) {
        const last = Math.min((i + 1) * FAN, lane.levels[level - 1].kind.length);
        for (let j = i * FAN; j < last; j++) visit(level - 1, j);
      } else {
        columns.end();
        const left = Math.max(GUTTER + (begin - from) * scale, GUTTER - 2);
        const right = Math.min(GUTTER + (end - from) * scale, GUTTER + this.width + 2);
        const gap = right - left > 4 ? 0.5 : 0; // a hair between neighbours
        batches[node.kind[i]][3].push(left, y, right - left - gap, height);
      }
    };
    const top = lane.levels.length - 1;
    for (let i = 0; i < lane.levels[top].kind.length; i++) visit(top, i);
    columns.end();
    this.counts.visits += visits;
  }

  /* Names in spans that are wide enough. */
  drawNames(c) {
    c.textAlign = "left";
    for (const row of this.rows) {
      if (row.stream !== "compute" || row.height < 16) continue;
      const lane = row.lanes[0];
      for (let i = lane.firstAfter(this.from), n = 0; i < lane.n && lane.begin[i] < this.to && n < 400; i++, n++) {
        const left = Math.max(this.x(lane.begin[i]), GUTTER), right = Math.min(this.x(lane.end[i]), GUTTER + this.width);
        const [name, unit] = this.data.what[lane.what[i]], kind = this.data.what[lane.what[i]][4];
        const text = unit < 0 ? this.data.names[name] : this.data.names[unit];
        if (right - left < 24 || c.measureText(text).width > right - left - 8) continue;
        c.fillStyle = this.palette.onKinds[kind];
        c.fillText(text, left + 4, row.y + row.height / 2 + 0.5);
      }
    }
  }

  frameSpan(c, {row, lane, i}, colour, width) {
    const left = this.x(lane.begin[i]), right = Math.max(this.x(lane.end[i]), left + 2);
    c.strokeStyle = colour;
    c.lineWidth = width;
    c.strokeRect(left, row.y + 0.5, right - left, row.height - 1);
  }

  /* Per pixel column the least and most that was held, a line per rank; and the bound. */
  drawMemory() {
    const c = this.context(this.memory), height = this.memory.clientHeight, {figures} = this.data;
    const bound = figures.memory.bound_bytes, peak = Math.max(...figures.memory.ranks.map((r) => r.peak_bytes), 1);
    const top = Math.max(peak, bound || 0) * 1.08, base = height - 12;
    const y = (bytes) => Math.round(base - bytes / top * (base - 14)) + 0.5; // sharp lines
    this.label(c, "memory", 16, this.palette.text, 56);
    for (const part of [0, 0.5, 1]) {
      const bytes = part * (bound || peak);
      c.fillStyle = this.palette.line;
      c.fillRect(GUTTER, y(bytes) - 0.5, this.width, 1);
      this.label(c, bytes ? bytesText(bytes) : "0", y(bytes), this.palette.muted);
    }
    c.save();
    c.beginPath();
    c.rect(GUTTER, 0, this.width, height);
    c.clip();
    this.data.memory.forEach((memory, k) => this.drawHeld(c, memory, y, this.palette.ranks[k % this.palette.ranks.length]));
    c.restore();
    if (bound) {
      c.strokeStyle = this.palette.bad;
      c.setLineDash([5, 4]);
      c.lineWidth = 1;
      c.beginPath();
      c.moveTo(GUTTER, y(bound));
      c.lineTo(GUTTER + this.width, y(bound));
      c.stroke();
      c.setLineDash([]);
      c.textAlign = "right";
      c.fillStyle = this.palette.bad;
      c.fillText("bound", GUTTER + this.width - 6, y(bound) - 8);
    }
  }

  drawHeld(c, memory, y, colour) {
    const columns = Math.ceil(this.width);
    let low = memory.changesUntil(this.from), held = low ? memory.held[low - 1] : memory.before;
    c.strokeStyle = colour;
    c.lineWidth = 1;
    c.beginPath();
    c.moveTo(GUTTER, y(held));
    for (let i = 0; i < columns; i++) {
      const high = memory.changesUntil(this.time(GUTTER + i + 1));
      if (high === low) continue;
      const [least, most] = memory.range(low, high);
      c.lineTo(GUTTER + i + 0.5, y(held));
      c.lineTo(GUTTER + i + 0.5, y(Math.max(most, held)));
      c.lineTo(GUTTER + i + 0.5, y(Math.min(least, held)));
      held = memory.held[high - 1];
      c.lineTo(GUTTER + i + 0.5, y(held));
      low = high;
      this.counts.rects++;
    }
    c.lineTo(GUTTER + columns, y(held));
    c.stroke();
  }

  /* ---- what a span is ---- */

  about({lane, i}) {
    const [name, unit, bytes, id, kind] = this.data.what[lane.what[i]];
    return {name: this.data.names[name] ?? "?", unit: unit < 0 ? "" : this.data.names[unit], bytes, id, kind,
            step: lane.step[i], ns: lane.end[i] - lane.begin[i], at: lane.begin[i], rank: lane.rank, stream: lane.stream};
  }

  /* The operation (step, id) of a rank, in the rows that `fits` takes; or null. */
  find(step, id, fits) {
    for (const row of this.rows) {
      if (!fits(row)) continue;
      const lane = row.lanes[0];
      for (let i = lane.firstOfStep(step); i < lane.n && lane.step[i] === step; i++)
        if (this.data.what[lane.what[i]][3] === id) return {row, lane, i};
    }
    return null;
  }

  /* What a wait waits for. */
  targetOf(hit) {
    const a = this.about(hit);
    if (!KINDS[a.kind].waits || a.id < 0) return null;
    return this.find(a.step, a.id, (row) => row.rank === a.rank && row.stream !== "compute");
  }

  /* When the other ranks came to the same collective. */
  arrivals(hit) {
    const a = this.about(hit), {mesh} = this.data.figures.run;
    if (!KINDS[a.kind].communicates || a.id < 0) return [];
    const group = (rank) => !mesh ? 0 : a.stream === "replicate" ? rank % mesh[1] : Math.floor(rank / mesh[1]);
    const all = [];
    for (const row of this.rows) {
      if (row.stream !== a.stream || group(row.rank) !== group(a.rank)) continue;
      const peer = this.find(a.step, a.id, (other) => other === row);
      if (peer) all.push([row.rank, peer.lane.begin[peer.i]]);
    }
    const first = Math.min(...all.map(([, at]) => at));
    return all.map(([rank, at]) => [`rank ${rank}`, at === first ? "first" : "+" + timeText(at - first)]);
  }

  describe(hit) {
    const a = this.about(hit);
    const rows = [["step", a.step], ["took", timeText(a.ns)], ["at", timeText(a.at)]];
    if (a.bytes) rows.push(["bytes", bytesText(a.bytes)]);
    if (a.id >= 0) rows.push([KINDS[a.kind].waits ? "for operation" : "operation", a.id]);
    const title = KINDS[a.kind].waits ? `${KINDS[a.kind].name}${a.unit ? " of " + a.unit : ""}` : `${a.name} ${a.unit}`;
    const where = `rank ${a.rank}, ${a.stream}`;
    return {title: title.trim(), where, rows, peers: this.arrivals(hit)};
  }

  showTip(hit, x, y) {
    this.tip.hidden = !hit;
    if (!hit) return;
    const d = this.describe(hit), line = ([a, b]) => element("tr", {}, [element("td", {}, [a]), element("td", {}, [b])]);
    const peers = d.peers.length > 1 ? d.peers.slice(0, 16) : [];
    this.tip.replaceChildren(
      element("h3", {}, [d.title]),
      element("table", {}, [line(["on", d.where]), ...d.rows.map(line), ...peers.map(line)]));
    const box = this.tip.getBoundingClientRect();
    this.tip.style.left = Math.min(x + 14, window.innerWidth - box.width - 8) + "px";
    this.tip.style.top = (y + 18 + box.height > window.innerHeight ? y - box.height - 12 : y + 18) + "px";
  }

  select(hit) {
    this.selected = hit;
    if (hit) {
      const d = this.describe(hit), peers = d.peers.length > 1 ? d.peers.slice(0, 16) : [];
      this.lane = this.rows.indexOf(hit.row);
      this.detail.textContent = [d.title, d.where, ...d.rows.map((r) => r.join(" ")), ...peers.map((r) => r.join(" "))].join(" · ");
    } else {
      this.detail.textContent = "";
    }
    this.draw();
  }

  /* The span under a point, the innermost; with two pixels to spare on either side. */
  hit(x, y) {
    const row = this.rows.find((r) => y >= r.y && y < r.y + r.height);
    if (!row || x < GUTTER || x > GUTTER + this.width) return null;
    for (const lane of [...row.lanes].reverse()) {
      const i = lane.firstAfter(this.time(x));
      for (const slack of [0, 2])
        for (const j of [i, i - 1])
          if (j >= 0 && j < lane.n && lane.begin[j] <= this.time(x + slack) && lane.end[j] >= this.time(x - slack))
            return {row, lane, i: j};
    }
    return null;
  }

  /* ---- mouse, touch, keys ---- */

  listen() {
    const canvas = this.canvas;
    canvas.addEventListener("wheel", (e) => {
      e.preventDefault();
      if (e.shiftKey || Math.abs(e.deltaX) > Math.abs(e.deltaY)) this.pan((e.deltaX || e.deltaY) / 1000);
      else this.zoom(Math.exp(e.deltaY * 0.0015), this.time(e.offsetX));
    }, {passive: false});
    canvas.addEventListener("pointerdown", (e) => {
      canvas.setPointerCapture(e.pointerId);
      this.drag = {x: e.offsetX, from: this.from, to: this.to, moved: false};
    });
    canvas.addEventListener("pointermove", (e) => this.pointerMoved(e));
    canvas.addEventListener("pointerup", (e) => {
      if (this.drag && !this.drag.moved) this.select(this.hit(e.offsetX, e.offsetY));
      this.drag = null;
    });
    canvas.addEventListener("pointerleave", () => this.hover(null));
    canvas.addEventListener("dblclick", (e) => this.zoom(0.25, this.time(e.offsetX)));
    canvas.addEventListener("keydown", (e) => this.key(e));
    const jump = (e) => {
      if (!e.buttons) return;
      const middle = (e.offsetX - GUTTER) / this.width * this.data.total, half = (this.to - this.from) / 2;
      this.show(middle - half, middle + half);
    };
    this.overview.addEventListener("pointerdown", jump);
    this.overview.addEventListener("pointermove", jump);
    for (const button of document.querySelectorAll("#tools button"))
      button.addEventListener("click", () => this.act(button.dataset.do));
    window.addEventListener("resize", () => this.draw());
    window.addEventListener("hashchange", () => this.readHash());
  }

  pointerMoved(e) {
    if (!this.drag) return this.hover(this.hit(e.offsetX, e.offsetY), e.clientX, e.clientY);
    const by = (this.drag.x - e.offsetX) / this.width * (this.drag.to - this.drag.from);
    this.drag.moved ||= Math.abs(e.offsetX - this.drag.x) > 3;
    if (this.drag.moved) {
      this.hover(null);
      this.show(this.drag.from + by, this.drag.to + by);
    }
  }

  hover(hit, x, y) {
    const before = this.hovered;
    this.hovered = hit;
    this.showTip(hit, x, y);
    if (hit?.lane !== before?.lane || hit?.i !== before?.i) this.draw();
  }

  act(what) {
    if (what === "all") this.show(0, this.data.total);
    else if (what === "step") this.showStep(this.passes[this.currentPass()]);
    else if (what === "previous") this.moveStep(-1);
    else if (what === "next") this.moveStep(1);
    else if (what === "in") this.zoom(0.5);
    else if (what === "out") this.zoom(2);
  }

  key(e) {
    const acts = {"0": "all", Home: "all", s: "step", p: "previous", n: "next", "+": "in", "=": "in", "-": "out"};
    if (e.ctrlKey || e.metaKey || e.altKey) return;
    if (acts[e.key]) this.act(acts[e.key]);
    else if (e.key === "ArrowLeft") this.pan(-0.2);
    else if (e.key === "ArrowRight") this.pan(0.2);
    else if (e.key === "ArrowUp") this.chooseLane(-1);
    else if (e.key === "ArrowDown") this.chooseLane(1);
    else if (e.key === ",") this.chooseSpan(-1);
    else if (e.key === ".") this.chooseSpan(1);
    else if (e.key === "Escape") this.select(null);
    else return;
    e.preventDefault();
  }

  chooseLane(by) {
    const isFirst = !this.selected;
    this.lane = Math.min(Math.max(this.lane + (isFirst ? 0 : by), 0), this.rows.length - 1);
    const row = this.rows[this.lane], lane = row.lanes[0];
    const at = isFirst ? (this.from + this.to) / 2 : this.selected.lane.begin[this.selected.i];
    this.select({row, lane, i: Math.min(lane.firstAfter(at), lane.n - 1)});
  }

  /* The view follows a span that is outside of it. */
  chooseSpan(by) {
    if (!this.selected) return this.chooseLane(0);
    const {row, lane, i} = this.selected, j = Math.min(Math.max(i + by, 0), lane.n - 1);
    this.select({row, lane, i: j});
    if (lane.begin[j] < this.from || lane.end[j] > this.to) {
      const half = (this.to - this.from) / 2;
      this.show(lane.begin[j] - half, lane.begin[j] + half);
    }
  }
}
