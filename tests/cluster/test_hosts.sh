#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# The two hosts themselves: each has its name and hears the other, the link keeps to its rate, nothing
# passes while it is cut, all that runs on a host dies with it, and none of it is left afterwards.
# Runs inside `tools/cluster.sh with`.
set -euo pipefail
cluster=tools/cluster.sh

fail() {
    echo "test_hosts: $*" >&2
    exit 1
}

# Does a connection from a to b come up within a second?
is_joined() {
    rm -f "$HP_CLUSTER/listens"
    $cluster on b timeout 5 bash -c 'exec -a listener python3 -c "
import socket
s = socket.create_server((\"\", 7777))
print(flush=True)
s.accept()"' >"$HP_CLUSTER/listens" &
    local listener=$! status=0
    for _ in $(seq 60); do
        [ ! -s "$HP_CLUSTER/listens" ] || break
        sleep 0.05
    done
    $cluster on a timeout 1 bash -c 'exec 3<>/dev/tcp/hpb/7777' 2>/dev/null || status=1
    kill $listener 2>/dev/null || true
    wait $listener 2>/dev/null || true
    return $status
}

[ "$($cluster on a hostname) $($cluster on b hostname)" = "hpa hpb" ] || fail "expected a name for each"
is_joined || fail "expected host b to answer"
$cluster cut
! is_joined || fail "expected nothing to pass through a link that is cut"
$cluster mend
sleep 0.2
is_joined || fail "expected host b to answer again"

if command -v iperf3 >/dev/null; then
    $cluster rate 100mbit
    $cluster on b iperf3 -s -1 >/dev/null &
    sleep 0.3
    rate=$($cluster on a iperf3 -c hpb -t 1 -f m | awk '/receiver/ { print $(NF - 2) }')
    awk -v rate="$rate" 'BEGIN { exit !(rate > 60 && rate < 105) }' || fail "expected 100 Mbit/s, given $rate"
fi

$cluster on b sleep 60 2>/dev/null &
sleeper=$!
sleep 0.2
$cluster kill b
status=0
wait $sleeper || status=$?
[ $status -eq 137 ] || fail "expected what runs on host b to be killed, it ended with $status"

# hosts of another run, taken away when it is interrupted
# shellcheck disable=SC2016 # of the inner run
$cluster with bash -c 'echo "$HP_CLUSTER"; cat "$HP_CLUSTER/a" "$HP_CLUSTER/b"; sleep 30' >"$HP_CLUSTER/inner" &
inner=$!
for _ in $(seq 100); do
    [ "$(wc -l <"$HP_CLUSTER/inner")" -lt 3 ] || break
    sleep 0.05
done
kill -TERM $inner
wait $inner || true
{
    read -r folder
    while read -r process; do
        [ ! -d "/proc/$process" ] || fail "expected process $process of an interrupted run to be gone"
    done
} <"$HP_CLUSTER/inner"
[ ! -d "$folder" ] || fail "expected $folder to be gone"
