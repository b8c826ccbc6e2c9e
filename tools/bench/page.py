#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
#
# page.py - from the rows that run.py kept to docs/performance.md and its plots.
#
# usage: tools/bench/page.py FOLDER PAGE      (FOLDER holds *.jsonl; plots go to images/ beside PAGE)
#
# The page is written by hand but for what stands between its two markers. A row is one call: op,
# in place or not, ranks, memory, bytes. Its ratio is the least that any peer has, taken pair by pair
# in one run with that peer. goals.json holds the least ratios that we want, limits.json what keeps a
# row below its goal ("of": "ratio"), below the byte limit ("share"), or behind a peer ("slower"),
# reference.jsonl the figures of peers that cannot be installed here.
import collections
import glob
import json
import math
import os
import statistics
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.dont_write_bytecode = True
sys.path.insert(0, HERE)
import again  # noqa: E402
import fused  # noqa: E402
import plot  # noqa: E402
from goals import Key, goal_of, load_json  # noqa: E402
from plot import bytes_text  # noqa: E402

BEGIN, END = "<!-- tools/bench begins -->", "<!-- tools/bench ends -->"
TITLES = [("all_reduce", False), ("all_reduce", True), ("reduce_scatter", False),
          ("all_gather", False), ("all_gather", True), ("all_to_all", False),
          ("send_recv", False), ("broadcast", False), ("barrier", False)]

def load_lines(path):
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file if line.strip()]


# ---- byte limits ------------------------------------------------------------------------------

def between(table, n):
    """Linear in n between the rows of a table that says {bytes: value}; beyond its ends None."""
    points = sorted((int(k), v) for k, v in table.items())
    if n <= points[0][0]:
        return points[0][1]
    for (n0, v0), (n1, v1) in zip(points, points[1:]):
        if n <= n1:
            return v0 + (v1 - v0) * (n - n0) / (n1 - n0)
    return None


class Limits:
    """What the bytes of two ranks with a core each allow at best, in us: rates of byte_limits."""

    def __init__(self, limits):
        self.rates = limits or {}

    def own_copy(self, n):
        """A rank's own block of n bytes, both cores copying at once."""
        table = {k: int(k) / (v / 2 * 1e3) for k, v in self.rates["copy_GBps"].items()}
        smallest = min(int(k) for k in table)
        return table[str(smallest)] * n / smallest if n <= smallest else between(table, n)

    def us(self, key, n):
        if key.ranks != 2 or key.memory != "symm" or not self.rates:
            return None
        if key.op == "barrier":
            return self.rates["line_us"]
        name = key.op + (" in place" if key.in_place else "")
        if n == 64 << 20:  # beyond every cache: what byte_limits streams
            return self.rates["memory_us"].get(name)
        is_part = key.op in ("reduce_scatter", "all_gather", "all_to_all")
        crossing = between(self.rates["crossing_us"], n / 2 if is_part else n)
        if crossing is None:
            return None
        has_own = key.op in ("all_gather", "all_to_all") and not key.in_place
        return crossing + (self.own_copy(n / 2) if has_own else 0)


# ---- rows -------------------------------------------------------------------------------------

class Row:
    """One call at one size: our time, and each peer's with the ratio of pairs."""

    def __init__(self, key, n):
        self.key, self.bytes = key, n
        self.ours, self.peers, self.wrong = [], {}, 0

    def add(self, line):
        self.ours.append(line["time_us"])
        self.wrong += line.get("wrong") or 0
        if line.get("peer") and line.get("peer_us") is not None:
            self.peers[line["peer"]] = line

    @property
    def us(self):
        return statistics.median(self.ours)

    @property
    def strongest(self):
        """The line of the peer with the least ratio; None without peers."""
        lines = [line for line in self.peers.values() if line.get("ratio") is not None]
        return min(lines, key=lambda line: line["ratio"]) if lines else None


def collect(lines):
    """{Key: {bytes: Row}} of fp32 sums, touched."""
    tables = collections.defaultdict(dict)
    for line in lines:
        if (line.get("mode") != "touched" or line.get("dtype") not in ("fp32", None) or
                line["part"] in ("dtypes", "wire", "one_sided")):
            continue
        key = Key(line["op"], bool(line.get("in_place")), line["ranks"], line["memory"])
        n = 0 if line["op"] == "barrier" else line["bytes"]
        tables[key].setdefault(n, Row(key, n)).add(line)
    return tables


