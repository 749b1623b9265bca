"""One optimizer step of a tiny model over recorded turns: from the ledger's batch to the trainer, without Ray."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from lab.testkit import tiny_random
from lab.testkit.trainer import shards, trainer_args
from openclaw.credit.baseline import record_judged
from openclaw.ledger.records import Turn, Verdict
from openclaw.ledger.store import Ledger
from openclaw.training.rollout import prepare
from openclaw.training.samples import make_sample
from slime.rollout.train_data import TrainData, convert
from tests.helpers.trainer_ranks import start_actor

ROLLOUT = 0
LAST_TOKENS = 1024
"""A client's prompt is tens of thousands of the tests' small tokens; the model reads the end of it."""


def judge(ledger: Ledger, turns: Sequence[Turn]) -> None:
    """Give the turns, which have their next states, verdicts in turn good and bad, and a sample each."""
    for number, turn in enumerate(turns):
        score = -1 if number % 2 else 1
        record_judged(ledger, turn.id, Verdict(score=score), [make_sample(turn, float(score), score=score)], None)


def with_last_tokens(data: TrainData) -> dict[str, Any]:
    """Return training data whose prompts begin later; the replies stay whole."""
    assert max(data["response_lengths"]) < LAST_TOKENS
    tokens = [list(ids[-LAST_TOKENS:]) for ids in data["tokens"]]
    return {**data, "tokens": tokens, "total_lengths": [len(ids) for ids in tokens]}


def train(path: Path, turns: Sequence[Turn]) -> tuple[TrainData, dict[str, Any]]:
    """Judge turns of the ledger at ``path``, train the batch that the ledger then gives, and return its data and the metrics."""
    with closing(Ledger(path)) as ledger:
        judge(ledger, turns)
        claimed = ledger.samples.claim(ROLLOUT, len(turns))
        assert len(claimed) == len(turns)
        samples = [prepare(sample, None, compares=False) for sample in claimed]
        model = tiny_random.build(path.parent / "model")
        args = trainer_args(model, use_rollout_logprobs=True)
        data = convert(args, samples)
        actor, _ = start_actor(args)
        try:
            metrics = actor.train(ROLLOUT, shards(args, with_last_tokens(data), 1)[0])
        finally:
            actor.shutdown()
        assert metrics is not None
        assert ledger.samples.mark_trained(ROLLOUT) == len(turns)
    return data, metrics
