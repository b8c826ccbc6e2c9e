#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# hpreport's page in a browser: it opens without an error and asks for nothing, shows the figures of
# --json, answers to wheel and keys, and looks like something: colours are counted in a screenshot.
# 8 ranks x 1,000 steps, a million spans, are drawn in a number of operations that goes with pixels.
set -euo pipefail
build=$1
hpreport=$build/bin/hpreport
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT

fail() {
    echo "test_hpreport_page: $*" >&2
    exit 1
}

browser=$(command -v chromium || command -v chromium-browser || command -v google-chrome || true)
if [ -z "$browser" ] || ! command -v python3 >/dev/null; then
    [ -z "${CI:-}" ] || fail "needs chromium and python3"
    echo "skipped: needs chromium and python3 (tools/setup.sh browser)"
    exit 77
fi

# browse NAME ARGUMENT...: in a profile of its own; what the page says on its console goes to
# NAME.err, what was asked of the network to NAME.net.
browse() {
    local name=$1
    shift
    timeout 50 "$browser" --headless --no-sandbox --disable-gpu --disable-dev-shm-usage --no-first-run \
        --disable-background-networking --disable-extensions --host-resolver-rules="MAP * ~NOTFOUND" \
        --user-data-dir="$out/profile" --window-size=1200,2500 --hide-scrollbars \
        --enable-logging=stderr --log-net-log="$out/$name.net" "$@" 2>"$out/$name.err" ||
        fail "$name: the browser failed: $(tail -n 5 "$out/$name.err")"
}

# Requests of pages; the browser has its own, which go nowhere here.
requests() { # NAME
    grep -oE '"site_for_cookies":"[^"]*file:[^"]*","url":"(https?|wss?|ftp):[^"]*"' "$out/$1.net"
}

# Nothing on the console, where blocked requests would be told, and no request but for the file itself.
check_quiet() { # NAME
    ! grep CONSOLE "$out/$1.err" || fail "$1: expected nothing on the console"
    ! requests "$1" || fail "$1: expected no request"
}

value() { # NAME KEY: data-KEY of the root element
    sed -n 's/.*<html[^>]* data-'"$2"'="\([^"]*\)".*/\1/p' "$out/$1.html" | head -n 1
}

# traces FOLDER RANKS STEPS [differ]: the ranks are the same but for their number, unless told to
# differ; then the first step is a slow one, too
traces() {
    mkdir -p "$1"
    local r slow=()
    [ "${4:-}" != differ ] || slow=(-v slow=0)
    for r in $(seq 0 $(($2 - 1))); do
        if [ "$r" -eq 0 ] || [ "${4:-}" = differ ]; then
            awk -v rank="$r" -v steps="$3" "${slow[@]}" -f tests/cli/hpreport_traces.awk >"$1/trace-$r.json"
        else
            sed "s/\"pid\":0/\"pid\":$r/" "$1/trace-0.json" >"$1/trace-$r.json"
        fi
    done
}

echo "== requests and errors of a page would be seen"
echo '<img src="http://example.invalid/x.png"><script>nothing.at.all</script>' >"$out/loud.html"
browse loud --dump-dom "file://$out/loud.html" >/dev/null
requests loud | grep -q example.invalid || fail "expected to see a request in the log of the network"
grep -q 'CONSOLE.*nothing is not defined' "$out/loud.err" || fail "expected to see an error on the console"

echo "== 4 ranks x 40 steps: the figures, and the keys"
traces "$out/small" 4 40 differ
cat >"$out/small/verdict.json" <<'JSON'
{"sound": true, "rule": "", "text": "", "ranks": 4, "steps": 3, "operations": 4321, "peak_bytes": 1000000,
 "bound_bytes": 1500000, "mode": "fused", "mesh": [2, 2], "schedule": "full", "prefetch": 1}
