# SPDX-License-Identifier: Apache-2.0
"""test_package.py - a wheel, in a fresh virtual environment, away from the tree, runs a job."""

import os
import subprocess
import sys
import zipfile

import ranks

PROGRAM = r"""
import os, sys
from hyper_parallel import HyperParallelError, world
from hyper_parallel._c import check, ffi, lib
assert not {"torch", "mindspore", "numpy"} & set(sys.modules), "only what is asked for is loaded"
from hyper_parallel import collectives
here = world.world()
assert collectives.split_group(split_ranks=[[1, 0]]).ranks == (1, 0)
word = ffi.new("int64_t *", here.rank + 1)
check(lib.hp_all_reduce(here.group.handle, word, word, 1, lib.HP_INT64, lib.HP_SUM))
assert word[0] == 3
engine = ffi.new("hp_matmul **")
check(lib.hp_matmul_open(sys.argv[1].encode(), 1, engine))
lib.hp_matmul_close(engine[0])
os.write(1, f"{os.path.dirname(world.__file__)}\n".encode())
"""


def test_wheel(tmp_path):
    env = {name: value for name, value in os.environ.items()
           if name not in ("PYTHONPATH", "HYPER_PARALLEL_LIBRARY")}
    env["HYPER_PARALLEL_BUILD"] = ranks.BUILD
    venv = tmp_path / "venv"

    def run(*command):
        done = subprocess.run(list(map(str, command)), env=env, cwd=tmp_path, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        assert done.returncode == 0, done.stdout
        return done.stdout

    run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", tmp_path,
        os.path.join(ranks.ROOT, "python"))
    wheel, = tmp_path.glob("*.whl")
    assert wheel.name.endswith(f"-py3-none-linux_{os.uname().machine}.whl")
    run(sys.executable, "-m", "venv", venv)
    run(venv / "bin" / "pip", "install", "-q", wheel)
    names = zipfile.ZipFile(wheel).namelist()
    engine = "onednn" if any("matmul_onednn.so" in name for name in names) else "plain"
    said = run(venv / "bin" / "hprun", "-n", 2, venv / "bin" / "python", "-c", PROGRAM, engine)
    places = said.split()
    assert len(places) == 2 and all(place.startswith(str(venv)) for place in places), said
