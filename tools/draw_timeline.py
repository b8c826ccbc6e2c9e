#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draw one step of a few ranks as an SVG, from the Chrome traces that hptrain --trace writes.

usage: draw_timeline.py TRACE_DIR OUT.svg [--ranks 0,1] [--step N]

A lane per rank and stream; a box per span; the step is the last complete one unless given.
"""
import argparse
import json
import pathlib
from xml.sax.saxutils import escape

COLOURS = {
    "forward": "#4c9f70", "backward": "#2f6f9f", "all_gather": "#e0a030", "reduce_scatter": "#c8553d",
    "all_reduce": "#8a5aa8", "update": "#6b7f8f", "divide": "#a9b7c2", "wait": "#e9e9ee",
}
LEGEND = [("forward", "forward"), ("backward", "backward"), ("all_gather", "gather"),
          ("reduce_scatter", "reduce-scatter"), ("all_reduce", "all-reduce"), ("update", "optimizer"),
          ("wait", "compute stands still")]
STREAMS = ["compute", "unshard", "reduce", "replicate"]
LEFT, TOP, WIDTH, LANE, GAP = 150, 46, 1000, 17, 12


def read_spans(path):
    """Complete spans of one rank: (stream, name, unit, step, begin, end) with times in microseconds."""
    names, open_spans, spans = {}, {}, []
    for event in json.loads(path.read_text())["traceEvents"]:
        lane = event.get("tid")
        if event["ph"] == "M" and event["name"] == "thread_name":
            names[lane] = event["args"]["name"]
        elif event["ph"] == "B":
            open_spans.setdefault(lane, []).append(event)
        elif event["ph"] == "E":
            begin = open_spans[lane].pop()
            args = begin.get("args", {})
            spans.append((names.get(lane, str(lane)), begin["name"], args.get("unit"), args.get("step"),
                          begin["ts"], event["ts"]))
    return spans


def choose_step(spans, wanted):
    """The (begin, end) of a step span: the wanted one, else the last."""
    steps = [s for s in spans if s[1] == "step" and s[2] != "evaluate"]
    if wanted is not None:
        steps = [s for s in steps if s[3] == wanted]
    if not steps:
        raise SystemExit("draw_timeline: no such step in the trace")
    return steps[-1][4], steps[-1][5]


def box(x, y, w, h, colour, title):
    return (f'<rect x="{x:.2f}" y="{y}" width="{max(w, 0.6):.2f}" height="{h}" fill="{colour}" rx="1.5">'
            f'<title>{escape(title)}</title></rect>')


def draw_lane(spans, y, begin, end):
    scale = WIDTH / (end - begin)
    for _, name, unit, _, b, e in sorted(spans, key=lambda s: s[4] - s[5]):
        if name not in COLOURS or e <= begin or b >= end:
            continue
        b, e = max(b, begin), min(e, end)
        title = f"{name} {unit or ''} {(e - b) / 1000:.3f} ms"
        yield box(LEFT + (b - begin) * scale, y + 1, (e - b) * scale, LANE - 2, COLOURS[name], title)


def draw(traces, begin, end):
    lanes, y = [], TOP
    for rank, spans in traces:
        for stream in STREAMS:
            mine = [s for s in spans if s[0] == stream]
            lanes.append(f'<text x="{LEFT - 8}" y="{y + 12}" text-anchor="end">rank {rank} {stream}</text>')
            lanes.append(f'<rect x="{LEFT}" y="{y}" width="{WIDTH}" height="{LANE}" fill="#f7f8fa"/>')
            lanes.extend(draw_lane(mine, y, begin, end))
            y += LANE
        y += GAP
    legend = []
    for i, (name, label) in enumerate(LEGEND):
        x = LEFT + i * 145
        legend.append(f'<rect x="{x}" y="14" width="12" height="12" fill="{COLOURS[name]}" rx="2"/>')
        legend.append(f'<text x="{x + 17}" y="24">{label}</text>')
    axis = [f'<text x="{LEFT + WIDTH * k / 4:.0f}" y="{y + 8}" text-anchor="middle">'
            f'{(end - begin) * k / 4000:.1f} ms</text>' for k in range(5)]
    return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{LEFT + WIDTH + 40}" height="{y + 18}" '
            f'font-family="Helvetica,Arial,sans-serif" font-size="11" fill="#333">'
            f'<rect width="100%" height="100%" fill="white"/>' + "\n".join(legend + lanes + axis) + "</svg>\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--ranks", default="0,1")
    parser.add_argument("--step", type=int)
    options = parser.parse_args()
    ranks = [int(r) for r in options.ranks.split(",")]
    traces = [(r, read_spans(options.directory / f"trace-{r}.json")) for r in ranks]
    begin, end = choose_step(traces[0][1], options.step)
    options.out.write_text(draw(traces, begin, end))


if __name__ == "__main__":
    main()
