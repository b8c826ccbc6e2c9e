#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# `./make train`: the same as `make train`, where not even make is installed yet.
set -e
"$(dirname "$0")/tools/setup.sh" make
exec make -C "$(dirname "$0")" --no-print-directory "$@"
