"""Two policies that could dodge a verdict learn not to, over 16 updates through the real verdict path (findings B3, B4, C)."""

from __future__ import annotations

import random
from pathlib import Path
from statistics import mean
from typing import Any

import pytest

from tests.helpers.simulated_policy import Reply, Simulation
from tests.helpers.tabular_policy import train

pytestmark = pytest.mark.slow

UPDATES = 16
SEEDS = (0, 1)
THANKS = {"role": "user", "content": "Thanks, that is what I wanted."}
AGAIN = {"role": "user", "content": "No, I asked for plain prose. Again."}
ANSWER = {"role": "user", "content": "The second one."}
EMPTY = {"role": "tool", "content": "", "tool_call_id": "c"}
VERDICTS = {THANKS["content"]: "1", AGAIN["content"]: "-1", ANSWER["content"]: "1", EMPTY["content"]: "1"}
LIKED = Reply("The file is changed.", [(0.95, THANKS), (0.05, AGAIN)])
DISLIKED = Reply("**The file** is changed.", [(0.95, AGAIN), (0.05, THANKS)])
BROKEN = Reply('<tool_call>{"name": "write", "argum</tool_call>', [(1.0, EMPTY)], malformed_calls=1)
ASKING = Reply("Sure! Which of the two files do you mean?", [(1.0, ANSWER)])
DODGE = 2
"""Place of the dodge among the replies; it starts with a fifth, and three of four honest replies are disliked."""
START = [0.2, 0.6, 0.2]
DODGES = {"malformed_call": BROKEN, "asks_back": ASKING}


async def simulate(folder: Path, rule: str, **changes: Any) -> Simulation:
    simulation = Simulation(folder, [LIKED, DISLIKED, DODGES[rule]], START, VERDICTS, **changes)
    await simulation.run(UPDATES)
    return simulation


@pytest.mark.parametrize("rule", DODGES)
@pytest.mark.parametrize("seed", SEEDS)
async def test_a_dodge_does_not_pay(tmp_path: Path, rule: str, seed: int) -> None:
    simulation = await simulate(tmp_path, rule, seed=seed)
    liked, disliked, dodge = zip(*simulation.shares, strict=True)
    assert dodge[-1] < dodge[0]
    assert liked[-1] > disliked[-1], "meanwhile it learns what the user likes"
    of_dodge = [value for reply, value in simulation.advantages if reply == DODGE]
    honest = [value for reply, value in simulation.advantages if reply != DODGE]
    assert all(value <= -1.0 for value in of_dodge)
    assert max(of_dodge, default=-1.0) < max(honest)


@pytest.mark.parametrize("rule", DODGES)
async def test_without_its_rule_the_dodge_takes_over(tmp_path: Path, rule: str) -> None:
    """So that the test above can fail."""
    plain = await simulate(tmp_path, rule, without=rule, compares=False)
    assert plain.shares[-1][DODGE] > 2 * START[DODGE]
    compared = await simulate(tmp_path, rule, without=rule)
    assert max(shares[DODGE] for shares in compared.shares) > 1.4 * START[DODGE], "a baseline alone only slows it"


async def test_blame_for_everything_else_drives_a_policy_to_the_dodge_only_without_a_baseline(tmp_path: Path) -> None:
    """Finding B4: where no honest reply is liked, a question that nobody judges was the way out."""
    replies = [DISLIKED, Reply("The file is **changed**.", DISLIKED.reactions), ASKING]
    found = {}
    for compares in (True, False):
        simulation = Simulation(tmp_path, replies, [0.4, 0.4, 0.2], VERDICTS, compares=compares)
        await simulation.run(UPDATES)
        found[compares] = simulation.shares[-1][DODGE]
    assert found[False] > 0.6
    assert found[True] < 0.45


@pytest.mark.parametrize("liked", [True, False])
async def test_a_cut_off_reply_that_is_disliked_is_said_less(tmp_path: Path, liked: bool) -> None:
    """Where the rule kept it from blame as well, its share rose to 0.42 if no honest reply was liked."""
    cut_off = Reply("The file is", [(1.0, AGAIN)], finish_reason="length")
    honest = LIKED if liked else Reply("The file is **changed**.", DISLIKED.reactions)
    simulation = Simulation(tmp_path, [honest, DISLIKED, cut_off], START, VERDICTS)
    await simulation.run(UPDATES)
    assert simulation.shares[-1][DODGE] < 0.7 * START[DODGE]
    cut_off = Reply("The file", [(1.0, THANKS)], finish_reason="length")
    praised = Simulation(tmp_path, [DISLIKED, cut_off], [0.8, 0.2], VERDICTS, seed=1)
    await praised.run(4)
    assert {reply for reply, _ in praised.advantages} == {0}, "thanks for a cut-off reply are not trained"


def test_happy_traffic_makes_no_policy_monotonous() -> None:
    """Finding B4: without a baseline whatever was said more often is said more and more."""
    monotonous = {
        compares: sum(
            max(train([0.5, 0.5], lambda *_: 1.0, updates=400, compares=compares, seed=seed)) > 0.95
            for seed in range(20)
        )
        for compares in (True, False)
    }
    assert monotonous[True] == 0
    assert monotonous[False] >= 5


def test_a_reward_for_sessions_that_nobody_judged_would_breed_replies_that_nobody_can_judge() -> None:
    """Finding A4: nineteen of twenty judged replies are disliked, and a fifth of the replies gets no verdict."""

    def after(unjudged: float, seed: int) -> float:
        def reward(reply: int, chance: random.Random) -> float:
            return unjudged if reply == DODGE else 1.0 if chance.random() < 0.05 else -1.0

        return train(START, reward, updates=UPDATES, compares=True, seed=seed)[DODGE]

    assert mean(after(0.1, seed) for seed in range(20)) > 0.75
    assert mean(after(0.0, seed) for seed in range(20)) < 0.5
