# SPDX-License-Identifier: Apache-2.0
#
# plot.py - times over sizes as a small self-contained SVG, both axes logarithmic.
#
# The style is hptrain's: the colours of Okabe and Ito, which readers with any kind of colour vision
# tell apart, light or dark as the reader's page is. Coordinates have one decimal, so equal figures
# give equal files.
import math
from xml.sax.saxutils import escape

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 820, 460, 76, 640, 60, 404
LIGHT = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#a07800", "#56b4e9", "#7a5195", "#666666"]
DARK = ["#56b4e9", "#ff8c42", "#2ac49a", "#e6a0c4", "#f0e442", "#9ad0f5", "#b79ce0", "#aaaaaa"]
STYLE = """<style>
svg { background: #ffffff; font-family: system-ui, sans-serif; font-size: 13px; }
text { fill: #444444; } .title { fill: #111111; font-size: 17px; font-weight: 600; }
.x, .name { text-anchor: middle; } .y { text-anchor: end; }
.grid { stroke: #e4e4e4; } .axis { stroke: #888888; }
.line { fill: none; stroke-width: 1.5; stroke-linejoin: round; } .ours { stroke-width: 3; }
.limit { stroke: #888888; stroke-dasharray: 5 4; }
%s
@media (prefers-color-scheme: dark) {
svg { background: #14171a; } text { fill: #b8bec4; } .title { fill: #f2f2f2; }
.grid { stroke: #2a2f34; }
%s
}
</style>
"""


def bytes_text(n):
    for unit, name in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if n >= unit and n % unit == 0:
            return f"{n // unit} {name}"
    return f"{n} B"


def us_text(us):
    return f"{us:g} us" if us < 1000 else f"{us / 1000:g} ms"


class Frame:
    def __init__(self, series):
        xs = [x for _, points in series for x, _ in points]
        ys = [y for _, points in series for _, y in points]
        self.x0, self.x1 = math.log2(min(xs)), max(math.log2(max(xs)), math.log2(min(xs)) + 1)
        self.y0, self.y1 = math.floor(math.log10(min(ys))), math.ceil(math.log10(max(ys)) + 1e-9)

    def x(self, n):
        return LEFT + (RIGHT - LEFT) * (math.log2(n) - self.x0) / (self.x1 - self.x0)

    def y(self, us):
        return BOTTOM - (BOTTOM - TOP) * (math.log10(us) - self.y0) / (self.y1 - self.y0)


def line(kind, x0, y0, x1, y1):
    return f'<line class="{kind}" x1="{x0:.1f}" y1="{y0:.1f}" x2="{x1:.1f}" y2="{y1:.1f}"/>\n'


def text(kind, x, y, words):
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}">{escape(words)}</text>\n'


def axes(frame):
    out = ""
    for power in range(frame.y0, frame.y1 + 1):
        y = frame.y(10 ** power)
        out += line("grid", LEFT, y, RIGHT, y) + text("y", LEFT - 8, y + 4.5, us_text(10.0 ** power))
    for power in range(math.ceil(frame.x0), math.floor(frame.x1) + 1):
        if power % 3 == 0:
            x = frame.x(2 ** power)
            out += line("axis", x, BOTTOM, x, BOTTOM + 5)
            out += text("x", x, BOTTOM + 20, bytes_text(2 ** power))
    return out + line("axis", LEFT, BOTTOM, RIGHT, BOTTOM)


def kind_of(i, name):
    return "ours" if i == 0 else "limit" if name == "byte limit" else f"s{i}"


def svg(title, series):
    """series: (name, [(bytes, us)]), ours first, the byte limit by that name; each has points."""
    frame = Frame(series)
    # With more series than colours the colours come again, dotted.
    colours = ["\n".join(f".{'ours' if i == 0 else f's{i}'} {{ stroke: {c[i % len(c)]};"
                         f"{' stroke-dasharray: 2 3;' if i >= len(c) else ''} }}"
                         for i in range(len(series))) for c in (LIGHT, DARK)]
    out = (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
           f'width="{WIDTH}" height="{HEIGHT}" role="img" aria-label="{escape(title)}">\n')
    out += STYLE % tuple(colours) + text("title", LEFT, 32, title) + axes(frame)
    for i, (name, points) in reversed(list(enumerate(series))):
        place = " ".join(f"{frame.x(n):.1f},{frame.y(us):.1f}" for n, us in sorted(points))
        kind = kind_of(i, name)
        out += f'<polyline class="line {kind}" points="{place}"/>\n'
        y = TOP + 18 + 22 * i
        out += line(f"line {kind}", RIGHT + 16, y - 4.5, RIGHT + 42, y - 4.5)
        out += text("key", RIGHT + 50, y, name)
    out += text("name", (LEFT + RIGHT) / 2, HEIGHT - 14, "bytes of the larger buffer of a rank")
    return out + "</svg>\n"
