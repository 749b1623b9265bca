"""A rollout function without an engine whose samples depend on the data source's position only, and that can be held."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

from slime.args import Arguments
from slime.backends.trainer import people
from slime.rollout.base_types import RolloutFnTrainOutput
from slime.utils.types import Sample

PROMPT_TOKENS, RESPONSE_TOKENS, VOCABULARY = 5, 12, 300


def hold_file(run_dir: Path | str, rollout_id: int) -> Path:
    """While this file exists, the rollout is not given out."""
    return Path(run_dir) / f"hold-{rollout_id}"


def generate(args: Arguments, rollout_id: int, data_source: Any, evaluation: bool = False) -> list[list[Sample]]:
    """Return random ids and rewards, seeded by the index of each sample."""
    groups = data_source.get_samples(args.rollout_batch_size)
    for sample in (sample for group in groups for sample in group):
        source = random.Random(sample.index)
        sample.tokens = [source.randrange(VOCABULARY) for _ in range(PROMPT_TOKENS + RESPONSE_TOKENS)]
        sample.response_length = RESPONSE_TOKENS
        sample.reward = source.random()
        sample.status = Sample.Status.COMPLETED
    while hold_file(args.run_dir, rollout_id).exists():
        time.sleep(0.05)
    return groups


def book_file(run_dir: Path | str) -> Path:
    """While this file exists, no version is published, with :func:`hold_the_book`."""
    return Path(run_dir) / "hold-book"


def hold_the_book(args: Arguments, rollout_id: int, data: Any) -> None:
    """Let the trainer's publications wait: the value of ``--rollout-data-postprocess-path``."""
    original = people.publish

    def publish(*arguments: Any) -> Any:
        while book_file(args.run_dir).exists():
            time.sleep(0.05)
        return original(*arguments)

    if original.__module__ != __name__:
        people.publish = publish


PEOPLE = ("paula", "quentin")
"""Whose batch it is, in turn, with :func:`generate_of_people`."""


def generate_of_people(args: Arguments, rollout_id: int, data_source: Any, evaluation: bool = False) -> Any:
    """Return what :func:`generate` does, as the batch of one person."""
    samples = generate(args, rollout_id, data_source, evaluation)
    return RolloutFnTrainOutput(samples, person=PEOPLE[rollout_id % len(PEOPLE)])
