# SPDX-License-Identifier: Apache-2.0
#
# fused.py - fused products beside the separate form: what is measured of them, and its tables.
#
# A part of its own, with markers of its own in docs/performance.md: it is measured without peers, and
# written without touching the other tables. A row is one product: op, shape, tokens, ranks, dtype. Its
# ratio is the separate form's time over the fused one's, its share what the collective adds to the
# product. limits.json says what keeps rows below their goal ("part": "fused").
import re

BEGIN, END = "<!-- tools/bench/fused begins -->", "<!-- tools/bench/fused ends -->"

# What ranks cut is n, of matmul_rs k: hpperf knows the sizes, here they tell what a call costs.
SHAPES = {
    "ag_matmul": {"0.6b-kv": (1024, 1024), "0.6b-gate": (3072, 1024), "8b-kv": (1024, 4096),
                  "expert-gate": (768, 2048)},
    "matmul_rs": {"0.6b-o": (1024, 2048), "8b-o": (4096, 4096), "expert-down": (2048, 768)},
    "ag_weight_grad": {"0.6b-kv": (1024, 1024), "8b-kv": (1024, 4096), "expert-gate": (768, 2048)},
}
DELAYED = {"0.6b-kv": (512, 2048), "expert-gate": (512, 2048)}
FEW, MANY = (128, 512), (2048, 8192)  # tokens
RANKS, DTYPES = (2, 4, 8), ("fp32", "bf16")
MOST_FLOP = 70e9  # of a product: 0.3 s in fp32 on two cores

# A row reaches its goal from here on: never more than 2% slower, faster where the collective's share
# is above SHARE, and with a rank that comes late.
LEVEL, GAIN, SHARE, LATE = 0.98, 1.1, 0.15, 1.3
NOISE = 0.05


def fits_time(op, shape, tokens):
    n, k = SHAPES[op][shape]
    return 2.0 * tokens * n * k <= MOST_FLOP


def run_of(op, shapes, tokens, dtype, pairs, *more):
    return [op, "--shape", ",".join(shapes), "--tokens", ",".join(map(str, tokens)), "--dtype", dtype,
            "--pairs", str(pairs), *more]


def runs_of(op, dtype, is_quick):
    runs = [run_of(op, SHAPES[op], FEW, dtype, 3 if is_quick else 5)]
    for shape in [] if is_quick else SHAPES[op]:
        tokens = [t for t in MANY if fits_time(op, shape, t)]
        runs += [run_of(op, [shape], tokens, dtype, 3)] if tokens else []
    return runs


def all_jobs(job, is_quick):
    """job: of jobs.py."""
    out = [job("fused", f"fused-{op}-{ranks}-{dtype}", ranks, runs_of(op, dtype, is_quick))
           for op in SHAPES for dtype in DTYPES for ranks in RANKS]
    return out + [job("fused", f"fused-late-{ranks}", ranks,
                      [run_of("ag_matmul", [shape], tokens[:1] if is_quick else tokens, "fp32", 5,
                              "--delay") for shape, tokens in DELAYED.items()])
                  for ranks in RANKS]


# ---- the tables -------------------------------------------------------------------------------

def is_late(row):
    return "delay_us" in row


def goal_of(row):
    if is_late(row):
        return LATE
    return GAIN if row["collective_share"] > SHARE else LEVEL


def is_below(row):
    return row["ratio"] < goal_of(row)


def goes_both_ways(row):
    return goal_of(row) == LEVEL and row["ratio_least"] <= 1 <= row["ratio_most"]


def is_equal(row):
    """Where no more is wanted: the pairs go both ways, and the middle one is near 1."""
    return goes_both_ways(row) and abs(row["ratio"] - 1) <= NOISE


def cell(row):
    if not row:
        return "-"
    ratio = f"{row['ratio']:.2f}"
    ratio = f"**{ratio}**" if is_below(row) else ratio
    return ratio if is_late(row) else f"{ratio} ({100 * max(row['collective_share'], 0):.0f}%)"


def within(value, bounds):
    return not bounds or bounds[0] <= value <= bounds[1]


