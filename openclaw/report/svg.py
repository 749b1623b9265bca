"""Line charts as SVG, without a script and without inline styles, so that a strict content policy holds.

Guarantees: a chart has at most `MAX_POINTS` points per line, and its texts are escaped. Colours are classes of the page.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from markupsafe import Markup, escape

MAX_POINTS = 200
WIDTH, HEIGHT = 480, 200
LEFT, RIGHT, TOP, BOTTOM = 54, 10, 10, 40
TICKS = 4


@dataclass(frozen=True)
class Line:
    """A line: its name, its points ``(x, y)``, and for each point the interval it lies in, if there is one."""

    name: str
    points: Sequence[tuple[float, float]]
    intervals: Sequence[tuple[float, float]] = ()


@dataclass(frozen=True)
class Chart:
    """A chart: what it shows, what x and y are, its lines, and a bound that should not be crossed."""

    title: str
    x: str
    lines: Sequence[Line]
    bound: float | None = None
    from_to: tuple[float, float] | None = None
    note: str = ""

    def __bool__(self) -> bool:
        return any(line.points for line in self.lines)


def thinned(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return at most `MAX_POINTS` points: means of neighbours."""
    size = math.ceil(len(points) / MAX_POINTS) or 1
    parts = (points[start : start + size] for start in range(0, len(points), size))
    return [(fmean(x for x, _ in part), fmean(y for _, y in part)) for part in parts]


def nice_ticks(low: float, high: float) -> list[float]:
    """Return about `TICKS` round values that span ``low`` to ``high``."""
    step = 10 ** math.floor(math.log10((high - low) / TICKS))
    step *= next(factor for factor in (1, 2, 5, 10) if (high - low) / (step * factor) <= TICKS)
    first = math.floor(low / step)
    return [number * step for number in range(first, math.ceil(high / step) + 1)]


def draw(chart: Chart) -> Markup:
    """Return a chart as an ``svg`` element."""
    lines = [line if line.intervals else Line(line.name, thinned(line.points)) for line in chart.lines if line.points]
    xs = [x for line in lines for x, _ in line.points]
    ys = [y for line in lines for _, y in line.points] + [
        end for line in lines for pair in line.intervals for end in pair
    ]
    ys += [] if chart.bound is None else [chart.bound]
    low, high = chart.from_to or (min(ys), max(ys))
    if high - low < 1e-12:
        low, high = low - (abs(low) or 1.0) / 2, high + (abs(high) or 1.0) / 2
    ticks = nice_ticks(low, high)
    scale = _Scale(min(xs), max(xs), ticks[0], ticks[-1])
    parts = [Markup('<svg viewBox="0 0 {} {}" role="img" aria-label="{}">').format(WIDTH, HEIGHT, chart.title)]
    for tick in ticks:
        y = scale.y(tick)
        parts.append(Markup('<line class="grid" x1="{}" x2="{}" y1="{}" y2="{}"/>').format(LEFT, WIDTH - RIGHT, y, y))
        parts.append(_text(LEFT - 6, y + 4, number(tick), "end"))
    for x in dict.fromkeys((min(xs), (min(xs) + max(xs)) / 2, max(xs))):
        parts.append(_text(scale.x(x), HEIGHT - 24, number(round(x)), "middle"))
    parts.append(_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 6, chart.x, "middle"))
    if chart.bound is not None:
        y = scale.y(chart.bound)
        parts.append(Markup('<line class="bound" x1="{}" x2="{}" y1="{}" y2="{}"/>').format(LEFT, WIDTH - RIGHT, y, y))
    for index, line in enumerate(lines):
        parts += _line(line, index, scale)
    parts.append(Markup("</svg>"))
    return Markup("").join(parts)


def number(value: float) -> str:
    """Return a number of an axis."""
    return f"{value:.6g}" if abs(value) < 1e6 else f"{value:.1e}"


@dataclass(frozen=True)
class _Scale:
    first: float
    last: float
    low: float
    high: float

    def x(self, value: float) -> float:
        share = 0.5 if self.last == self.first else (value - self.first) / (self.last - self.first)
        return round(LEFT + share * (WIDTH - LEFT - RIGHT), 1)

    def y(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low)
        return round(TOP + (1 - min(1.0, max(0.0, share))) * (HEIGHT - TOP - BOTTOM), 1)


def _line(line: Line, index: int, scale: _Scale) -> list[Markup]:
    at = [(scale.x(x), scale.y(y)) for x, y in line.points]
    name = f"line{index % 3}"
    texts = [
        Markup('<line class="interval" x1="{}" x2="{}" y1="{}" y2="{}"/>').format(x, x, scale.y(low), scale.y(high))
        for (x, _), (low, high) in zip(at, line.intervals, strict=False)
    ]
    path = " ".join(f"{x},{y}" for x, y in at)
    texts.append(Markup('<polyline class="{}" points="{}"/>').format(name, path))
    if len(at) <= 24:
        texts += [Markup('<circle class="{}" cx="{}" cy="{}" r="2.5"/>').format(name, x, y) for x, y in at]
    return texts


def _text(x: float, y: float, text: str, anchor: str) -> Markup:
    return Markup('<text x="{}" y="{}" text-anchor="{}">{}</text>').format(x, y, anchor, escape(text))
