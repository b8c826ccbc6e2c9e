#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Every release and acquire of the library, weakened in turn, is noticed: tools/weaken.py.
set -euo pipefail
exec tools/weaken.py "$1"
