# SPDX-License-Identifier: Apache-2.0
"""_hprun.py - the command hprun of an installed package: this process becomes the C program."""

import os
import sys

PATH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bin", "hprun")


def main():
    os.execv(PATH, ["hprun", *sys.argv[1:]])