JSON
"$hpreport" "$out/small" >/dev/null
"$hpreport" --json "$out/small" >"$out/small.json"
# What a hand would do, after the page has started; each answer goes into an attribute.
cat >"$out/probe.txt" <<'HTML'
<script>
const say = (name, value) => { document.documentElement.dataset[name] = value; };
const canvas = document.getElementById("timeline"), box = canvas.getBoundingClientRect();
const width = () => timeline.to - timeline.from;
const press = (key) => canvas.dispatchEvent(new KeyboardEvent("keydown", {key, cancelable: true}));
const at = (name, x, y, more) => canvas.dispatchEvent(new PointerEvent(name,
  {clientX: box.left + x, clientY: box.top + y, pointerId: 1, bubbles: true, ...more}));
canvas.setPointerCapture = () => {};
const boxes = {};
for (const id of ["tiles", "overview", "timeline", "memory", "exposed-kinds", "exposed-units", "skew-ranks", "skew-rows", "steps"]) {
  const b = document.getElementById(id).getBoundingClientRect();
  boxes[id] = [b.left, b.top, b.right, b.bottom].map(Math.round);
}
say("boxes", Object.entries(boxes).map(([id, b]) => `${id} ${b.join(" ")}`).join(";"));
const first = [timeline.from, timeline.to];
say("startsAt", timeline.passes[timeline.currentPass()].step); /* the first step is slow, this one is median */
location.hash = "#step=12", timeline.readHash();
say("hashShows", timeline.passes[timeline.currentPass()].step === 12 && Math.abs(width() - 24e6 * 1.04) < 1e5);
location.hash = "#from=100&to=250", timeline.readHash();
say("hashStretches", Math.abs(timeline.from - 100e6) < 1 && Math.abs(timeline.to - 250e6) < 1);
timeline.show(...first);
const kbd = [...document.querySelectorAll("#keys kbd")].map((k) => k.textContent).join("");
say("keysListed", [..."←→↑↓+−,.pns0"].every((k) => kbd.includes(k)));
say("background", getComputedStyle(document.body).backgroundColor);
let before = width();
canvas.dispatchEvent(new WheelEvent("wheel", {deltaY: -300, clientX: box.left + 600, clientY: box.top + 60, cancelable: true}));
say("wheelZooms", width() < before * 0.8);
before = timeline.from;
press("ArrowRight");
say("arrowMoves", timeline.from > before);
before = timeline.from;
at("pointerdown", 500, 60), at("pointermove", 400, 60), at("pointerup", 400, 60);
say("dragMoves", timeline.from > before);
press("0");
say("allShows", timeline.from <= 0 && timeline.to >= timeline.data.total);
press("n"), press("s");
say("stepShows", Math.abs(width() - 24e6 * 1.04) < 1e5);
before = timeline.from;
press("n");
say("nextStep", Math.abs(timeline.from - before - 24.2e6) < 1e5);
timeline.show(...first);
const row = timeline.rows.find((r) => r.stream === "unshard" && r.rank === 1);
const lane = row.lanes[0], i = lane.firstAfter(timeline.from);
at("pointermove", timeline.x((lane.begin[i] + lane.end[i]) / 2), row.y + 4);
say("tip", document.getElementById("tip").innerText.replace(/\s+/g, " "));
at("pointerdown", timeline.x((lane.begin[i] + lane.end[i]) / 2), row.y + 4);
at("pointerup", timeline.x((lane.begin[i] + lane.end[i]) / 2), row.y + 4);
press("."), press(".");
say("detail", document.getElementById("detail").textContent);
const wait = timeline.rows[0].lanes[0], j = wait.firstAfter(timeline.from);
say("waits", timeline.about({lane: wait, i: j}).name + " for " + timeline.about(timeline.targetOf({row: timeline.rows[0], lane: wait, i: j})).name);
say("probed", "yes");
</script>
HTML
cat "$out/small/report.html" "$out/probe.txt" >"$out/small/probed.html"
browse small --dump-dom "file://$out/small/probed.html" >"$out/small.html"
check_quiet small
[ "$(value small ready)$(value small error)" = yes ] || fail "expected the page to start: $(value small error)"
[ "$(value small probed)" = yes ] || fail "expected the probe to reach its end"
[ "$(value small starts-at)" = 1 ] || fail "expected to begin with step 1, the first of the median, given $(value small starts-at)"
for what in wheel-zooms arrow-moves drag-moves all-shows step-shows next-step hash-shows hash-stretches keys-listed; do
    [ "$(value small $what)" = true ] || fail "$what: expected true, given $(value small $what)"
