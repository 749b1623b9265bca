"""The warm start of the agent with eyes: from rendered pages to a model that points.

`python -m lab.tiny_learning.pictures.pages` renders the pages, and `python -m lab.tiny_learning.pictures.warm_start` trains, from where the
folder's checkpoint is. Both take about 40 minutes of a core, so the repository has the model, in ``shipped/gui_pictures``. Guarantees: an
interrupted training loses at most `SAVED_EVERY_S`; the schedule counts steps; the model is written when all steps are done and it
passes the gate, with what it was measured to do.

What the warm start trains on: episodes on rendered pages, and what the eyes should tell of each page.

Some pages are moved by whole pixels, with the target and without the heading, so that the eyes meet more places than were rendered.
Where a reply points, numbers near the right one count a little: a click two pixels off the middle is nearly as good.

How well the agent with eyes points and clicks, on held-out pages, by its first reply.

Guarantee: replies are sampled from what the agent loop would send, and read as the environment reads them.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

import numpy
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from agentrl.tasks.gui.coordinates import on_screen
from agentrl.tasks.gui.miniwob.episode import SCREEN
from agentrl.tasks.names import Split
from lab.tiny_learning.clicks import COORDINATES
from lab.tiny_learning.pictures.encode import Coder, Encoded
from lab.tiny_learning.pictures.model import (
    COLUMNS,
    HIDDEN,
    MERGE,
    PATCH,
    ROWS,
    TOKENS,
    hidden,
    matrices,
    new_model,
    patches,
    save_processor,
    see,
)
from lab.tiny_learning.pictures.pages import FAMILIES, KINDS, RENDERED, Page, Pixels, Screens, screens_of
from lab.tiny_learning.pictures.pointing import trace
from lab.tiny_learning.pictures.shipped import key, passes
from lab.tiny_learning.pictures.words import NUMBERS, STEP, build_tokenizer
from lab.tiny_learning.warm_start import MAX_SHARE, MIN_SHARE, NOTE
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


BATCH, STEPS = 32, 3000
RATE, REST_RATE = 5e-3, 2e-3
"""Of Muon, which moves the layers' matrices, and of AdamW, which moves all else."""
WARM, DECAY_FROM, LAST = 100, 0.5, 0.03
"""Steps of the rate's warm-up, share of the steps after which it falls, and what is left of it at the end."""
CARELESS_FROM = 0.85
"""Share of the steps after which the agent is careless; before, it learns to point."""
EYES_WEIGHT = 0.5
SAVED_EVERY_S = 120.0
TOLD_EVERY, MEASURED_EVERY, MEASURED = 25, 200, 50
CHECKPOINT, MODEL = "checkpoint.pt", "model"
FOLDER = RENDERED.with_name("eyes")


