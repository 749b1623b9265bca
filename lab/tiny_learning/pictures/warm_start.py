"""The warm start of the agent with eyes: from rendered pages to a model that points.

`python -m lab.tiny_learning.pictures.pages` renders the pages, and `python -m lab.tiny_learning.pictures.warm_start` trains, from where the
folder's checkpoint is. Both take about 40 minutes of a core, so the repository has the model, in ``shipped/gui_pictures``. Guarantees: an
interrupted training loses at most `SAVED_EVERY_S`; the schedule counts steps; the model is written when all steps are done and it
passes the gate, with what it was measured to do.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Any

import torch
from torch import Tensor

from agentrl.tasks.names import Split
from lab.tiny_learning.pictures.encode import Coder
from lab.tiny_learning.pictures.lessons import Eyes, Lessons, losses
from lab.tiny_learning.pictures.measure import measure
from lab.tiny_learning.pictures.model import matrices, new_model, save_processor
from lab.tiny_learning.pictures.pages import FAMILIES, RENDERED, Screens, screens_of
from lab.tiny_learning.pictures.shipped import key, passes
from lab.tiny_learning.pictures.words import NUMBERS, build_tokenizer
from lab.tiny_learning.warm_start import LEAST, MOST, NOTE

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
        raise SystemExit(f"{metrics['solved']} of the pages are solved, not {LEAST} to {MOST}: no model is written")
    print(training.export(metrics))


if __name__ == "__main__":
    main()
