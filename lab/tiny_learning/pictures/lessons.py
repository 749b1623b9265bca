"""What the warm start trains on: episodes on rendered pages, and what the eyes should tell of each page.

Some pages are moved by whole pixels, with the target and without the heading, so that the eyes meet more places than were rendered.
Where a reply points, numbers near the right one count a little: a click two pixels off the middle is nearly as good.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import numpy
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from agentrl.tasks.gui.miniwob.episode import SCREEN
from lab.tiny_learning.pictures.encode import Coder, Encoded
from lab.tiny_learning.pictures.model import COLUMNS, HIDDEN, MERGE, PATCH, ROWS, TOKENS, hidden, patches, see
from lab.tiny_learning.pictures.pages import KINDS, Page, Pixels, Screens
from lab.tiny_learning.pictures.pointing import trace
from lab.tiny_learning.pictures.words import NUMBERS, STEP

HEADING = 51
"""Pixels of the page that hold its instruction."""
MOVED = 0.5
"""Share of pages that are moved, of the families whose things can stand anywhere."""
SHIFTING = ("click_test_2", "click_dialog", "focus_text")
SPREAD = 0.7
"""Standard deviation of the numbers that count as right, in steps of `STEP`."""
WHITE = 255
UNUSED = -100


class Eyes(nn.Module):
    """Says of each token of a picture what stands there, and where its middle is; used in the warm start only."""

    def __init__(self) -> None:
        super().__init__()
        self.kinds = nn.Linear(HIDDEN, len(KINDS))
        self.places = nn.Linear(HIDDEN, 2 * len(NUMBERS))

    def loss(self, tokens: Tensor, kinds: Tensor, places: Tensor) -> Tensor:
        """Return the loss of tokens [B, TOKENS, HIDDEN], given kinds [B, TOKENS, K] and places [B, TOKENS, 2] or `UNUSED`."""
        told = F.binary_cross_entropy_with_logits(self.kinds(tokens).float(), kinds, pos_weight=torch.tensor(4.0))
        there = places[..., 0] != UNUSED
        guess = self.places(tokens[there]).float().view(-1, len(NUMBERS))
        return 10 * told + F.cross_entropy(guess, near()[places[there].view(-1)])


def near() -> Tensor:
    """Return how much each number counts, by the right one [numbers, numbers]."""
    each = torch.arange(len(NUMBERS), dtype=torch.float32)
    return torch.softmax(-((each[:, None] - each) ** 2) / (2 * SPREAD**2), -1)


@dataclass(frozen=True)
class Batch:
    """Episodes.

    Attributes:
        pictures: of the pages [B, rows, columns, 3].
        shown: index of the page of each picture in the episodes.
        ids: padded [B, L].
        weights: of the ids [B, L].
        kinds: what stands where [B, TOKENS, K].
        places: the number of its middle, across and down [B, TOKENS, 2].
    """

    pictures: Tensor
    shown: Tensor
    ids: Tensor
    weights: Tensor
    kinds: Tensor
    places: Tensor


class Lessons:
    """Draws batches."""

    def __init__(self, screens: Sequence[Screens], coder: Coder, rng: Random) -> None:
        self._screens, self._coder, self._rng = screens, coder, rng

    def batch(self, size: int, careless: bool) -> Batch:
        """Return episodes of as many pages of each family."""
        drawn = [self._drawn(self._screens[number % len(self._screens)]) for number in range(size)]
        encoded = [self._coder.policy(trace(self._rng, page, careless)) for page, _ in drawn]
        return batch_of(drawn, encoded)

    def _drawn(self, screens: Screens) -> tuple[Page, Pixels]:
        number = self._rng.randrange(len(screens.pages))
        page, picture = screens.pages[number], screens.pictures[number]
        if page.family in SHIFTING and self._rng.random() < MOVED:
            return moved(self._rng, page, picture)
        return page, picture


def batch_of(drawn: Sequence[tuple[Page, Pixels]], encoded: Sequence[Encoded]) -> Batch:
    """Return pages and their episodes as tensors."""
    kinds = torch.zeros(len(drawn), TOKENS, len(KINDS))
    places = torch.full((len(drawn), TOKENS, 2), UNUSED)
    for row, (page, _) in enumerate(drawn):
        for kind, x, y in page.things:
            if 0 <= x < SCREEN.width and HEADING <= y < SCREEN.height:
                across, down = x / SCREEN.width, y / SCREEN.height
                cell = int(down * ROWS / (PATCH * MERGE)) * (COLUMNS // (PATCH * MERGE))
                cell += int(across * COLUMNS / (PATCH * MERGE))
                kinds[row, cell, KINDS.index(kind)] = 1
                places[row, cell] = torch.tensor([int(across * 1000 / STEP), int(down * 1000 / STEP)])
    return Batch(
        torch.from_numpy(numpy.stack([picture for _, picture in drawn])),
        torch.tensor([row for row, each in enumerate(encoded) for _ in range(each.pictures)]),
        nn.utils.rnn.pad_sequence([torch.tensor(each.ids) for each in encoded], batch_first=True),
        nn.utils.rnn.pad_sequence([torch.tensor(each.weights) for each in encoded], batch_first=True),
        kinds,
        places,
    )


def moved(rng: Random, page: Page, picture: Pixels) -> tuple[Page, Pixels]:
    """Return a page whose content stands elsewhere, with its target still on the screen."""
    left, top, width, height = page.box
    across = rng.randint(-int(left), max(int(SCREEN.width - left - width), -int(left)))
    down = rng.randint(min(HEADING - int(top), 0), max(int(SCREEN.height - top - height), 0))
    scale = ROWS / SCREEN.height
    rows = round(down * scale)
    down = rows / scale
    found = picture.copy()
    first = round(HEADING * scale) + 1
    body = picture[first:]
    found[first:] = WHITE
    target = found[first:]
    to_y, from_y = (slice(max(rows, 0), len(body) + min(rows, 0)), slice(max(-rows, 0), len(body) - max(rows, 0)))
    to_x = slice(max(across, 0), COLUMNS + min(across, 0))
    from_x = slice(max(-across, 0), COLUMNS - max(across, 0))
    target[to_y, to_x] = body[from_y, from_x]
    things = [(kind, x + across, y + down) for kind, x, y in page.things]
    point = (page.point[0] + across, page.point[1] + down)
    return replace(page, point=point, box=(left + across, top + down, width, height), things=things), found


def losses(model: Any, eyes: Eyes, batch: Batch, numbers: Tensor) -> tuple[Tensor, Tensor]:
    """Return the losses of the replies and of the eyes.

    Args:
        model: that learns.
        eyes: that learn with it.
        batch: of episodes.
        numbers: index in `NUMBERS` of each token, or -1 [vocabulary].
    """
    tokens, deep = see(model, patches(batch.pictures))
    shown = batch.shown
    states = hidden(model, batch.ids, tokens[shown], [each[shown] for each in deep])[:, :-1]
    chosen = batch.weights[:, 1:] > 0
    wanted = batch.ids[:, 1:][chosen]
    logits = model.lm_head(states[chosen]).float()
    target = F.one_hot(wanted, logits.shape[-1]).float()
    index = numbers[wanted]
    which = numbers.argsort()[-len(NUMBERS) :]
    target[(index >= 0).nonzero(), which] = near()[index[index >= 0]]
    return F.cross_entropy(logits, target), eyes.loss(tokens, batch.kinds, batch.places)
