#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# check_trace.sh - is this a Chrome trace? JSON, and on each (pid, tid) every begin has its end, in
# the order of a stack, at times that never run backwards.
#
# usage: tools/check_trace.sh FILE...
set -euo pipefail

for file in "$@"; do
    # shellcheck disable=SC2016 # jq's own variables
    spans=$(jq -e '
        def fail(text): error(text);
        [.traceEvents[] | select(.ph == "B" or .ph == "E")]
        | if length == 0 then fail("no spans") else . end
        | group_by([.pid, .tid])
        | map(reduce .[] as $e ({open: [], last: null, n: 0};
              if .last != null and $e.ts < .last then fail("time runs backwards at \($e)")
              elif $e.ph == "B" then .open += [$e.name] | .n += 1
              elif (.open | length) == 0 then fail("an end without its begin: \($e)")
              elif $e.name != null and $e.name != .open[-1] then fail("\($e) ends \(.open[-1])")
              else .open |= .[:-1] end
              | .last = $e.ts)
            | if .open != [] then fail("never ended: \(.open)") else .n end)
        | add' "$file") || { echo "$file: not a well-formed trace" >&2; exit 1; }
    echo "$file: $spans spans, each begin with its end"
done