def one_or_more(value):
    return value if isinstance(value, list) else [value]


def fits(rule, key, n, of):
    """Rules name no part, and what they are of; those without ops or in_place are for any."""
    return ("part" not in rule and of in one_or_more(rule["of"]) and
            key.op in rule.get("ops", [key.op]) and
            rule.get("in_place", key.in_place) == key.in_place and key.ranks in rule["ranks"] and
            key.memory in one_or_more(rule.get("memory", "symm")) and
            rule.get("from", 0) <= n <= rule.get("to", math.inf))


def reason_of(limits, key, n, of):
    """The first rule that fits."""
    return next((rule["reason"] for rule in limits if fits(rule, key, n, of)), None)


def load_limits():
    """What is said of a row in which a peer is faster must name what was measured."""
    limits = load_json("limits.json")
    for rule in limits:
        if "slower" in one_or_more(rule.get("of")) and not any(c.isdigit() for c in rule["reason"]):
            print(f"bench: limits.json: expected a figure in: {rule['reason']}", file=sys.stderr)
            sys.exit(1)
    return limits


# ---- text -------------------------------------------------------------------------------------

def us_text(us):
    return "-" if us is None else f"{us:.2f}" if us < 10 else f"{us:.1f}" if us < 100 else f"{us:.0f}"


def table(head, rows):
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows]) + "\n"


def title_of(key):
    return key.op + (" in place" if key.in_place else "")