done
grep -qE '^all_gather block[0-9]+ on rank 1, unshard step [0-9]+ took 500 µs at .* bytes 3.8 MiB operation [0-9]+ rank 0 .* rank 1 ' \
    <<<"$(value small tip)" || fail "expected a span's name, step, time, bytes and arrivals, given $(value small tip)"
! grep -q 'rank 2' <<<"$(value small tip)" || fail "expected arrivals of the span's group alone, given $(value small tip)"
grep -qE '^all_gather block[0-9]+ · rank 1, unshard · step' <<<"$(value small detail)" || fail "expected a span, given $(value small detail)"
[ "$(value small waits)" = "wait for all_gather" ] || fail "expected what a wait waits for, given $(value small waits)"
# Text of the page, one line; figures as the page rounds them.
tr '\n' ' ' <"$out/small.html" | sed 's/<script.*type="application.*//; s/<style>.*<\/style>//; s/<[^>]*>/ /g; s/  */ /g' >"$out/small.txt"
hidden=$(jq '.communication.hidden_percent | round' "$out/small.json")
for text in "$hidden% of communication was hidden" "24.0 ms a step, the median of 40" 'mesh 2 × 2' 'sound said the verifier' \
    'mode fused' 'operations 4321 · peak, of steps 977 KiB · bound 1.4 MiB' 'block11' 'all_gather block' 'rank 0 81%'; do
    grep -qF -- "${text#mode }" "$out/small.txt" || fail "expected \"$text\" on the page, given $(head -c 3000 "$out/small.txt")"
done

echo "== in the dark, and on paper"
browse dark --force-dark-mode --dump-dom "file://$out/small/probed.html" >"$out/dark.html"
check_quiet dark
light=$(value small background)
dark=$(value dark background)
[ "$light" = "rgb(252, 252, 251)" ] || fail "expected a light page, given $light"
[ "$dark" = "rgb(20, 23, 26)" ] || fail "expected a dark page, given $dark"
browse paper --print-to-pdf="$out/paper.pdf" "file://$out/small/report.html" >/dev/null
[ "$(head -c 5 "$out/paper.pdf")" = "%PDF-" ] || fail "expected a page on paper"
[ "$(stat -c %s "$out/paper.pdf")" -gt 20000 ] || fail "expected more on paper than $(stat -c %s "$out/paper.pdf") bytes"

echo "== what it looks like"
browse shot --screenshot="$out/shot.png" "file://$out/small/report.html" >/dev/null
check_quiet shot
python3 - "$out/shot.png" "$(value small boxes)" <<'PYTHON' || fail "expected a page that shows what it should"
import collections, itertools, struct, sys, zlib

def add(a, b):
    """The sums of bytes, each modulo 256, all at once."""
    low = int.from_bytes(b"\x7f" * len(a), "big")
    a, b, n = int.from_bytes(a, "big"), int.from_bytes(b, "big"), len(a)
    return (((a & low) + (b & low)) ^ ((a ^ b) & ~low)).to_bytes(n, "big")

def average_or_paeth(kind, row, above, size):
    row = bytearray(row)
    for i, up in enumerate(above):
        left, corner = (row[i - size], above[i - size]) if i >= size else (0, 0)
        if kind == 3:
            guess = (left + up) // 2
        else:
            a, b, c = abs(up - corner), abs(left - corner), abs(left + up - 2 * corner)
            guess = left if a <= b and a <= c else up if b <= c else corner
        row[i] = (row[i] + guess) & 255
    return bytes(row)

