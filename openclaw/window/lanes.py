"""What the machine did, as lanes over time: intervals become counts per slot, and the counts a drawing.

Guarantees: a drawing has at most `SLOTS` marks per lane, however much happened; no script and no inline style. Pure functions.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from markupsafe import Markup

SLOTS = 120
SHADES = 5
WIDTH, LEFT, ROW, BAR, FOOT = 960, 110, 44, 30, 34
Interval = tuple[float, float]


def counts_of(intervals: Iterable[Interval], since: float, until: float) -> list[int]:
    """Return how many intervals touch each of `SLOTS` equal slots from ``since`` to ``until``."""
    width = (until - since) / SLOTS
    steps = [0] * (SLOTS + 1)
    for start, end in intervals:
        if end < since or start > until:
            continue
        first = max(0, min(SLOTS - 1, math.floor((start - since) / width)))
        last = max(0, min(SLOTS - 1, math.floor((end - since) / width)))
        steps[first] += 1
        steps[last + 1] -= 1
    counts: list[int] = []
    under_way = 0
    for step in steps[:SLOTS]:
        under_way += step
        counts.append(under_way)
    return counts


def draw_lanes(
    lanes: Mapping[str, Sequence[int]], updates: Sequence[float], since: float, until: float, ends: tuple[str, str]
) -> Markup:
    """Return lanes as an ``svg`` element.

    Args:
        lanes: counts by the lane's name, from top to bottom.
        updates: when new weights went live, drawn across all lanes.
        since: the left end, seconds since the epoch.
        until: the right end.
        ends: the words at both ends.
    """
    height = ROW * len(lanes) + FOOT
    slot = (WIDTH - LEFT) / SLOTS
    parts = [
        Markup('<svg class="lanes" viewBox="0 0 {} {}" role="img" aria-label="{}">').format(WIDTH, height, _told(lanes))
    ]
    for number, (name, counts) in enumerate(lanes.items()):
        y = ROW * number + (ROW - BAR) // 2
        most = max(counts, default=0)
        parts.append(Markup('<text x="0" y="{}">{}</text>').format(y + 19, name))
        parts.append(
            Markup('<rect class="lane" x="{}" y="{}" width="{}" height="{}"/>').format(LEFT, y, WIDTH - LEFT, BAR)
        )
        for at, count in enumerate(counts):
            if count:
                shade = math.ceil(SHADES * count / most)
                parts.append(
                    Markup(
                        '<rect class="lane{} shade{}" x="{}" y="{}" width="{}" height="{}"><title>{}</title></rect>'
                    ).format(number % 4, shade, round(LEFT + slot * at, 1), y, round(slot + 0.2, 1), BAR, count)
                )
    for at in updates:
        x = round(LEFT + (WIDTH - LEFT) * (at - since) / (until - since), 1)
        parts.append(Markup('<line class="update" x1="{}" x2="{}" y1="0" y2="{}"/>').format(x, x, ROW * len(lanes)))
    foot = ROW * len(lanes) + 22
    parts.append(Markup('<text x="{}" y="{}">{}</text>').format(LEFT, foot, ends[0]))
    parts.append(Markup('<text x="{}" y="{}" text-anchor="end">{}</text>').format(WIDTH, foot, ends[1]))
    return Markup("").join([*parts, Markup("</svg>")])


def _told(lanes: Mapping[str, Sequence[int]]) -> str:
    """Return the lanes in words."""
    busy = [f"{name} in {sum(map(bool, counts))} of {len(counts)} parts of the time" for name, counts in lanes.items()]
    return "; ".join(busy)
