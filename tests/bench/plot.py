"""Draws the charts of a benchmark's JSON as FOLDER/scale_CHART.svg.

    attnserve_bench scale --json scale.json && python3 tests/bench/plot.py scale.json docs
"""

import json
import math
import pathlib
import sys
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 820, 460
LEFT, TOP, RIGHT, BOTTOM = 80, 50, 240, 60  # margins; the legend stands in the right one
COLOURS = ["#0072b2", "#56b4e9", "#d55e00", "#e69f00", "#009e73", "#7fc8a9"]  # in pairs
GREYS = ["#333333", "#777777", "#aaaaaa"]  # of ceilings and ideals

# Chart: title, x, y.
AXES = {
    "sessions": ("Tokens/s against sessions (d = 2048, H = 16, F32 weights)",
                 "concurrent sessions", "tokens/s, all sessions together"),
    "context": ("Tokens/s against context (H = 32, G = 8, d = 128)",
                "cached tokens of each session", "tokens/s, all sessions together"),
    "memory": ("Memory of a session (H = 32, G = 8, d = 128, F32 cache)",
               "tokens held", "KiB a session"),
}


def short(value):
    """1024 -> 1k, 0.5 -> 0.5"""
    if value >= 1024 and value % 1024 == 0:
        return f"{value / 1024:g}k"
    return f"{value:g}"


class Axis:
    """A logarithmic axis; `begin` and `end` are where its ends lie on the page.

    What is not above 0 (memory too little to show in the process) lies at the lower end.
    """

    def __init__(self, values, begin, end, binary):
        positive = [value for value in values if value > 0] or [1.0]
        low, high = min(positive), max(positive)
        if binary:
            powers = range(math.floor(math.log2(low)), math.ceil(math.log2(high)) + 1)
            ticks = [2.0**power for power in powers]
        else:
            powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
            ticks = [step * 10.0**power for power in powers for step in (1, 2, 5)]
            first = max(index for index, tick in enumerate(ticks) if tick <= low)
            last = min(index for index, tick in enumerate(ticks) if tick >= high)
            ticks = ticks[first:last + 1]
        if len(ticks) == 1:
            ticks.append(2 * ticks[0])
        self.low, self.high, self.begin, self.end = ticks[0], ticks[-1], begin, end
        self.ticks = ticks[::-(-len(ticks) // 12)]

    def place(self, value):
        share = math.log(max(value, self.low) / self.low) / math.log(self.high / self.low)
        return self.begin + share * (self.end - self.begin)


def text(x, y, content, anchor="start", size=12, more=""):
    return (f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}"{more}>'
            f"{escape(content)}</text>")


def line(x1, y1, x2, y2, style):
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" {style}/>'


def grid(x, y, title, x_label, y_label):
    style = 'stroke="#dddddd"'
    yield text(LEFT, 28, title, size=15, more=' font-weight="bold"')
    for tick in x.ticks:
        yield line(x.place(tick), y.begin, x.place(tick), y.end, style)
        yield text(x.place(tick), y.begin + 18, short(tick), "middle")
    for tick in y.ticks:
        yield line(x.begin, y.place(tick), x.end, y.place(tick), style)
        yield text(x.begin - 8, y.place(tick) + 4, short(tick), "end")
    yield text((x.begin + x.end) / 2, HEIGHT - 16, x_label, "middle", 13)
    middle = (y.begin + y.end) / 2
    yield text(20, middle, y_label, "middle", 13, f' transform="rotate(-90 20 {middle:.1f})"')


def curve(x, y, name, points, colour, dashed, legend_y):
    stroke = f'stroke="{colour}" stroke-width="2"' + (' stroke-dasharray="6 4"' if dashed else "")
    places = " ".join(f"{x.place(px):.1f},{y.place(py):.1f}" for px, py in points)
    yield f'<polyline points="{places}" fill="none" {stroke}/>'
    for px, py in points:
        yield (f'<circle cx="{x.place(px):.1f}" cy="{y.place(py):.1f}" r="{2 if dashed else 3.5}" '
               f'fill="{colour}"><title>{escape(name)}: {px:g}, {py:.4g}</title></circle>')
    legend_x = x.end + 14
    yield line(legend_x, legend_y - 4, legend_x + 24, legend_y - 4, stroke)
    yield text(legend_x + 32, legend_y, name)


def draw(chart, curves):
    """The SVG of one chart: {name: [[x, y], ...]}, ceilings and ideals among them dashed."""
    points = [point for of_curve in curves.values() for point in of_curve]
    x = Axis([px for px, _ in points], LEFT, WIDTH - RIGHT, binary=True)
    y = Axis([py for _, py in points], HEIGHT - BOTTOM, TOP, binary=chart == "memory")
    body = list(grid(x, y, *AXES[chart]))
    colours, greys = iter(COLOURS), iter(GREYS)
    for index, (name, of_curve) in enumerate(curves.items()):
        bound = "ceiling" in name or "ideal" in name
        colour = next(greys if bound else colours)
        body += curve(x, y, name, of_curve, colour, bound, TOP + 14 + 22 * index)
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'width="{WIDTH}" height="{HEIGHT}" font-family="sans-serif" fill="#222222">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" rx="6" fill="#ffffff"/>', *body, "</svg>", ""])


def main(source, folder):
    for chart, curves in json.loads(pathlib.Path(source).read_text())["charts"].items():
        (pathlib.Path(folder) / f"scale_{chart}.svg").write_text(draw(chart, curves))


if __name__ == "__main__":
    main(*sys.argv[1:])
