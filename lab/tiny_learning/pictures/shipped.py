"""The model with eyes that the repository has, and the hash of what shapes what it reads and writes.

Its training takes half an hour of a core, so no run makes it. Guarantee: a model whose prompts, pictures or tokens are not those of the
code here is not used.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from random import Random

from lab.tiny_learning.pictures.encode import Coder
from lab.tiny_learning.pictures.model import GRID, IMAGES, new_model
from lab.tiny_learning.pictures.pages import Page
from lab.tiny_learning.pictures.pointing import trace
from lab.tiny_learning.pictures.words import NUMBERS, build_tokenizer, chat_template, phrases
from lab.tiny_learning.traces import AgentTasks
from lab.tiny_learning.warm_start import MAX_SHARE, MIN_SHARE, NOTE, SHIPPED, WarmStartError

PAGE = Page("miniwob/click_test_2/train/1000", "Click button ONE.", (135, 179), (115, 159, 40, 40), [])
KEYED = 32
"""Episodes in the hash."""
HOW = "see lab/tiny_learning/pictures/warm_start.py for how to make it anew, in about 40 minutes"


def shipped(tasks: AgentTasks) -> Path:
    """Return the folder of the model.

    Raises:
        WarmStartError: it is missing, or was made for other code.
    """
    folder = SHIPPED / tasks.name
    if not (folder / NOTE).is_file():
        raise WarmStartError(f"{folder} has no model; {HOW}")
    if json.loads((folder / NOTE).read_text())["key"] != key():
        raise WarmStartError(f"the model in {folder} was trained for other prompts or pictures; {HOW}")
    return folder


def key() -> str:
    """Return the hash of what the model reads and writes: its shape, its pictures, and episodes as it is given them."""
    tokenizer = build_tokenizer([PAGE.instruction])
    coder, rng = Coder(tokenizer), Random(0)
    shape = {name: tuple(weight.shape) for name, weight in new_model(tokenizer, 0).named_parameters()}
    digest = hashlib.sha256(repr((shape, IMAGES, GRID, chat_template(), phrases(), NUMBERS)).encode())
    for _ in range(KEYED):
        episode = trace(rng, PAGE, careless=True)
        digest.update(repr((episode, coder.policy(episode))).encode())
    return digest.hexdigest()[:16]


def passes(solved: float) -> bool:
    """Return whether a model is careless enough to learn, and good enough to be rewarded at times."""
    return MIN_SHARE <= solved <= MAX_SHARE
