#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""weaken.py - is every release and acquire needed, and would a test notice if it were missing?

usage: tools/weaken.py BUILD [--list] [--all] [--sample N] [TEXT...]

In a copy of the tree, built with ThreadSanitizer, each access of src/{world,symm,coll,stream,trace}
that names an order is weakened to relaxed in turn (acq_rel to each of its halves), one object is
compiled and the tests of its room run with ranks as threads, until one of them notices: a data race
that ThreadSanitizer reports, or a test that fails or does not end. An access whose order is of no
data, or which another one repeats, stands in tools/weaken.allow with the reason and is passed over
(--all tries it too). With TEXT, only accesses whose "file:line: text" holds one of them; with
--sample, N of them, spread evenly. Ends with "N passed, N failed"; a row of the allow file that
matches nothing is a failure too. What no sanitizer sees, the order of two different words that the
sleep protocol needs, is shown by the models in tests/protocol.
"""

import argparse
import glob
import os
import re
import shutil
import subprocess
import sys
import time

ROOMS = ("world", "symm", "coll", "stream", "trace")
COPIED = ("CMakeLists.txt", "cmake", "data", "examples", "include", "models", "plugins", "programs",
          "src", "tests", "tools")
ORDER = re.compile(r"memory_order_(release|acquire|acq_rel|seq_cst)\b")
WEAKER = {"release": ("relaxed",), "acquire": ("relaxed",), "seq_cst": ("relaxed",),
          "acq_rel": ("acquire", "release")}
# Tests that run for a room beside test_order_* and its own test_ROOM*, dearest last.
MORE = {
    "world": ("unit/test_start", "unit/test_symm"),
    "symm": ("unit/test_world",),
    "coll": ("conformance/test_mailbox", "conformance/test_coll_misuse"),
    "stream": ("unit/test_queue", "unit/test_fsdp_overlap"),
    "trace": ("unit/test_stream",),
}
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


class Site:
    """One line of source that names an order, and one way to weaken it."""

    def __init__(self, path, number, line, weaker):
        self.path, self.number, self.line, self.weaker = path, number, line, weaker
        self.room = path.split("/")[1]
        self.text = line.strip()

    def __str__(self):
        return f"{self.path}:{self.number}: {self.text} -> {self.weaker}"

    def weakened(self):
        return ORDER.sub(f"memory_order_{self.weaker}", self.line)


def find_sites():
    sites = []
    for room in ROOMS:
        folder = os.path.join(ROOT, "src", room)
        for path in sorted(glob.glob(f"{folder}/**/*.[ch]", recursive=True)):
            with open(path, encoding="utf-8") as file:
                for number, line in enumerate(file, 1):
                    found = ORDER.search(line)
                    for weaker in WEAKER[found.group(1)] if found else ():
                        sites.append(Site(os.path.relpath(path, ROOT), number, line, weaker))
    return sites


def read_allowed():
    """Rows 'PATH: TEXT' with an indented reason below."""
    rows = []
    with open(os.path.join(ROOT, "tools/weaken.allow"), encoding="utf-8") as file:
        for line in file:
            if line.startswith("#") or not line.strip():
                continue
            if line.startswith(" "):
                rows[-1]["reason"] += line.strip() + " "
            else:
                path, text = line.rstrip("\n").split(": ", 1)
                rows.append({"path": path, "text": text, "reason": "", "n": 0})
    for row in rows:
        if not row["reason"]:
            sys.exit(f"weaken: expected a reason below {row['path']}: {row['text']}")
    return rows


def allowance_of(site, rows):
    found = None
    for row in rows:
        if row["path"] == site.path and row["text"] in site.text:
            row["n"] += 1
            found = row
    return found


def tests_of(room):
    names = sorted(os.listdir(os.path.join(ROOT, "tests/unit")))
    own = [f"unit/{name[:-2]}" for begin in ("test_order_", f"test_{room}") for name in names
           if name.startswith(begin) and name.endswith(".c") and not name.endswith("_full.c")]
    wanted = dict.fromkeys(own + list(MORE[room]))
    return [t for t in wanted if os.path.exists(os.path.join(ROOT, f"tests/{t}.c"))]


class Tree:
    """The copy, and its build."""

    def __init__(self, build):
        self.root = os.path.join(build, "weaken/tree")
        self.build_folder = os.path.join(build, "weaken/build")
        self.seconds = {}
        for name in COPIED:
            source, copy = os.path.join(ROOT, name), os.path.join(self.root, name)
            if os.path.isdir(source):
                # what has not changed keeps its time, and its object
                for folder, _, files in os.walk(source):
                    below = os.path.join(copy, os.path.relpath(folder, source))
                    os.makedirs(below, exist_ok=True)
                    for stale in set(os.listdir(below)) - set(os.listdir(folder)):
                        gone = os.path.join(below, stale)
                        shutil.rmtree(gone) if os.path.isdir(gone) else os.remove(gone)
                    for file in files:
                        copy_changed(os.path.join(folder, file), os.path.join(below, file))
            else:
                os.makedirs(self.root, exist_ok=True)
                copy_changed(source, copy)

    def build(self, tests):
        targets = [t.replace("/", "_") for t in tests]
        command = ["tools/build.sh", self.build_folder, "-DHP_SANITIZE=thread", "--", *targets]
        done = subprocess.run(command, cwd=self.root, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, check=False, text=True)
        if done.returncode:
            sys.exit(f"weaken: the copy does not build:\n{done.stdout}")

    def run(self, test):
        """What a test says: None when it is content, else what it noticed."""
        program = os.path.join(self.build_folder, "tests", test)
        environment = dict(os.environ, TSAN_OPTIONS="halt_on_error=1:exitcode=66")
        limit = 10 * self.seconds[test] + 20 if test in self.seconds else 600
        begin = time.monotonic()
        process = subprocess.Popen([program], cwd=self.root, env=environment, text=True,
                                   errors="replace", stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT, start_new_session=True)
        try:
            said, _ = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            process.communicate()
            return f"{test} does not end"
        self.seconds.setdefault(test, time.monotonic() - begin)
        if "ThreadSanitizer: data race" in said:
            return f"ThreadSanitizer in {test}"
        if process.returncode:
            failed = re.search(r"\[  FAILED  \] (?!\d)(\S+)", said)
            self.said = said
            return f"{test} fails{' in ' + failed.group(1) if failed else ''}"
        return None

    def write(self, site, line):
        path = os.path.join(self.root, site.path)
        with open(path, encoding="utf-8") as file:
            lines = file.readlines()
        lines[site.number - 1] = line
        with open(path, "w", encoding="utf-8") as file:
            file.writelines(lines)

    def try_site(self, site):
        self.write(site, site.weakened())
        try:
            for test in tests_of(site.room):
                self.build([test])
                noticed = self.run(test)
                if noticed:
                    return noticed
        finally:
            self.write(site, site.line)
        return None


def copy_changed(source, copy):
    with open(source, "rb") as file:
        wanted = file.read()
    try:
        with open(copy, "rb") as file:
            if file.read() == wanted:
                return
    except FileNotFoundError:
        pass
    shutil.copyfile(source, copy)
    shutil.copymode(source, copy)


def sample(sites, n):
    return [sites[i * len(sites) // n] for i in range(n)] if n and n < len(sites) else sites


def main():
    parser = argparse.ArgumentParser(usage=__doc__.split("\n")[2][len("usage: "):])
    parser.add_argument("build")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--sample", type=int, default=0)
    parser.add_argument("text", nargs="*")
    arguments = parser.parse_args()
    rows, sites = read_allowed(), find_sites()
    allowed = {site: allowance_of(site, rows) for site in sites}
    n_failed = 0
    for row in rows:
        if not row["n"]:
            print(f"no such access, take it out of tools/weaken.allow: {row['path']}: {row['text']}")
            n_failed += 1
    sites = [s for s in sites if not arguments.text or any(t in str(s) for t in arguments.text)]
    if not arguments.all and not arguments.list:
        for site in sites:
            if allowed[site]:
                print(f"allowed  {site}\n         {allowed[site]['reason']}")
        sites = sample([s for s in sites if not allowed[s]], arguments.sample)
    if arguments.list:
        print("\n".join(f"{'allowed ' if allowed[s] else ''}{s}" for s in sites))
        return n_failed > 0
    tree = Tree(os.path.abspath(arguments.build))
    tests = dict.fromkeys(t for s in sites for t in tests_of(s.room))
    tree.build(tests)
    for test in tests:
        noticed = tree.run(test)
        if noticed:
            sys.exit(f"weaken: expected all tests to pass before anything is weakened: {noticed}")
    n_passed = 0
    for site in sites:
        begin = time.monotonic()
        noticed = tree.try_site(site)
        took = f"({time.monotonic() - begin:.0f} s)"
        if noticed:
            print(f"caught   {site}\n         {noticed} {took}", flush=True)
            n_passed += 1
        elif allowed[site]:
            print(f"allowed  {site}\n         {allowed[site]['reason']}{took}", flush=True)
        else:
            print(f"MISSED   {site}\n         by {', '.join(tests_of(site.room))} {took}", flush=True)
            n_failed += 1
    print(f"{n_passed} passed, {n_failed} failed")
    return n_failed > 0


if __name__ == "__main__":
    sys.exit(main())