class Writer:
    def __init__(self, lines, lines_again, reference, machine):
        self.goals, self.limits = load_json("goals.json"), load_limits()
        self.reference, self.machine = reference, machine
        self.lines = lines
        self.tables = collect([line for line in lines if "op" in line])
        self.bytes_limits = Limits(machine.get("limits"))
        self.tables_again = collect([line for line in lines_again if "op" in line])
        self.failed = [line for line in lines + lines_again if "failed" in line]
        self.n_rows = self.n_below = self.n_equal = self.n_unexplained = 0
        self.reasons_of_part = []

    def reference_of(self, key, n):
        rows = [r for r in self.reference if (r["op"], r["in_place"], r["ranks"], r["bytes"]) ==
                (key.op, key.in_place, key.ranks, n) and key.memory == "symm"]
        return min(rows, key=lambda r: r["us"]) if rows else None

    def share_of(self, row):
        limit = self.bytes_limits.us(row.key, row.bytes)
        return limit / row.us if limit and row.us else None

    # -- one table

    def cells(self, row, peers):
        strongest, goal = row.strongest, goal_of(self.goals, row.key, row.bytes)
        cells = [bytes_text(row.bytes) if row.bytes else "-", us_text(row.us)]
        cells += [us_text(row.peers[p]["peer_us"]) if p in row.peers else "-" for p in peers]
        if strongest:
            is_below = goal is not None and strongest["ratio"] < goal
            ratio = f"{strongest['ratio']:.2f}"
            cells += [f"**{ratio}**" if is_below else ratio,
                      f"{strongest['ratio_least']:.2f} to {strongest['ratio_most']:.2f}"]
        else:
            cells += ["-", "-"]
        cells.append(f"{goal:g}" if goal is not None else "-")
        if row.key.ranks == 2 and row.key.memory == "symm":
            share = self.share_of(row)
            cells += [us_text(self.bytes_limits.us(row.key, row.bytes)),
                      f"{100 * share:.0f}%" if share else "-"]
        other = self.reference_of(row.key, row.bytes)
        cells.append(f"{other['us']:g} {other['peer']} ({other['us'] / row.us:.2f})"
                     if other and row.us else "-")
        return cells

    def head(self, key, peers):
        limit = ["limit us", "of it"] if key.ranks == 2 and key.memory == "symm" else []
        return ["bytes", "ours us", *[f"{p} us" for p in peers], "ratio", "pairs", "goal", *limit,
                "elsewhere us (ratio)"]

    def is_equal(self, strongest, goal):
        """Where no more is wanted: the pairs go both ways, and the middle one is near 1."""
        return (goal <= 1 and strongest["ratio_least"] <= 1 <= strongest["ratio_most"] and
                abs(strongest["ratio"] - 1) <= self.goals["noise"])

    def reason_below(self, row, goal):
        """What is said of a row below its goal; None: nothing is known."""
        if self.is_equal(row.strongest, goal):
            self.n_equal += 1
            return "equal within the spread of the pairs."
        is_slower = row.strongest["ratio"] < 1 - self.goals["noise"]
        reason = reason_of(self.limits, row.key, row.bytes, "slower" if is_slower else "ratio")
        self.n_unexplained += reason is None
        if not is_slower:
            return reason
        return (f"a peer is faster: {reason}" if reason else
                "a peer is faster, so the machine allows it: not explained yet.")

    def below(self, rows):
        """What is below its goal, and the limit that prevents it: sizes with one reason in one
        line."""
        reasons = {}
        for row in rows:
            goal, strongest = goal_of(self.goals, row.key, row.bytes), row.strongest
            share, least = self.share_of(row), self.goals["share"]
            if strongest and goal is not None:
                self.n_rows += 1
            if strongest and goal is not None and strongest["ratio"] < goal:
                self.n_below += 1
                reason = self.reason_below(row, goal)
                reasons.setdefault(("the goal", reason), []).append(row.bytes)
            if share and row.bytes >= least["from_bytes"] and share < least["least"]:
                reason = reason_of(self.limits, row.key, row.bytes, "share")
                reasons.setdefault((f"{100 * least['least']:.0f}% of the limit", reason),
                                   []).append(row.bytes)
        return "".join(
            f"- Below {what}: {', '.join(bytes_text(n) if n else 'all' for n in sizes)}: "
            f"{reason or 'not explained yet.'}\n" for (what, reason), sizes in reasons.items())

    def one_table(self, key):
        rows = [self.tables[key][n] for n in sorted(self.tables[key])]
        peers = [p for p in self.machine.get("peers", {}) if any(p in r.peers for r in rows)]
        out = table(self.head(key, peers), [self.cells(r, peers) for r in rows])
        wrong = sum(r.wrong for r in rows)
        if wrong:
            out += f"\n**{wrong} elements were wrong.**\n"
        below = self.below(rows)
        return out + ("\n" + below if below else "")

    # -- sections

    def plot_of(self, key, folder):
        rows = [r for n, r in sorted(self.tables[key].items()) if n and r.us > 0]
        if len(rows) < 2:
            return ""
        series = [("ours", [(r.bytes, r.us) for r in rows])]
        for peer in self.machine.get("peers", {}):
            points = [(r.bytes, r.peers[peer]["peer_us"]) for r in rows
                      if peer in r.peers and r.peers[peer]["peer_us"] > 0]
            series += [(peer, points)] if points else []
        limits = [(r.bytes, self.bytes_limits.us(key, r.bytes)) for r in rows]
        limits = [(n, us) for n, us in limits if us]
        series += [("byte limit", limits)] if limits else []
        name = f"speed-{key.op}{'-in-place' if key.in_place else ''}.svg"
        os.makedirs(folder, exist_ok=True)
        with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
            file.write(plot.svg(f"{title_of(key)}, {key.ranks} ranks with a core each, fp32, touched",
                                series))
        return f"![{title_of(key)}: time over bytes](images/{name})\n\n"

    def collectives(self, folder):
        out = ""
        for op, in_place in TITLES:
            keys = [Key(op, in_place, ranks, "symm") for ranks in (2, 4, 8)]
            if not any(key in self.tables for key in keys):
                continue
            out += f"### {title_of(keys[0])}\n\n"
            for key in keys:
                if key in self.tables:
                    out += self.plot_of(key, folder) if key.ranks == 2 else ""
                    out += f"{key.ranks} ranks:\n\n" + self.one_table(key) + "\n"
        return out

    def private(self):
        out = ""
        for op, in_place in TITLES:
            key = Key(op, in_place, 2, "private")
            if key in self.tables:
                out += f"{title_of(key)}, 2 ranks:\n\n" + self.one_table(key) + "\n"
        return "### Ordinary memory\n\n" + out if out else ""

    def mark(self, text, is_reached):
        """A figure that has a goal, bold where it is below."""
        self.n_rows += 1
        self.n_below += not is_reached
        self.n_unexplained += not is_reached and not self.reasons_of_part
        return text if is_reached else f"**{text}**"

    def explained(self, part, build):
        """A section, and under it what limits.json says of the part."""
        self.reasons_of_part = [r["reason"] for r in self.limits if r.get("part") == part]
        below = self.n_below
        text = build()
        if self.n_below > below:
            reasons = self.reasons_of_part or ["not explained yet."]
            text += "".join(f"- Below the goal (bold): {reason}\n" for reason in reasons) + "\n"
        return text

    def alone(self, part):
        return [line for line in self.lines if line["part"] == part and "op" in line]

    def over(self, us, fp32_us):
        ratio = us / fp32_us
        return self.mark(f"{ratio:.2f}", ratio < 1.0 + self.goals["noise"])

    def dtypes(self):
        rows = self.alone("dtypes")
        if not rows:
            return ""
        names = list(dict.fromkeys(r["dtype"] for r in rows))
        out = []
        for op, n in dict.fromkeys((r["op"], r["bytes"]) for r in rows):
            us = {r["dtype"]: r["time_us"] for r in rows if (r["op"], r["bytes"]) == (op, n)}
            out.append([op, bytes_text(n)] + [
                "-" if not us.get(d) or not us.get("fp32") else us_text(us[d]) if d == "fp32"
                else f"{us_text(us[d])} ({self.over(us[d], us['fp32'])})" for d in names])
        return ("### Types\n\nA reduction of as many bytes, us; in brackets over fp32's.\n\n" +
                table(["op", "bytes", *names], out) + "\n")

    def gain(self, ratio, least):
        return self.mark(f"{ratio:.2f}", ratio >= least)

    def wires(self):
        rows = self.alone("wire")
        if not rows:
            return ""
        names = list(dict.fromkeys(r.get("wire", "full") for r in rows))
        out = []
        full = [r for r in rows if r["dtype"] == "fp32" and "wire" not in r]
        for base in full:
            op, n = base["op"], base["bytes"]
            us = {r.get("wire", "full"): r["time_us"] for r in rows
                  if (r["op"], r["bytes"], r["dtype"]) == (op, n, "fp32")}
            half = next((r["time_us"] for r in rows
                         if (r["op"], r["bytes"], r["dtype"]) == (op, n // 2, "fp16")), None)
            out.append([op, str(n // 4)] + [
                us_text(us[w]) + (f" ({self.gain(base['time_us'] / us[w], 1.0)})" if w != "full" else "")
                if us.get(w) else "-" for w in names] +
                [us_text(half) + (f" ({self.gain(half / us['fp16'], 0.9)})" if us.get("fp16") else "")
                 if half else "-"])
        return ("### Low precision on the wire\n\nfp32 reductions, us; in brackets the time of the "
                "full precision over it. Last the fp16 call of as many elements, in brackets over "
                "that of the fp16 wire: its bandwidth is reached from 0.9 on.\n\n" +
                table(["op", "elements", *names, "fp16 call"], out) + "\n")

    def over_plain(self, line):
        """A signal within 1.2 times the plain one, put and get within 5% of a plain copy."""
        over = line.get("over_plain")
        most = 1.2 if line["op"] == "signal" else 1.05
        return self.mark(f"{over:.2f}", over <= most) if over else "-"

    def one_sided(self):
        rows = self.alone("one_sided")
        if not rows:
            return ""
        out = [[r["op"], bytes_text(r["bytes"] if r["dtype"] else 8), us_text(r["time_us"]),
                us_text(r.get("plain_us")), self.over_plain(r)] for r in rows]
        return ("### put, get, signal\n\nBeside plain means on the same memory, in turns: memcpy; a "
                "word that is stored and spun on. A signal is half a round trip.\n\n" +
                table(["op", "bytes", "us", "plain us", "over"], out) + "\n")

    def kernels(self):
        lines = [line["text"].rstrip() for line in self.lines if line["part"] == "kernels"]
        return ("### Kernels\n\nThe loops alone, on one core, 16 KiB of each operand: bytes of the "
                "output a second, of 2 and of 4 inputs, for each instruction set that this processor "
                "has, the one in use first. Conversions: bytes of the wider side. The same run holds "
                "every one of them to the plain loop, special values included.\n\n```\n" +
                "\n".join(lines).strip() + "\n```\n\n") if lines else ""

    def head_of_page(self):
        m, peers = self.machine.get("machine", {}), self.machine.get("peers", {})
        caches = ", ".join(f"L{c['level']} {bytes_text(c['bytes'])}" for c in m.get("caches", [])
                           if c.get("type") != "Instruction")
        rows = [["machine", f"{m.get('processor')}, {m.get('cores_allowed')} cores, {caches}"],
                ["kernel", str(m.get("kernel"))],
                ["huge pages", "our symmetric memory: " +
                 ("yes" if m.get("huge_pages_for_symmetric_memory") else "no") +
                 f", shared memory of others: {m.get('huge_pages_for_shared_memory')}"],
                ["library", str(self.machine.get("library", {}).get("built_with"))],
                ["measured", str(self.machine.get("date")) +
                 (", a quick run" if self.machine.get("quick") else "")]]
        rows += self.line_times()
        rows += [[name, version] for name, version in peers.items()]
        rows += [[name, "does not run here: " + why.replace("|", "/")]
                 for name, why in self.machine.get("refusals", {}).items()]
        rows += [[name, "left out of this run"] for name in self.machine.get("known", [])
                 if name not in peers and name not in self.machine.get("refusals", {})]
        return table(["what", "which"], rows) + "\n"

    def failures(self):
        lines = [f"- `{line['command']}`: {line['failed']}\n" for line in self.failed]
        return "### What did not run\n\n" + "".join(lines) + "\n" if lines else ""

    def line_times(self):
        """As they were before each run: cores may be moved meanwhile."""
        jobs = {line["command"]: line["line_us"][0] for line in self.lines if line.get("line_us")}
        clusters = []
        for us in sorted(jobs.values()):
            if not clusters or us > again.OTHER_LINE * clusters[-1][0]:
                clusters.append([])
            clusters[-1].append(us)
        text = ", ".join(f"{statistics.median(c):.2f} us ({len(c)} runs)" for c in clusters)
        return [["a word from core to core", text]] if text else []

    def the_same_again(self):
        rows = again.twice(self.tables, self.tables_again)
        n_rows = sum(row.strongest is not None for t in self.tables.values() for row in t.values())
        return again.text(rows, n_rows, self.machine.get("again", "?"),
                          lambda key, n: goal_of(self.goals, key, n), title_of,
                          lambda n: bytes_text(n) if n else "-", table)

    def page(self, folder):
        body = self.collectives(folder) + self.private()
        body += (self.explained("dtypes", self.dtypes) + self.explained("wire", self.wires) +
                 self.explained("one_sided", self.one_sided))
        equal = f", {self.n_equal} of them equal within the spread" if self.n_equal else ""
        unexplained = f", {self.n_unexplained} not explained yet" if self.n_unexplained else ""
        summary = (f"{self.n_rows} rows have a goal; {self.n_rows - self.n_below} reach it, "
                   f"{self.n_below} are below{equal}{unexplained}.\n\n")
        return (self.head_of_page() + summary + body + self.kernels() + self.the_same_again() +
                self.failures())


def load_folder(folder):
    """All rows but the machine's."""
    return [line for name in sorted(glob.glob(os.path.join(folder, "*.jsonl")))
            if os.path.basename(name) != "machine.jsonl" for line in load_lines(name)]


def with_collectives(text, folder, machine, path):
    """The page with everything between its two markers anew."""
    lines = [line for line in load_folder(folder) if line["part"] != "fused"]
    lines_again = load_folder(os.path.join(folder, again.FOLDER))
    reference = load_lines(os.path.join(HERE, "reference.jsonl"))
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        print(f"bench: expected {path} to hold {BEGIN} and {END} once each", file=sys.stderr)
        sys.exit(1)
    images = os.path.join(os.path.dirname(path) or ".", "images")
    inside = Writer(lines, lines_again, reference, machine).page(images)
    before, after = text.split(BEGIN)[0], text.split(END)[1]
    return before + BEGIN + "\n\n" + inside + END + after


def write(folder, path, fused_alone=False):
    """fused_alone: nothing but the tables of fused.py."""
    kept = os.path.join(folder, "machine.jsonl")
    machine = load_lines(kept)[0] if os.path.exists(kept) else {}
    with open(path, encoding="utf-8") as file:
        text = file.read()
    if not fused_alone:
        text = with_collectives(text, folder, machine, path)
    text = fused.write(text, fused.Section(load_folder(folder), load_limits(), machine, table))
    with open(path + ".tmp", "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(path + ".tmp", path)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        print("usage: page.py FOLDER PAGE", file=sys.stderr)
        sys.exit(2)
    write(sys.argv[1], sys.argv[2])