def pixels(path):
    """Rows of bytes, 3 a pixel, of a PNG of 8 bits a channel that is not interlaced."""
    data, at, packed = open(path, "rb").read(), 8, b""
    while at < len(data):
        n, kind = struct.unpack(">I4s", data[at:at + 8])
        body = data[at + 8:at + 8 + n]
        if kind == b"IHDR":
            width, height, depth, colour, _, _, interlaced = struct.unpack(">IIBBBBB", body)
            assert depth == 8 and colour in (2, 6) and not interlaced, "expected a plain PNG"
            size = 3 if colour == 2 else 4
        elif kind == b"IDAT":
            packed += body
        at += 12 + n
    raw, stride, rows, above = zlib.decompress(packed), width * size, [], bytes(width * size)
    for y in range(height):
        kind, row = raw[y * (stride + 1)], raw[y * (stride + 1) + 1:(y + 1) * (stride + 1)]
        if kind == 1:
            sums = bytearray(stride)
            for c in range(size):
                sums[c::size] = bytes(x & 255 for x in itertools.accumulate(row[c::size]))
            row = bytes(sums)
        elif kind == 2:
            row = add(row, above)
        elif kind:
            row = average_or_paeth(kind, row, above, size)
        above = row
        rows.append(tuple(row[c::size] for c in range(3)))
    return rows

def count(rows, box):
    left, top, right, bottom = box
    seen = collections.Counter()
    for r, g, b in rows[top:bottom]:
        seen.update(zip(r[left:right], g[left:right], b[left:right]))
    return seen

colour = lambda text: tuple(int(text[i:i + 2], 16) for i in (1, 3, 5))
UNSHARD, REDUCE, REPLICATE, WAIT = map(colour, ("#d8932f", "#c05340", "#8459a8", "#f6dcb1"))
FORWARD, BACKWARD = map(colour, ("#459a72", "#33709f"))
RANK1, RANK3 = UNSHARD, REDUCE
# what has to be there, and the least number of pixels of it
WANTED = {"timeline": {UNSHARD: 2000, REDUCE: 1000, REPLICATE: 1000, WAIT: 500, FORWARD: 4000, BACKWARD: 4000},
          "memory": {RANK3: 50}, "exposed-kinds": {UNSHARD: 100, REDUCE: 100}, "exposed-units": {UNSHARD: 500, REDUCE: 200},
          "skew-ranks": {RANK1: 300}, "skew-rows": {UNSHARD: 200}, "steps": {BACKWARD: 5000}, "tiles": {}, "overview": {}}
rows, bad = pixels(sys.argv[1]), 0
boxes = {b.split()[0]: list(map(int, b.split()[1:])) for b in sys.argv[2].split(";")}
for name, wanted in WANTED.items():
    left, top, right, bottom = boxes[name]
    assert 0 <= left < right <= len(rows[0][0]) and 0 <= top < bottom <= len(rows), f"{name}: expected a place on the page, given {boxes[name]}"
    seen = count(rows, boxes[name])
    area = (right - left) * (bottom - top)
    if len(seen) < 8 or max(seen.values()) > 0.97 * area:
        print(f"{name}: expected more than a plain area, given {len(seen)} colours")
        bad += 1
    for pixel, least in wanted.items():
        if seen.get(pixel, 0) < least:
            print(f"{name}: expected at least {least} pixels of {pixel}, given {seen.get(pixel, 0)}")
            bad += 1
sys.exit(bad != 0)
PYTHON

echo "== 8 ranks x 1,000 steps"
traces "$out/big" 8 1000
"$hpreport" --mesh 2x4 "$out/big" >/dev/null
size=$(stat -c %s "$out/big/report.html")
[ "$size" -lt 16000000 ] || fail "expected less than 16 MB for 1,256,000 spans, given $size bytes"
browse big --dump-dom "file://$out/big/report.html#from=0&to=24200" >"$out/big.html"
check_quiet big
[ "$(value big ready)" = yes ] || fail "expected the page to start: $(value big error)"
[ "$(value big spans)" -eq 864000 ] || fail "expected 864,000 spans that took time, given $(value big spans)"
columns=$(($(value big columns) * $(value big lanes)))
rects=$(value big rects) visits=$(value big visits)
echo "   $size bytes; $rects rectangles and $visits nodes for $columns pixel columns of lanes"
[ "$rects" -gt 1000 ] || fail "expected rectangles, given $rects"
[ "$rects" -le $((2 * columns)) ] || fail "expected at most two rectangles per pixel column of a lane, given $rects for $columns"
[ "$visits" -le $((20 * columns)) ] || fail "expected at most 20 nodes per pixel column of a lane, given $visits for $columns"
