# SPDX-License-Identifier: Apache-2.0
"""ranks.py - functions of a test run on several ranks, and what came of it.

run(n, function or script, ...) starts n fresh ranks with hprun (or torchrun) and waits for them.
together(n, function, ...) uses ranks that stay for the next test, since starting PyTorch takes
seconds; when a function fails on one of them they are ended, and the next call starts others.
A function stands in a test file, by name; it and what it takes and returns travel by pickle. It is
told nothing: hyper_parallel.world knows who it is. A deadline ends whatever hangs.
"""

import atexit
import importlib.util
import os
import pickle
import subprocess
import sys
import tempfile
import traceback
from dataclasses import dataclass
from multiprocessing.connection import Client, Listener

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.path.abspath(os.environ.get("HYPER_PARALLEL_BUILD", os.path.join(ROOT, "build")))
HPRUN = os.path.join(BUILD, "bin", "hprun")
SECONDS = 60


@dataclass
class Results:
    """What came of a run. status: hprun's; values: by rank, what each returned, None where it did
    not; errors: by rank, the traceback as text or None; output: all that was printed."""

    status: int
    values: list
    errors: list
    output: str


def environment(extra=None):
    """This process's environment with the package in its path, and `extra`."""
    path = os.pathsep.join(filter(None, [os.path.join(ROOT, "python"),
                                         os.environ.get("PYTHONPATH", "")]))
    env = {"OMP_NUM_THREADS": "1", **os.environ, "PYTHONPATH": path}
    env.update({name: str(value) for name, value in (extra or {}).items()})
    return env


def _start(n, arguments, env, launcher, **options):
    if launcher == "torchrun":
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone",
                   f"--nproc-per-node={n}"]
    else:
        command = [HPRUN, "-n", str(n), sys.executable]
    return subprocess.Popen(command + arguments, env=environment(env), **options)


def _load(path, name):
    """The function of that name, of a test file that may be loaded already."""
    for module in list(sys.modules.values()):
        if getattr(module, "__file__", None) == path and hasattr(module, name):
            return getattr(module, name)
    module_name = os.path.splitext(os.path.basename(path))[0]
    sys.path.insert(0, os.path.dirname(path))
    spec = importlib.util.spec_from_file_location(module_name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    spec.loader.exec_module(module)
    return getattr(module, name)


def _place(function):
    return function.__code__.co_filename, function.__name__


def _attempt(path, name, arguments):
    """(value, None), or (None, the traceback as text)."""
    try:
        return _load(path, name)(*arguments), None
    except BaseException:
        return None, traceback.format_exc()


def run(n, program, *arguments, env=None, launcher="hprun", seconds=SECONDS):
    """Run a function of a test file, or a script's path with arguments, on n fresh ranks."""
    with tempfile.TemporaryDirectory() as folder:
        if callable(program):
            with open(os.path.join(folder, "call"), "wb") as out:
                pickle.dump((*_place(program), arguments), out)
            words = [os.path.abspath(__file__), "once", folder]
        else:
            words = [str(program), *map(str, arguments)]
        ranks = _start(n, words, env, launcher, text=True, stdout=subprocess.PIPE,
                       stderr=subprocess.STDOUT)
        try:
            output, _ = ranks.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            ranks.terminate()
            output, _ = ranks.communicate()
            raise AssertionError(f"{n} ranks have not ended in {seconds} s:\n{output}") from None
        came = [_result_of(folder, rank) for rank in range(n)]
    return Results(ranks.returncode, [c[0] for c in came], [c[1] for c in came], output)


def _result_of(folder, rank):
    try:
        with open(os.path.join(folder, f"rank{rank}"), "rb") as file:
            return pickle.load(file)
    except FileNotFoundError:
        return None, None


def values_of(n, function, *arguments, **options):
    """What n fresh ranks returned; AssertionError with what they said when one failed."""
    results = run(n, function, *arguments, **options)
    assert results.status == 0, "\n".join([results.output, *filter(None, results.errors)])
    return results.values


class _Pool:
    """n ranks that wait for functions to call."""

    def __init__(self, n):
        self.folder = tempfile.TemporaryDirectory()
        with Listener(os.path.join(self.folder.name, "socket"), "AF_UNIX") as listener:
            self.output = open(os.path.join(self.folder.name, "output"), "w+")
            self.ranks = _start(n, [os.path.abspath(__file__), "stay", listener.address], None,
                                "hprun", stdout=self.output, stderr=subprocess.STDOUT)
            listener._listener._socket.settimeout(SECONDS)
            pairs = [listener.accept() for _ in range(n)]
        self.channels = [c for _, c in sorted((c.recv(), c) for c in pairs)]

    def call(self, function, arguments, seconds):
        for channel in self.channels:
            channel.send((*_place(function), arguments))
        came = []
        for rank, channel in enumerate(self.channels):
            try:
                came.append(channel.recv() if channel.poll(seconds) else
                            (None, f"rank {rank} has not answered in {seconds} s"))
            except EOFError:
                came.append((None, f"rank {rank} has ended"))
        return came

    def close(self):
        for channel in self.channels:
            channel.close()
        try:
            self.ranks.wait(10)
        except subprocess.TimeoutExpired:
            self.ranks.terminate()
            self.ranks.wait()
        self.output.seek(0)
        text = self.output.read()
        self.output.close()
        self.folder.cleanup()
        return text


_pools = {}


def together(n, function, *arguments, seconds=SECONDS):
    """What each of n ranks returned of function(*arguments); AssertionError when one failed."""
    if n not in _pools:
        _pools[n] = _Pool(n)
    came = _pools[n].call(function, arguments, seconds)
    errors = [error for _, error in came if error]
    if errors:
        said = _pools.pop(n).close()
        raise AssertionError("\n".join([*errors, said]))
    return [value for value, _ in came]


@atexit.register
def _close_all():
    while _pools:
        _pools.popitem()[1].close()


def _once(folder):
    with open(os.path.join(folder, "call"), "rb") as file:
        result = _attempt(*pickle.load(file))
    with open(os.path.join(folder, f"rank{os.environ['RANK']}"), "wb") as out:
        pickle.dump(result, out)
    sys.exit(1 if result[1] else 0)


def _stay(address):
    with Client(address, "AF_UNIX") as channel:
        channel.send(int(os.environ["RANK"]))
        while True:
            try:
                call = channel.recv()
            except EOFError:
                return
            channel.send(_attempt(*call))


if __name__ == "__main__":
    {"once": _once, "stay": _stay}[sys.argv[1]](sys.argv[2])
