#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
#
# run.py - measure everything that docs/performance.md shows, and write it.
#
# usage: tools/bench/run.py BUILD [--again] [--part NAME,...] [--quick] [--missing]
#                           [--peers NAME,...] [--before COMMAND] [--page FILE] [--no-page] [--list]
#
# Each job (jobs.py) leaves its rows in BUILD/bench/NAME.jsonl, whole or not at all, so a run may be
# interrupted and go on with --missing. What was measured before stays until its part is measured
# again. While a part has no rows at all the page is written to BUILD/bench instead. A peer that is
# not there, or cannot run, is said and left out. --again measures rows that there are a second time
# (again.py). Needs nothing but Python.
import argparse
import datetime
import glob
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import again  # noqa: E402
import jobs  # noqa: E402
import page  # noqa: E402

MOST_SECONDS = 120  # of one run of hpperf


def fail(text):
    print(f"bench: {text}", file=sys.stderr)
    sys.exit(1)


def parse():
    parser = argparse.ArgumentParser(description="Measure, and write docs/performance.md.")
    parser.add_argument("build", help="the build folder")
    parser.add_argument("--again", action="store_true",
                        help="each row a second time, beside its strongest peer: 2 minutes")
    parser.add_argument("--part", default="", help="these alone: " + ", ".join(jobs.parts()))
    parser.add_argument("--quick", action="store_true", help="fewer sizes and pairs: 3 minutes")
    parser.add_argument("--missing", action="store_true", help="only what has no rows yet")
    parser.add_argument("--peers", default="", help="these alone (default: all that run here)")
    parser.add_argument("--before", default="", help="a command put before each hprun")
    parser.add_argument("--page", default="docs/performance.md")
    parser.add_argument("--no-page", action="store_true", help="measure alone")
    parser.add_argument("--list", action="store_true", help="say what would be measured")
    options = parser.parse_args()
    options.part = [p for p in options.part.split(",") if p]
    for part in options.part:
        if part not in jobs.parts():
            fail(f"expected a part of {', '.join(jobs.parts())}, given {part}")
    return options