class Training:
    """A model, the eyes' helper, and how far they are."""

    def __init__(self, folder: Path, screens: Mapping[str, Screens], steps: int) -> None:
        """Begin, or go on where the folder's checkpoint is."""
        self.folder, self.steps = folder, steps
        self.tokenizer = build_tokenizer([page.instruction for each in screens.values() for page in each.pages])
        self.coder = Coder(self.tokenizer)
        self.model: Any = new_model(self.tokenizer, 0)
        self.eyes = Eyes()  # its weights are drawn after the model's, from the same seed
        self.step, self.spent = 0, 0.0
        chosen = list(matrices(self.model))
        known = {id(each) for each in chosen}
        rest = [each for each in [*self.model.parameters(), *self.eyes.parameters()] if id(each) not in known]
        self._moved = [*chosen, *rest]
        self._optimizers: list[torch.optim.Optimizer] = [
            torch.optim.Muon(chosen, lr=RATE, weight_decay=0.01, adjust_lr_fn="match_rms_adamw"),
            torch.optim.AdamW(rest, lr=REST_RATE, betas=(0.9, 0.98), weight_decay=0.01, fused=True),
        ]
        if (folder / CHECKPOINT).exists():
            self._load(torch.load(folder / CHECKPOINT, weights_only=False))
        self._numbers = number_of_token(self.tokenizer, self.model.lm_head.out_features)
        self._lessons = Lessons(list(screens.values()), self.coder, Random(self.step))

    def advance(self) -> tuple[float, float]:
        """Take a step; return the losses of the replies and of the eyes."""
        began, done = time.process_time(), self.step / self.steps
        share = min(1.0, (self.step + 1) / WARM) * min(1.0, max(LAST, (1 - done) / (1 - DECAY_FROM)))
        for optimizer, rate in zip(self._optimizers, (RATE, REST_RATE), strict=True):
            for group in optimizer.param_groups:
                group["lr"] = rate * share
        self.model.train()
        batch = self._lessons.batch(BATCH, careless=done >= CARELESS_FROM)
        said, seen = losses(self.model, self.eyes, batch, self._numbers)
        (said + EYES_WEIGHT * seen).backward()
        torch.nn.utils.clip_grad_norm_(self._moved, 1.0)
        for optimizer in self._optimizers:
            optimizer.step()
            optimizer.zero_grad()
        self.step += 1
        self.spent += time.process_time() - began
        return said.item(), seen.item()

    def save(self) -> None:
        """Write the checkpoint."""
        partial = self.folder / f"{CHECKPOINT}.partial"
        torch.save(self._kept(), partial)
        partial.rename(self.folder / CHECKPOINT)

    def export(self, metrics: Mapping[str, float]) -> Path:
        """Write the model; return its folder."""
        folder = self.folder / MODEL
        self.model.save_pretrained(folder)
        save_processor(self.tokenizer, folder)
        note = {"key": key(), "steps": self.step, "cpu_seconds": round(self.spent), "metrics": dict(metrics)}
        (folder / NOTE).write_text(json.dumps(note, indent=1) + "\n")
        return folder

    def _kept(self) -> dict[str, Any]:
        parts = {"model": self.model.state_dict(), "eyes": self.eyes.state_dict()}
        optimizers = [each.state_dict() for each in self._optimizers]
        return {**parts, "optimizers": optimizers, "step": self.step, "spent": self.spent}

    def _load(self, kept: dict[str, Any]) -> None:
        self.model.load_state_dict(kept["model"])
        self.eyes.load_state_dict(kept["eyes"])
        for optimizer, state in zip(self._optimizers, kept["optimizers"], strict=True):
            optimizer.load_state_dict(state)
        self.step, self.spent = kept["step"], kept["spent"]


def number_of_token(tokenizer: Any, vocabulary: int) -> Tensor:
    """Return the index in `NUMBERS` of each token, or -1 [vocabulary]."""
    found = torch.full((vocabulary,), -1)
    for index, text in enumerate(NUMBERS):
        (token,) = tokenizer.encode(text, add_special_tokens=False)
        found[token] = index
    return found


def screens(folder: Path, split: Split) -> dict[str, Screens]:
    """Return the rendered pages of a split by family."""
    return {family: screens_of(folder, family, split) for family in FAMILIES}


def main() -> None:
    """Train to the end, and write the model."""
    parser = argparse.ArgumentParser(prog="python -m lab.tiny_learning.pictures.warm_start", description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", default=FOLDER, help="of checkpoint and model (%(default)s)")
    parser.add_argument("--pages", type=Path, default=RENDERED, help="folder of the rendered pages (%(default)s)")
    parser.add_argument("--steps", type=int, default=STEPS, help="of the whole training (%(default)s)")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    training = Training(options.folder, screens(options.pages, "train"), options.steps)
    heldout, saved = screens(options.pages, "heldout"), time.monotonic()
    print(f"{sum(p.numel() for p in training.model.parameters())} parameters, from step {training.step}", flush=True)
    said = seen = 0.0
    while training.step < training.steps:
        losses_now = training.advance()
        said, seen = (old + (new - old) / TOLD_EVERY for old, new in zip((said, seen), losses_now, strict=True))
        if training.step % TOLD_EVERY == 0:
            told = f"{training.spent:.0f} CPU s, loss {said:.3f}, of the eyes {seen:.3f}"
            print(f"step {training.step}: {told}", flush=True)
        if training.step % MEASURED_EVERY == 0:
            metrics = measure(training.model, training.coder, heldout, MEASURED)
            print(f"step {training.step}: {json.dumps(metrics)}", flush=True)
        if time.monotonic() - saved > SAVED_EVERY_S or training.step == training.steps:
            training.save()
            saved = time.monotonic()
    metrics = measure(training.model, training.coder, heldout, 10 * MEASURED)
    print(json.dumps(metrics))
    if not passes(metrics["solved"]):
        raise SystemExit(
            f"{metrics['solved']} of the pages are solved, not {MIN_SHARE} to {MAX_SHARE}: no model is written"
        )
    print(training.export(metrics))


if __name__ == "__main__":
    main()
