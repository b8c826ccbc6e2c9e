# SPDX-License-Identifier: Apache-2.0
"""test_style.py - every file of the package and its tests as ruff.toml wants it."""

import subprocess
import sys

import pytest
import ranks


def run(*command):
    return subprocess.run(command, cwd=ranks.ROOT, text=True, capture_output=True)


def test_ruff():
    if run(sys.executable, "-m", "ruff", "--version").returncode:
        pytest.skip("no ruff here: make python-test installs it")
    files = run("git", "ls-files", "python/*.py", "tests/python/*.py").stdout.split()
    assert len(files) > 10
    done = run(sys.executable, "-m", "ruff", "check", *files)
    assert done.returncode == 0, done.stdout
