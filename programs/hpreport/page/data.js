/* SPDX-License-Identifier: Apache-2.0
 *
 * data.js - the spans, unpacked (page.c says how they are packed), and trees over them.
 *
 * A tree lets a lane be drawn in time that goes with pixels, whatever the number of spans: a node
 * stands for 8 of the level below, knows how long they took together and which kind took most of
 * it. A node narrower than a pixel is drawn without looking below it. Times are nanoseconds since
 * the begin of the traces.
 */

const FAN = 8;

function unpackBytes(base64) {
  const text = atob(base64), bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  return bytes;
}

/* Numbers of 7 bits a byte, the lowest first. Multiplied, since shifts end at 32 bits. */
class Numbers {
  constructor(bytes) {
    this.bytes = bytes;
    this.at = 0;
  }
  next() {
    let value = 0, weight = 1;
    for (;;) {
      const byte = this.bytes[this.at++];
      value += (byte & 127) * weight;
      if (byte < 128) return value;
      weight *= 128;
    }
  }
  nextSigned() {
    const value = this.next();
    return value % 2 ? -(value + 1) / 2 : value / 2;
  }
}

class Lane {
  constructor(head, numbers, what) {
    Object.assign(this, {rank: head.rank, stream: head.stream, depth: head.depth, n: head.n});
    this.begin = new Float64Array(this.n);
    this.end = new Float64Array(this.n);
    this.what = new Uint32Array(this.n);
    this.step = new Uint32Array(this.n);
    let now = 0, step = 0;
    for (let i = 0; i < this.n; i++) {
      this.begin[i] = now + numbers.next();
      this.end[i] = now = this.begin[i] + numbers.next();
      const word = numbers.next();
      if (word % 2) step += numbers.nextSigned();
      this.what[i] = Math.floor(word / 2);
      this.step[i] = step;
    }
    this.levels = this.makeLevels(what);
  }

  /* Level 0 are the spans themselves; the last level has at most FAN nodes. */
  makeLevels(what) {
    const kind = new Uint8Array(this.n), busy = new Float64Array(this.n);
    for (let i = 0; i < this.n; i++) {
      kind[i] = what[this.what[i]][4];
      busy[i] = this.end[i] - this.begin[i];
    }
    const levels = [{kind, busy, begin: this.begin, end: this.end}];
    while (levels.at(-1).kind.length > FAN) levels.push(levelAbove(levels.at(-1)));
    return levels;
  }

  /* The first span that ends after a time. */
  firstAfter(time) {
    let low = 0, high = this.n;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.end[middle] <= time) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  /* The first span of a step or of a later one. */
  firstOfStep(step) {
    let low = 0, high = this.n;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.step[middle] < step) low = middle + 1;
      else high = middle;
    }
    return low;
  }
}

function levelAbove(below) {
  const n = Math.ceil(below.kind.length / FAN);
  const kind = new Uint8Array(n), busy = new Float64Array(n), sums = new Float64Array(KINDS.length);
  const begin = new Float64Array(n), end = new Float64Array(n);
  for (let i = 0; i < n; i++) {
    sums.fill(0);
    for (let j = i * FAN; j < Math.min((i + 1) * FAN, below.kind.length); j++) {
      sums[below.kind[j]] += below.busy[j];
      busy[i] += below.busy[j];
    }
    kind[i] = sums.indexOf(Math.max(...sums));
    begin[i] = below.begin[i * FAN];
    end[i] = below.end[Math.min((i + 1) * FAN, below.kind.length) - 1];
  }
  return {kind, busy, begin, end};
}

/* Bytes held over time by one rank: a step function, with the least and most of 8, 64 ... changes. */
class Memory {
  constructor(head, numbers, steady) {
    this.rank = head.rank;
    this.n = head.n;
    this.time = new Float64Array(this.n);
    this.held = new Float64Array(this.n);
    this.before = steady;
    let now = 0, held = 0;
    for (let i = 0; i < this.n; i++) {
      this.time[i] = now += numbers.next();
      this.held[i] = held += numbers.nextSigned();
    }
    this.levels = [{least: this.held, most: this.held, size: 1}];
    while (this.levels.at(-1).least.length > FAN) this.levels.push(memoryAbove(this.levels.at(-1)));
  }

  /* How many changes there are up to a time. */
  changesUntil(time) {
    let low = 0, high = this.n;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.time[middle] <= time) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  at(time) {
    const n = this.changesUntil(time);
    return n ? this.held[n - 1] : this.before;
  }

  /* [least, most] of the changes from `low` to before `high`: the largest nodes that fit. */
  range(low, high) {
    let least = Infinity, most = -Infinity, level = 0;
    while (low < high) {
      while (level + 1 < this.levels.length && low % this.levels[level + 1].size === 0 &&
             low + this.levels[level + 1].size <= high) level++;
      while (low + this.levels[level].size > high) level--;
      const node = this.levels[level], i = low / node.size;
      if (node.least[i] < least) least = node.least[i];
      if (node.most[i] > most) most = node.most[i];
      low += node.size;
    }
    return [least, most];
  }
}

function memoryAbove(below) {
  const n = Math.ceil(below.least.length / FAN);
  const least = new Float64Array(n).fill(Infinity), most = new Float64Array(n).fill(-Infinity);
  for (let i = 0; i < below.least.length; i++) {
    const j = Math.floor(i / FAN);
    least[j] = Math.min(least[j], below.least[i]);
    most[j] = Math.max(most[j], below.most[i]);
  }
  return {least, most, size: below.size * FAN};
}

/* All that the page shows. */
function readData() {
  const data = JSON.parse(document.getElementById("data").textContent);
  const numbers = new Numbers(unpackBytes(document.getElementById("spans").textContent.trim()));
  const lanes = data.lanes.map((head) => new Lane(head, numbers, data.what));
  const memory = data.memory.map((head) => new Memory(head, numbers, data.figures.memory.steady_bytes));
  return {figures: data.figures, names: data.names, what: data.what, lanes, memory,
          total: data.figures.run.ms * 1e6};
}

/* ---- numbers as words ---- */

const digits = (value) => value.toFixed(value >= 100 ? 0 : value >= 10 ? 1 : 2);

function timeText(ns) {
  const size = Math.abs(ns);
  if (size >= 1e9) return digits(ns / 1e9) + " s";
  if (size >= 1e6) return digits(ns / 1e6) + " ms";
  if (size >= 1e3) return digits(ns / 1e3) + " µs";
  return Math.round(ns) + " ns";
}

function bytesText(bytes) {
  const units = ["bytes", "KiB", "MiB", "GiB", "TiB"];
  let i = 0;
  for (; bytes >= 1024 && i < 4; i++) bytes /= 1024;
  return (i && bytes < 100 ? bytes.toFixed(1) : Math.round(bytes)) + " " + units[i];
}
