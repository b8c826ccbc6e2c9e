# SPDX-License-Identifier: Apache-2.0
"""setup.py - what pyproject.toml cannot say: the C library goes into the package.

cmake builds it (tools/build.sh) in a folder of its own, or, where HYPER_PARALLEL_BUILD names one,
in that build folder of this tree, so that nothing is compiled twice. The package then holds

    hyper_parallel/_abi.py                  the declarations, from the public headers
    hyper_parallel/lib/libhyperparallel.so.0
    hyper_parallel/lib/hyperparallel/       plug-ins, as far as what they need is on this machine
    hyper_parallel/bin/hprun

An editable install (pip install -e) puts the same beside the sources, where git ignores them. The
wheel is for this platform and Python 3.10 or later: nothing is compiled against Python.
"""

import os
import re
import shutil
import subprocess
import sys

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.dist import Distribution

try:
    from setuptools.command.bdist_wheel import bdist_wheel
except ImportError:  # setuptools below 70
    from wheel.bdist_wheel import bdist_wheel

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
sys.path.insert(0, HERE)

import hyper_parallel_build  # noqa: E402


def version():
    """Of the library: HP_VERSION_... of base.h."""
    with open(os.path.join(ROOT, "include", "hyperparallel", "base.h")) as header:
        numbers = re.findall(r"#define HP_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)", header.read())
    return ".".join(numbers)


def build_library(scratch):
    """The build folder that holds library, plug-ins and hprun, up to date."""
    given = os.environ.get("HYPER_PARALLEL_BUILD")
    folder = os.path.abspath(given or os.path.join(scratch, "cmake"))
    options = [] if given else ["-DBUILD_TESTING=OFF"]
    subprocess.run([os.path.join(ROOT, "tools", "build.sh"), folder, *options,
                    "--", "python_package"], check=True)
    return folder


def place(source, target):
    """A binary, without what debuggers read."""
    os.makedirs(os.path.dirname(target), exist_ok=True)
    shutil.copy(source, target + ".new")
    if shutil.which("strip"):
        subprocess.run(["strip", "--strip-debug", target + ".new"], check=True)
    os.replace(target + ".new", target)  # a running program keeps the one that it has


class BuildWithLibrary(build_py):
    def run(self):
        if not self.editable_mode:
            shutil.rmtree(self.build_lib, ignore_errors=True)  # modules that are gone
        super().run()
        scratch = self.get_finalized_command("build").build_temp
        package = os.path.join(HERE if self.editable_mode else self.build_lib, "hyper_parallel")
        hyper_parallel_build.write_abi(os.path.join(package, "_abi.py"))
        built = build_library(scratch)
        library = "libhyperparallel.so.0"
        place(os.path.join(built, library), os.path.join(package, "lib", library))
        place(os.path.join(built, "bin", "hprun"), os.path.join(package, "bin", "hprun"))
        plugins = os.path.join(built, "lib", "hyperparallel")
        shutil.rmtree(os.path.join(package, "lib", "hyperparallel"), ignore_errors=True)
        for name in os.listdir(plugins) if os.path.isdir(plugins) else []:
            place(os.path.join(plugins, name),
                  os.path.join(package, "lib", "hyperparallel", name))


class PlatformWheel(bdist_wheel):
    def get_tag(self):
        return "py3", "none", super().get_tag()[2]


class WithBinaries(Distribution):
    def has_ext_modules(self):
        return True


if not os.path.exists(os.path.join(ROOT, "CMakeLists.txt")):
    sys.exit(f"expected the C library's sources above {HERE}: build from the whole tree")
# Not beside the sources, where whoever has them in PYTHONPATH would read an old one.
os.makedirs(os.path.join(HERE, "build"), exist_ok=True)
setup(version=version(), distclass=WithBinaries, options={"egg_info": {"egg_base": "build"}},
      cmdclass={"build_py": BuildWithLibrary, "bdist_wheel": PlatformWheel})
