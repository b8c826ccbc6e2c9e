# SPDX-License-Identifier: Apache-2.0
"""test_style.py - every file of the package and its tests as ruff.toml wants it."""

import shutil
import subprocess
import sys

import pytest
import ranks


def test_ruff():
    if subprocess.run([sys.executable, "-m", "ruff", "--version"], capture_output=True).returncode:
        pytest.skip("no ruff here: make python-test installs it")
    git = shutil.which("git")
    files = subprocess.run([git, "ls-files", "python", "tests/python"], cwd=ranks.ROOT, check=True, text=True,
                           capture_output=True).stdout.split()
    files = [file for file in files if file.endswith(".py")]
    done = subprocess.run([sys.executable, "-m", "ruff", "check", *files], cwd=ranks.ROOT, text=True,
                          capture_output=True)
    assert done.returncode == 0, done.stdout