def reason_of(limits, row):
    """The first that fits, once the spread does not tell."""
    if is_equal(row):
        return "equal within the spread of the pairs"
    if goes_both_ways(row):
        return (f"undecided, its pairs lie from {row['ratio_least']:.2f} to {row['ratio_most']:.2f}: "
                "the host takes its time from one form and not from the other")
    for rule in limits:
        if (row["op"] in rule.get("ops", [row["op"]]) and row["ranks"] in rule.get("ranks", RANKS) and
                row["dtype"] == rule.get("dtype", row["dtype"]) and
                within(row["tokens"], rule.get("tokens")) and
                rule.get("late", False) == is_late(row) and
                (goal_of(row) == GAIN) == rule.get("gain", False)):
            return rule["reason"]
    return "not explained yet"


def name_of(row):
    return f"{row['shape']} {row['tokens']}, {row['ranks']} ranks, {row['dtype']}"


class Section:
    def __init__(self, lines, limits, machine, table):
        self.rows = [line for line in lines if line.get("part") == "fused" and "ratio" in line]
        self.failed = [line for line in lines if line.get("part") == "fused" and "failed" in line]
        self.limits = [rule for rule in limits if rule.get("part") == "fused"]
        self.machine, self.table = machine, table

    def find(self, rows, shape, tokens, ranks, dtype):
        return next((r for r in rows if (r["shape"], r["tokens"], r["ranks"], r["dtype"]) ==
                     (shape, tokens, ranks, dtype)), None)

    def below(self, rows):
        reasons = {}
        for row in filter(is_below, rows):
            reasons.setdefault(reason_of(self.limits, row), []).append(name_of(row))
        return "".join(f"- Below the goal: {'; '.join(names)}: {reason}.\n"
                       for reason, names in reasons.items())

    def one_table(self, rows, dtypes):
        keys = dict.fromkeys((r["shape"], r["tokens"]) for r in sorted(
            rows, key=lambda r: (list(SHAPES[r["op"]]).index(r["shape"]), r["tokens"])))
        first = self.find(rows, *next(iter(keys)), RANKS[0], dtypes[0])
        alone = "late us" if first and is_late(first) else "product us"
        out = []
        for shape, tokens in keys:
            base = self.find(rows, shape, tokens, RANKS[0], dtypes[0])
            us = base and (base["delay_us"] if is_late(base) else base["product_us"])
            out.append([shape, str(tokens), f"{us:.0f}" if us else "-"] +
                       [cell(self.find(rows, shape, tokens, ranks, dtype))
                        for dtype in dtypes for ranks in RANKS])
        head = ["shape", "tokens", alone] + [f"{d}, {n} ranks" for d in dtypes for n in RANKS]
        below = self.below(rows)
        return self.table(head, out) + "\n" + (below + "\n" if below else "")

    def left_out(self):
        names = [f"{op} {shape} {t}" for op in SHAPES for shape in SHAPES[op] for t in FEW + MANY
                 if not fits_time(op, shape, t)]
        return (f"Left out, since a product takes more than {MOST_FLOP / 1e9:.0f} GFLOP: "
                f"{', '.join(names)}.\n\n") if names else ""

    def summary(self):
        below = [row for row in self.rows if is_below(row)]
        n_equal = sum(map(is_equal, below))
        m = self.machine.get("machine", {})
        return (f"Measured {self.machine.get('date')} on {m.get('processor')}, "
                f"{m.get('cores_allowed')} cores. {len(self.rows)} rows; "
                f"{len(self.rows) - len(below)} reach their goal, {len(below)} are below"
                f"{f', {n_equal} of them equal within the spread' if n_equal else ''}.\n\n")

    def text(self):
        wrong = sum(row["wrong"] for row in self.rows)
        out = self.summary() + (f"**{wrong} elements were wrong.**\n\n" if wrong else "")
        for op in SHAPES:
            rows = [r for r in self.rows if r["op"] == op and not is_late(r)]
            out += f"### {op}\n\n" + self.one_table(rows, DTYPES) if rows else ""
        late = [row for row in self.rows if is_late(row)]
        if late:
            out += "### ag_matmul, one rank comes late\n\n" + self.one_table(late, DTYPES[:1])
        out += self.left_out()
        return out + "".join(f"- `{line['command']}`: {line['failed']}\n" for line in self.failed)


def write(text, section):
    """text: a page; what stands between the markers anew, where there are rows."""
    if not section.rows:
        return text
    before, after = re.escape(BEGIN), re.escape(END)
    return re.sub(f"{before}.*?{after}", lambda _: f"{BEGIN}\n\n{section.text()}{END}", text,
                  flags=re.DOTALL)
