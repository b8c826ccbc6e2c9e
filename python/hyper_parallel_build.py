# SPDX-License-Identifier: Apache-2.0
"""hyper_parallel_build.py - what the package needs of the C library, made from its public headers.

usage: hyper_parallel_build.py ABI          writes ABI, the module hyper_parallel._abi

The headers are the only description of the library there is: cffi gets the declarations that the
preprocessor leaves of them, and the HP_..._INIT macros, which only a compiler understands, become
the bytes that a small program prints. Nothing is compiled into the package; _abi.py is plain text.
"""

import os
import re
import subprocess
import sys
import tempfile

import cffi

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
INCLUDE = os.path.join(ROOT, "include")
MAIN = os.path.join(INCLUDE, "hyperparallel", "hyperparallel.h")
CC = os.environ.get("CC", "cc")


def declarations():
    """The declarations of all public headers, without what system headers declare."""
    with tempfile.TemporaryDirectory() as empty:
        for name in ("stddef.h", "stdint.h"):
            open(os.path.join(empty, name), "w").close()
        text = subprocess.run(
            [CC, "-E", "-P", "-nostdinc", "-D__attribute__(x)=", "-I", empty, "-I", INCLUDE, MAIN],
            check=True, capture_output=True, text=True).stdout
    return "\n".join(line for line in text.splitlines() if not line.startswith("#"))


def initial_values():
    """{struct: its bytes as HP_..._INIT has them}, and {name: number} of the version."""
    names = []
    folder = os.path.join(INCLUDE, "hyperparallel")
    for header in sorted(os.listdir(folder)):
        with open(os.path.join(folder, header)) as lines:
            names += re.findall(r"#define HP_(\w+)_INIT\b", lines.read())
    body = "".join(
        f'{{ hp_{name.lower()} v = HP_{name}_INIT; show("hp_{name.lower()}", &v, sizeof v); }}\n'
        for name in names)
    program = f"""
#include <hyperparallel/hyperparallel.h>
#include <stdio.h>
static void show(const char *name, const void *bytes, size_t n) {{
    printf("%s ", name);
    for (size_t i = 0; i < n; i++)
        printf("%02x", ((const unsigned char *)bytes)[i]);
    printf("\\n");
}}
int main(void) {{ {body} printf("version %d\\n", HP_VERSION_NUMBER); return 0; }}
"""
    with tempfile.TemporaryDirectory() as folder:
        source, binary = os.path.join(folder, "show.c"), os.path.join(folder, "show")
        with open(source, "w") as out:
            out.write(program)
        subprocess.run([CC, "-I", INCLUDE, source, "-o", binary], check=True)
        lines = subprocess.run([binary], check=True, capture_output=True, text=True).stdout
    rows = dict(line.split() for line in lines.splitlines())
    return int(rows.pop("version")), rows


def write_abi(path):
    version, values = initial_values()
    ffi = cffi.FFI()
    ffi.cdef(declarations())
    ffi.set_source("hyper_parallel._abi", None)
    new = path + ".new"  # whoever imports it meanwhile has the old one
    ffi.emit_python_code(new)
    with open(new, "a") as out:
        out.write(f"\nVERSION = {version}\nINITIAL = {{\n")
        for name, value in values.items():
            out.write(f'    "{name}": bytes.fromhex("{value}"),\n')
        out.write("}\n")
    os.replace(new, path)


if __name__ == "__main__":
    write_abi(sys.argv[1])
