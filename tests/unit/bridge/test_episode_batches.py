"""What the trainer gets of episodes: whole ones beside people's turns, each a rollout with one denominator."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from lab.testkit.ledger_records import judged_sample
from openclaw.credit.episodes import settle
from openclaw.ledger.records import VersionSpan
from openclaw.runtime.process import RuntimeSupervisor
from openclaw.training.rollout import LedgerDataSource, batch_metrics, collect
from slime.args import Arguments
from slime.rollout.train_data import convert, samples_of_steps
from slime.utils.types import Sample
from tests.helpers.episodes import RULES, create, rewarded, say
from tests.helpers.rollout_args import rollout_args

NOT_ASKED = cast("RuntimeSupervisor", None)
"""The samples are ready, so nobody waits for the runtime process."""


@pytest.fixture
def args(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Arguments:
    monkeypatch.delenv("OPENCLAW_LEDGER", raising=False)
    return rollout_args(tmp_path, rollout_batch_size=2, global_batch_size=2)


@pytest.fixture
def source(args: Arguments) -> LedgerDataSource:
    return LedgerDataSource(args)


def batch(args: Arguments, source: LedgerDataSource, rollout_id: int = 0) -> tuple[list[Sample], int]:
    samples, dropped, _ = collect(args, rollout_id, source, NOT_ASKED)
    return samples, dropped


def test_an_episode_is_one_rollout_beside_a_persons_turn(args: Arguments, source: LedgerDataSource) -> None:
    rewarded(source.ledger, "a", 0.5)
    judged_sample(source.ledger, "turn")
    rewarded(source.ledger, "b", -0.5)
    samples, _ = batch(args, source)
    assert [sample.metadata.get("episode") for sample in samples] == ["episode-a", "episode-a", None]
    data: dict[str, Any] = convert(args, samples)
    assert data["rollout_ids"] == [0, 0, 1]
    assert data["rollout_mask_sums"] == [5, 5, 3], "the tokens of an episode share one denominator"
    assert len({*data["group_indices"]}) == 3, "no advantage group is shared"
    assert data["rewards"] == [0.5, 0.5, 1.0]
    assert samples_of_steps(data, args) == ([[0, 1, 2]], [2]), "the step counts two rollouts"
    metrics = batch_metrics(source.ledger, samples, None)
    assert (metrics["openclaw/episodes"], metrics["openclaw/episode_segments"]) == (1.0, 2.0)
    assert metrics["openclaw/episode_turns"] == 3.0
    assert len(source) == 1


def test_normalised_rewards_leave_those_of_episodes_alone(args: Arguments, source: LedgerDataSource) -> None:
    args.advantage_estimator, args.rewards_normalization = "grpo", True
    rewarded(source.ledger, "a", 0.5)
    judged_sample(source.ledger, "turn")
    assert convert(args, batch(args, source)[0])["rewards"] == [0.5, 0.5, 1.0]


def test_a_reward_without_a_group_loses_its_baseline_at_the_trainer(args: Arguments, source: LedgerDataSource) -> None:
    rewarded(source.ledger, "a", 0.5)
    rewarded(source.ledger, "b", 0.5)
    samples, _ = batch(args, source)
    baseline = 0.5 / (1 + 8 * (1 - 1 / 64))
    assert [sample.reward for sample in samples] == pytest.approx([0.5, 0.5, 0.5 - baseline, 0.5 - baseline])


def test_an_episode_is_stale_as_a_whole_and_as_its_oldest_token(args: Arguments, source: LedgerDataSource) -> None:
    args.max_weight_staleness = 2
    episode = create(source.ledger, "old")
    say(source.ledger, episode, "one", [1], [2])
    say(source.ledger, episode, "new", [3], [4], weight_versions=[VersionSpan("5", 0, 1)])
    source.ledger.episodes.close(episode.id, "ok", 1.0)
    judged_sample(source.ledger, "turn", version="5")
    fresh = create(source.ledger, "fresh")
    say(source.ledger, fresh, "one", [1], [2], weight_versions=[VersionSpan("3", 0, 1)])
    source.ledger.episodes.close(fresh.id, "ok", -1.0)
    settle(source.ledger, RULES)
    source.weights_live(0, "5")
    samples, dropped = batch(args, source, 1)
    assert dropped == 2
    assert [sample.metadata.get("episode") for sample in samples] == [None, fresh.id]
    assert [sample.metadata["staleness"] for sample in samples] == [0, 2]
    assert source.ledger.views.counts()["sample_reasons"] == {"stale": 2}
    source.load(None)
    assert len(source) == 3, "a restored checkpoint brings all of it back"


def test_only_the_stale_tokens_of_an_episode_are_masked(args: Arguments, source: LedgerDataSource) -> None:
    args.max_weight_staleness, args.stale_samples = 2, "mask"
    episode = create(source.ledger, "long")
    say(source.ledger, episode, "one", [1], [2])
    spans = [VersionSpan("1", 0, 1), VersionSpan("5", 1, 3)]
    say(source.ledger, episode, "two", [1, 2, 3], [4, 5, 6], weight_versions=spans)
    source.ledger.episodes.close(episode.id, "ok", 1.0)
    gone = create(source.ledger, "gone", owner="bob")
    say(source.ledger, gone, "one", [1], [2])
    source.ledger.episodes.close(gone.id, "ok", -1.0)
    settle(source.ledger, RULES)
    judged_sample(source.ledger, "turn", version="3")
    source.weights_live(0, "5")
    samples, dropped = batch(args, source, 1)
    assert dropped == 1
    assert source.ledger.views.counts()["sample_reasons"] == {"stale": 1}
    (merged,) = [sample for sample in samples if "episode" in sample.metadata]
    assert (merged.tokens, merged.loss_mask) == ([1, 2, 3, 4, 5, 6], [0, 0, 0, 1, 1])
    assert convert(args, samples)["rollout_mask_sums"][samples.index(merged)] == 2
    (turn,) = [sample for sample in samples if "episode" not in sample.metadata]
    assert all(turn.loss_mask or [])
    metrics = batch_metrics(source.ledger, samples, None)
    assert (metrics["openclaw/masked_stale_tokens"], metrics["openclaw/corrected_stale"]) == (2.0, 0.0)