class Bench:
    def __init__(self, options):
        self.options = options
        self.bin = os.path.join(options.build, "bin")
        self.folder = os.path.join(options.build, "bench")
        for program in ("hprun", "hpperf", "hpinfo"):
            if not os.access(os.path.join(self.bin, program), os.X_OK):
                fail(f"expected {self.bin}/{program}, it is not built")
        self.n_cores = 0
        self.known = []
        os.makedirs(os.path.join(self.folder, again.FOLDER), exist_ok=True)

    def hpperf(self, ranks, arguments):
        """The JSON rows; else why there are none."""
        command = [*shlex.split(self.options.before), os.path.join(self.bin, "hprun"), "-n",
                   str(ranks), os.path.join(self.bin, "hpperf"), *arguments, "--json"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=MOST_SECONDS)
        except subprocess.TimeoutExpired:
            return [], f"no end within {MOST_SECONDS} s"
        rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        error = "" if done.returncode == 0 else (done.stderr.strip().splitlines() or ["?"])[0]
        return rows, error

    def known_peers(self):
        """The library's own list: hpperf names it where it refuses another name."""
        _, error = self.hpperf(2, ["barrier", "--beside", "?"])
        names = re.search(r"--beside to be one of ([a-z0-9, -]+?), given", error)
        if not names:
            fail(f"expected hpperf to name its peers, it said: {error}")
        return names.group(1).split(", ")

    def peers_here(self):
        """Those that run, and why the others do not."""
        known = self.known = self.known_peers()
        wanted = [p for p in self.options.peers.split(",") if p] or known
        for peer in wanted:
            if peer not in known:
                fail(f"expected peers of {', '.join(known)}, given {peer}")
        versions, refusals = {}, {}
        for peer in wanted:
            rows, error = self.hpperf(2, ["barrier", "--beside", peer, "--pairs", "1", "-n", "1"])
            if rows:
                versions[peer] = rows[0].get("peer_version", "")
            else:
                refusals[peer] = error
                print(f"bench: {peer} does not run here: {error}", flush=True)
        return versions, refusals

    def kept_machine(self):
        """Of the rows that stay from an earlier run."""
        try:
            with open(self.path("machine"), encoding="utf-8") as file:
                return json.loads(file.readline())
        except (OSError, ValueError):
            return {}

    def machine(self):
        said = subprocess.run([os.path.join(self.bin, "hpinfo"), "--json"], capture_output=True,
                              text=True).stdout
        return json.loads(said)

    def path(self, name):
        return os.path.join(self.folder, name + ".jsonl")

    def parts_without_rows(self):
        """Of the page; limits and kernels are no jobs, their absence takes no table away, and fused
        has markers of its own."""
        names = [name for name in os.listdir(self.folder) if name.endswith(".jsonl")]
        return [p for p in jobs.parts() if p not in ("limits", "kernels", "fused") and
                not any(name.startswith(p + "-") for name in names)]

    def write_page(self):
        """Where rows of some parts are missing the page would lose their tables: it stays, and what
        there is goes beside the rows."""
        path, missing = self.options.page, self.parts_without_rows()
        if self.options.part == ["fused"]:
            page.write(self.folder, path, fused_alone=True)
            print(f"bench: wrote {path}", flush=True)
            return
        if missing:
            path = os.path.join(self.folder, os.path.basename(path))
            shutil.copyfile(self.options.page, path)
            print(f"bench: no rows of {', '.join(missing)} yet: {self.options.page} stays as it was",
                  flush=True)
        page.write(self.folder, path)
        print(f"bench: wrote {path}", flush=True)

    def keep(self, name, rows):
        with open(self.path(name) + ".tmp", "w", encoding="utf-8") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)
        os.replace(self.path(name) + ".tmp", self.path(name))

    def line_us(self):
        """In which a word goes from one core to another now; [] where there is one core."""
        rows, _ = self.hpperf(2, ["--latency", "signal", "-n", "20"]) if self.n_cores > 1 else ([], "")
        return [row["plain_us"] for row in rows if row.get("plain_us")]

    def forget_again(self, job):
        """A second run of rows that are no more."""
        if job["peer"] and not job["name"].startswith(again.FOLDER):
            table = job["name"][:-len(job["peer"])]
            for path in glob.glob(os.path.join(self.folder, again.FOLDER, glob.escape(table) + "*")):
                os.remove(path)

    def measure(self, job):
        kept, before = [], self.line_us()
        for arguments in job["runs"]:
            rows, error = self.hpperf(job["ranks"], arguments)
            command = " ".join(["hprun -n", str(job["ranks"]), "hpperf", *arguments])
            line_us = before + self.line_us()
            kept += [dict(row, part=job["part"], command=command, line_us=line_us) for row in rows]
            if error:
                kept.append({"part": job["part"], "command": command, "peer": job["peer"],
                             "failed": error})
                print(f"bench: {command}: {error}", flush=True)
        self.keep(job["name"], kept)
        self.forget_again(job)

    def byte_limits(self):
        """What this machine allows; {} where it has one core."""
        program = os.path.join(self.options.build, "tools", "byte_limits")
        done = subprocess.run([*shlex.split(self.options.before), program], capture_output=True,
                              text=True)
        if done.returncode:
            print(f"bench: limits: {done.stderr.strip()}", flush=True)
            return {}
        return json.loads(done.stdout)

    def measure_kernels(self):
        """Every version of every kernel beside the plain loop: a test checks and times them."""
        test = os.path.join(self.options.build, "tests", "unit", "test_kernel_versions")
        if not os.path.exists(test):
            print(f"bench: kernels: {test} is not built", flush=True)
            return
        done = subprocess.run([*shlex.split(self.options.before), test],
                              capture_output=True, text=True)
        rows = [{"part": "kernels", "text": line} for line in done.stdout.splitlines()
                if not re.match(r"\[[ =A-Z]", line)]
        self.keep("kernels", rows)


    # -- what is measured

    def first_jobs(self):
        options = self.options
        needs_peers = not options.part or set(options.part) - jobs.ALONE
        versions, refusals = self.peers_here() if needs_peers else ({}, {})
        return jobs.all_jobs(list(versions), self.n_cores, options.quick), versions, refusals

    def second_jobs(self):
        tables = page.collect([line for line in page.load_folder(self.folder) if "op" in line])
        wanted = again.plan(tables, self.kept_machine().get("quick", False))
        if not wanted:
            fail(f"expected rows of a first run in {self.folder}, there are none")
        return wanted

    def run(self, wanted):
        options = self.options
        wanted = [j for j in wanted if not options.part or j["part"] in options.part]
        if options.missing:
            wanted = [j for j in wanted if not os.path.exists(self.path(j["name"]))]
        begin = time.monotonic()
        for i, job in enumerate(wanted):
            print(f"[{i + 1}/{len(wanted)}, {time.monotonic() - begin:.0f} s] {job['name']}",
                  flush=True)
            if not options.list:
                self.measure(job)

    def note_first(self, machine, versions, refusals):
        """Beside what stays of an earlier run; what stays of a quick one makes all of it one."""
        options, old = self.options, self.kept_machine()
        versions = {**old.get("peers", {}), **versions}
        refusals = {name: why for name, why in {**old.get("refusals", {}), **refusals}.items()
                    if name not in versions}
        limits = old.get("limits", {})
        if "limits" in (options.part or ["limits"]) or not (limits or options.part == ["fused"]):
            limits = self.byte_limits()
        is_quick = options.quick or (bool(options.part or options.missing) and
                                     old.get("quick", False))
        kept = {name: old[name] for name in ("again", "known") if name in old}
        self.keep("machine", [{**machine, **kept, "peers": versions, "refusals": refusals,
                               "quick": is_quick, "limits": limits,
                               "date": datetime.date.today().isoformat(),
                               **({"known": self.known} if self.known else {})}])

    def note_second(self):
        self.keep("machine", [dict(self.kept_machine(), again=datetime.date.today().isoformat())])

    def measure_all(self):
        options, machine = self.options, self.machine()
        self.n_cores = machine["machine"]["cores_allowed"] or 1
        if options.again:
            self.run(self.second_jobs())
        else:
            wanted, versions, refusals = self.first_jobs()
            self.run(wanted)
        if options.list:
            return
        if options.again:
            self.note_second()
        else:
            if not options.part or "kernels" in options.part:
                self.measure_kernels()
            self.note_first(machine, versions, refusals)
        if not options.no_page:
            self.write_page()


def main():
    options = parse()
    if not options.no_page and not os.path.exists(options.page):
        fail(f"expected {options.page} to be a page with the two markers of page.py")
    Bench(options).measure_all()


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        fail("interrupted; what was measured is kept, --missing goes on")
    except OSError as error:  # a full disk, a program that is not built
        fail(error)
