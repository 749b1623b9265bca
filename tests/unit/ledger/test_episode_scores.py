"""Scores of an episode's turns: stored once, and part of the reward that is compared."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from openclaw.credit.baseline import PRIOR, WINDOW
from openclaw.credit.episodes import settle
from openclaw.inspect import main as inspect
from openclaw.ledger.exceptions import EpisodeConflictError, UnknownTurnError
from openclaw.ledger.records import BASELINE
from openclaw.ledger.store import Ledger
from tests.helpers.episodes import RULES, create, three_turns

TURNS = ("one", "two", "branch")
NUMBERS = st.floats(-1, 1, allow_nan=False).map(lambda value: round(value, 3))
SCORED = st.tuples(NUMBERS, st.dictionaries(st.sampled_from(TURNS), NUMBERS))

UNSHRUNK = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], phases=[Phase.generate])
"""Each example is a ledger of its own, so a failure is shown as it was found: a smaller one takes minutes."""


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "ledger.sqlite", clock=lambda: 100.0)


def close(ledger: Ledger, name: str, reward: float, scores: dict[str, float], **changes: object) -> str:
    """Create an episode with three turns, and reward it; return its id."""
    episode = create(ledger, name, **changes)  # type: ignore[arg-type]
    three_turns(ledger, episode)
    ledger.episodes.close(episode.id, "ok", reward, {f"{episode.id}-{turn}": score for turn, score in scores.items()})
    return episode.id


def whole(reward: float, scores: dict[str, float], coefficient: float) -> np.float64:
    """The reward of an episode by its definition, in float64."""
    values = np.array(list(scores.values()), dtype=np.float64)
    return np.float64(reward) + (np.float64(coefficient) * values.sum() / len(values) if len(values) else 0)


def rewards_of(ledger: Ledger) -> dict[str, float]:
    return {sample.metadata["episode"]: sample.reward for sample in ledger.samples.claim(0, 99)}


@settings(UNSHRUNK, max_examples=15)
@given(episodes=st.lists(SCORED, min_size=2, max_size=4), coefficient=st.sampled_from([0.0, 0.3, 1.0]))
def test_advantages_of_a_group_are_those_of_the_definition(
    tmp_path_factory: pytest.TempPathFactory, episodes: list[tuple[float, dict[str, float]]], coefficient: float
) -> None:
    ledger = Ledger(tmp_path_factory.mktemp("ledger") / "ledger.sqlite")
    together = {"group": "g", "group_size": len(episodes)}
    ids = [close(ledger, f"e{number}", *each, **together) for number, each in enumerate(episodes)]
    settle(ledger, replace(RULES, step_coefficient=coefficient))
    values = np.array([whole(*each, coefficient) for each in episodes])
    found = rewards_of(ledger)
    ledger.close()
    if np.ptp(values) < 1e-9:
        return
    expected = (values - values.mean()) / (np.std(values, ddof=1) + 1e-6)
    assert [found[name] for name in ids] == pytest.approx(expected.tolist(), rel=1e-9, abs=1e-9)


@settings(UNSHRUNK, max_examples=8)
@given(rewards=st.lists(NUMBERS, min_size=2, max_size=4), coefficient=st.sampled_from([0.3, 1.0, 7.0]))
def test_without_scores_the_coefficient_changes_nothing(
    tmp_path_factory: pytest.TempPathFactory, rewards: list[float], coefficient: float
) -> None:
    found = []
    for number in (0.0, coefficient):
        ledger = Ledger(tmp_path_factory.mktemp("ledger") / "ledger.sqlite")
        for place, reward in enumerate(rewards):
            close(ledger, f"g{place}", reward, {}, group="g", group_size=len(rewards))
            close(ledger, f"alone{place}", reward, {})
            settle(ledger, replace(RULES, step_coefficient=number))
        samples = ledger.samples.claim(0, 99)
        found.append([(each.metadata["episode"], each.reward, each.metadata.get(BASELINE)) for each in samples])
        ledger.close()
    assert found[0] == found[1]


def test_an_episode_without_a_group_is_compared_with_earlier_rewards_and_their_scores(ledger: Ledger) -> None:
    told = [(1.0, {"one": -1.0, "two": 0.5}), (0.0, {}), (-0.5, {"branch": 1.0})]
    rules, earlier = replace(RULES, step_coefficient=0.4), list[float]()
    for number, each in enumerate(told):
        name = close(ledger, str(number), *each)
        settle(ledger, rules)
        fade = PRIOR * (1 - len(earlier) / WINDOW)
        baseline = np.sum(earlier) / (len(earlier) + fade)
        [first, _] = [sample for sample in ledger.samples.claim(number, 1) if sample.metadata["episode"] == name]
        earlier.append(float(whole(*each, 0.4)))
        assert (first.reward, first.metadata[BASELINE]) == pytest.approx((earlier[-1], baseline))
        assert first.metadata["raw_reward"] == each[0]


def test_scores_alone_can_make_a_difference_or_take_it_away(ledger: Ledger) -> None:
    for name, reward, score in (("a", 1.0, 1.0), ("b", 1.0, -1.0)):
        close(ledger, name, reward, {"one": score}, group="same", group_size=2)
    for name, reward, score in (("c", 1.0, -1.0), ("d", -1.0, 1.0)):
        close(ledger, name, reward, {"two": score}, group="other", group_size=2)
    reasons = {settled.id: settled.reason for settled in settle(ledger, RULES)}
    assert reasons == {"episode-a": None, "episode-b": None, "episode-c": "no_signal", "episode-d": "no_signal"}
    close(ledger, "alone", 0.5, {"one": -0.5})
    assert [settled.reason for settled in settle(ledger, RULES)] == ["no_signal"]
    close(ledger, "another", 0.0, {"one": -0.5})
    assert [settled.reason for settled in settle(ledger, RULES)] == [None]


def test_scores_are_given_once_with_the_reward(ledger: Ledger) -> None:
    episode, other = create(ledger, "a"), create(ledger, "b")
    for each in (episode, other):
        three_turns(ledger, each)
    for unknown in (f"{other.id}-one", "chatcmpl-1"):
        with pytest.raises(UnknownTurnError, match=unknown):
            ledger.episodes.close(episode.id, "ok", 1.0, {f"{episode.id}-one": 0.5, unknown: 0.5})
    assert (ledger.episodes.get(episode.id).state, ledger.episodes.get(episode.id).scores) == ("open", {})
    scores = {f"{episode.id}-one": 0.5, f"{episode.id}-branch": -1.0}
    assert ledger.episodes.close(episode.id, "ok", 1.0, scores)
    assert not ledger.episodes.close(episode.id, "ok", 1.0, dict(reversed(scores.items())))
    for different in ({}, {**scores, f"{episode.id}-one": 0.4}, {**scores, "chatcmpl-1": 0.0}):
        with pytest.raises(EpisodeConflictError, match="2 scores"):
            ledger.episodes.close(episode.id, "ok", 1.0, different)
    assert ledger.episodes.get(episode.id).scores == scores
    ledger.episodes.delete(episode.id)
    assert ledger.database.rows("SELECT scores FROM episodes WHERE id = ?", (episode.id,))[0]["scores"] is None


def test_inspect_shows_scores(ledger: Ledger, capsys: pytest.CaptureFixture[str]) -> None:
    close(ledger, "a", 1.0, {"two": -0.25})
    assert inspect([str(ledger.path), "--episode", "episode-a"]) == 0
    assert capsys.readouterr().out.count("score ") == 1
