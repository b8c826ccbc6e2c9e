# SPDX-License-Identifier: Apache-2.0
#
# again.py - does a second run give the same ratios? `make bench-again`
#
# Each row is measured once more, beside the peer that was the strongest, with the same command but
# for the sizes. Every row that was measured twice is counted, whatever came out. Rows of the second
# run lie in FOLDER/again. What is known of a row that moved: before and behind each job run.py takes
# the time in which a word goes from one core to the other (line_us), which tells how far the cores are
# apart: on a virtual machine they may be moved, from one second to the next.
import statistics

import jobs

FOLDER = "again"
STEPS = [0.10, 0.25]
OTHER_LINE = 1.5  # times as long: the cores have another distance


def plan(tables, is_quick):
    """A job for each table and peer that is the strongest somewhere in it."""
    out = []
    for key, rows in tables.items():
        sizes = {}
        for n in sorted(rows):
            if rows[n].strongest:
                sizes.setdefault(rows[n].strongest["peer"], []).append(n)
        for peer, some in sizes.items():
            job = jobs.beside(key, peer, some, is_quick)
            out.append(dict(job, name=f"{FOLDER}/{job['name']}"))
    return out


def are_alike(times):
    return max(times) / min(times) < OTHER_LINE


def distance_text(times):
    """Before and behind a job."""
    return f"{times[0]:.2f}" if are_alike(times) else f"{times[0]:.2f} to {times[-1]:.2f}"


class Twice:
    """A row and both its lines of the peer that was the strongest in the first run."""

    def __init__(self, row, first, second):
        self.key, self.bytes, self.first, self.second = row.key, row.bytes, first, second

    @property
    def change(self):
        return self.second["ratio"] / self.first["ratio"]

    def is_within(self, share):
        return max(self.change, 1 / self.change) <= 1 + share

    def is_in_range(self):
        return self.first["ratio_least"] <= self.second["ratio"] <= self.first["ratio_most"]

    def ranges_meet(self):
        return (self.first["ratio_least"] <= self.second["ratio_most"] and
                self.second["ratio_least"] <= self.first["ratio_most"])

    def reach(self, goal):
        """Did they, the first and the second?"""
        return [goal is not None and line["ratio"] >= goal for line in (self.first, self.second)]

    def distances(self):
        """Of the cores, if not all were the same; else None."""
        first, second = self.first.get("line_us"), self.second.get("line_us")
        if not first or not second or are_alike(first + second):
            return None
        return f"a line took {distance_text(first)}, then {distance_text(second)} us"

    def why(self):
        ours = self.second["time_us"] / max(self.first["time_us"], 1e-3)
        theirs = self.second["peer_us"] / max(self.first["peer_us"], 1e-3)
        moved = f"ours took {ours:.2f}, the peer {theirs:.2f} times as long"
        meet = "the pairs of both runs overlap" if self.ranges_meet() else "not known"
        return f"{self.distances() or meet}; {moved}"


def twice(tables, tables_again):
    """Those that were measured again beside the same peer."""
    out = []
    for key, rows in tables.items():
        for n, row in sorted(rows.items()):
            again = tables_again.get(key, {}).get(n)
            first = row.strongest
            second = again.peers.get(first["peer"]) if again and first else None
            if second and second.get("ratio"):
                out.append(Twice(row, first, second))
    return out


def kind_of(key):
    return "ordinary memory" if key.memory == "private" else f"{key.ranks} ranks"


def counts(name, some, goal_of):
    return [name, str(len(some)), str(sum(t.is_in_range() for t in some)),
            *[str(sum(t.is_within(share) for t in some)) for share in STEPS],
            str(sum(not t.is_within(STEPS[-1]) for t in some)),
            str(sum(first != second for first, second in
                    (t.reach(goal_of(t.key, t.bytes)) for t in some)))]


def ratio_text(line):
    return f"{line['ratio']:.2f} ({line['ratio_least']:.2f} to {line['ratio_most']:.2f})"


def moved_row(t, title_of, size_text):
    return [title_of(t.key), kind_of(t.key), size_text(t.bytes), t.first["peer"],
            ratio_text(t.first), ratio_text(t.second), t.why()]


def share_text(changes, part):
    """What so large a part of the rows moved by at most."""
    moves = sorted(max(c, 1 / c) - 1 for c in changes)
    return f"{100 * moves[min(int(part * len(moves)), len(moves) - 1)]:.0f}%"


def summary(some, n_rows, date, goal_of):
    changes = [t.change for t in some]
    reach = [t.reach(goal_of(t.key, t.bytes)) for t in some]
    up, down = sum(c > 1 for c in changes), sum(c < 1 for c in changes)
    return (f"`make bench-again` measured {len(some)} of the {n_rows} rows a second time on {date}, "
            f"each beside the peer that was the strongest in the first run, and compares the two "
            f"ratios; no row is left out. Half of them moved by at most {share_text(changes, 0.5)}, "
            f"nine of ten by at most {share_text(changes, 0.9)}; the middle one is "
            f"{statistics.median(changes):.2f} times the first. (The strongest is the least of "
            f"several ratios, so what is noise in it is mostly low: {up} went up, {down} down. By the first "
            f"ratios {sum(first for first, _ in reach)} of these rows reach their goal, by the second "
            f"{sum(second for _, second in reach)}.)\n\n")


def counted(some, goal_of, table):
    kinds = list(dict.fromkeys(kind_of(t.key) for t in some))
    head = ["rows", "measured twice", "in the range of the first run's pairs",
            *[f"within {100 * share:.0f}%" for share in STEPS], "moved more",
            "on the other side of the goal"]
    return table(head, [counts(kind, [t for t in some if kind_of(t.key) == kind], goal_of)
                        for kind in kinds] + [counts("all", some, goal_of)]) + "\n"


def moved(some, title_of, size_text, table):
    far = [t for t in some if not t.is_within(STEPS[-1])]
    if not far:
        return ""
    other = sum(t.distances() is not None for t in far)
    meet = sum(t.distances() is None and t.ranges_meet() for t in far)
    head = ["op", "ranks", "bytes", "peer", "first ratio (pairs)", "second ratio (pairs)",
            "what is known"]
    return (f"Of the {len(far)} that moved by more than {100 * STEPS[-1]:.0f}%, {other} saw the cores "
            f"at more than one distance, {meet} did not but have pairs that overlap, and of "
            f"{len(far) - other - meet} nothing is known.\n\n" +
            table(head, [moved_row(t, title_of, size_text) for t in far]) + "\n")


def text(some, n_rows, date, goal_of, title_of, size_text, table):
    """The section; "" where nothing was measured again."""
    if not some:
        return ""
    return ("### The same again\n\n" + summary(some, n_rows, date, goal_of) +
            counted(some, goal_of, table) + moved(some, title_of, size_text, table))
