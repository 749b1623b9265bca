"""How well the agent with eyes points and clicks, on held-out pages, by its first reply.

Guarantee: replies are sampled from what the agent loop would send, and read as the environment reads them.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any

import torch

from agentrl.tasks.gui.coordinates import on_screen
from agentrl.tasks.gui.miniwob.episode import SCREEN
from lab.tiny_learning.clicks import COORDINATES
from lab.tiny_learning.pictures.encode import Coder
from lab.tiny_learning.pictures.model import hidden, patches, see
from lab.tiny_learning.pictures.pages import Page, Screens
from lab.tiny_learning.pictures.pointing import trace
from lab.tiny_models.sampling import TEMPERATURE

LONGEST = 18
"""Most tokens of a reply; a scroll has fourteen."""
AT_ONCE = 50
Metrics = dict[str, float]


def measure(model: Any, coder: Coder, screens: Mapping[str, Screens], pages: int) -> Metrics:
    """Return the shares of the first pages of each family that a first reply solves, and points at.

    ``solved`` is a click on the target; ``pointed`` is the share on the target among replies that have a point.
    """
    generator = torch.Generator().manual_seed(0)
    told, counts = Metrics(), {"solved": [0, 0], "pointed": [0, 0]}
    for family, each in screens.items():
        solved: list[bool] = []
        pointed: list[bool] = []
        for start in range(0, min(pages, len(each.pages)), AT_ONCE):
            part = slice(start, min(start + AT_ONCE, pages))
            some = Screens(each.pages[part], each.pictures[part])
            for page, reply in zip(some.pages, replies(model, coder, some, generator), strict=True):
                act = coder.action(_begun(page), reply)
                hit = act is not None and act.point is not None and on_target(page, *act.point)
                solved.append(hit and act is not None and act.name == "left_click")
                pointed += [hit] if act is not None and act.point is not None else []
        for name, found in (("solved", solved), ("pointed", pointed)):
            counts[name][0] += sum(found)
            counts[name][1] += len(found)
            told[f"{name}_{family}"] = round(sum(found) / max(len(found), 1), 3)
    return {name: round(right / max(many, 1), 3) for name, (right, many) in counts.items()} | told


def on_target(page: Page, x: float, y: float) -> bool:
    """Return whether a point as the model writes it is on a page's target."""
    left, top, width, height = page.box
    across, down = on_screen((x, y), COORDINATES, SCREEN.picture, (SCREEN.width, SCREEN.height))
    return left <= across < left + width and top <= down < top + height


@torch.no_grad()
def replies(model: Any, coder: Coder, screens: Screens, generator: torch.Generator) -> list[list[int]]:
    """Return a sampled first reply to each page."""
    prompts = [coder.prompt(_begun(page)) for page in screens.pages]
    lengths = torch.tensor([len(prompt) for prompt in prompts])
    ids = torch.zeros(len(prompts), int(lengths.max()) + LONGEST, dtype=torch.long)
    for row, prompt in enumerate(prompts):
        ids[row, : len(prompt)] = torch.tensor(prompt)
    tokens, deep = see(model, patches(torch.from_numpy(screens.pictures)))
    rows, end = torch.arange(len(prompts)), coder.end
    for number in range(LONGEST):
        at = lengths + number
        states = hidden(model, ids[:, : int(at.max())], tokens, deep)[rows, at - 1]
        chances = torch.softmax(model.lm_head(states) / TEMPERATURE, -1)
        ids[rows, at] = torch.multinomial(chances, 1, generator=generator)[:, 0]
        if all(end in ids[row, length : length + number + 1] for row, length in enumerate(lengths.tolist())):
            break
    found = [ids[row, length : length + LONGEST].tolist() for row, length in enumerate(lengths.tolist())]
    return [reply[: reply.index(end) + 1] if end in reply else reply for reply in found]


def _begun(page: Page) -> Any:
    return trace(Random(0), page, careless=False)
