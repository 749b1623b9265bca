"""A reward is compared with earlier ones of the same role, the same after any restart (finding B4)."""

from __future__ import annotations

import itertools
import random
from pathlib import Path
from typing import Any

import pytest

from groundwork.chat_messages import Message
from lab.testkit.ledger_records import USER_NEXT, make_turn
from openclaw.credit.baseline import PRIOR, WINDOW, baseline_of, mean_of, record_judged
from openclaw.ledger.feedback import as_next_state
from openclaw.ledger.records import BASELINE, WEIGHT, Feedback, Verdict
from openclaw.ledger.samples import OF_ALL, OF_OWNER
from openclaw.ledger.store import Ledger
from openclaw.owners import stored_id
from openclaw.training.samples import make_sample
from slime.utils.types import Sample

TOOL_NEXT: list[Message] = [{"role": "tool", "content": "ok", "tool_call_id": "c"}]


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "ledger.sqlite")


def judge(ledger: Ledger, reward: float, next_state: list[Message] = USER_NEXT, **changes: Any) -> float:
    """Record a turn with a sample of ``reward``; return what the trainer subtracts from it."""
    session = stored_id(changes.pop("owner", ""), "session")
    turn = make_turn(f"turn-{ledger.views.counts()['turns']}-{random.random()}", session_id=session)
    ledger.turns.record(turn)
    ledger.turns.record_next_state(turn.id, next_state, 102.0)
    weight = changes.pop("weight", None)
    metadata = {} if weight is None else {WEIGHT: weight}
    verdict = Verdict(score=1, **changes)
    record_judged(ledger, turn.id, verdict, [make_sample(turn, reward, score=1, metadata=metadata)], None)
    return newest(ledger).metadata.get(BASELINE, 0.0)


def newest(ledger: Ledger) -> Sample:
    return ledger.views.sample_records()[-1].sample


def advantages(ledger: Ledger, rewards: list[float], **changes: Any) -> list[float]:
    return [reward - judge(ledger, reward, **changes) for reward in rewards]


def test_happy_traffic_is_not_imitated(ledger: Ledger) -> None:
    """The first reply counts in full, and once the window is full an equal reward has no advantage at all."""
    found = advantages(ledger, [1.0] * (WINDOW + 2))
    assert found[0] == 1.0
    assert all(later < earlier for earlier, later in itertools.pairwise(found[: WINDOW + 1]))
    assert found[1] == pytest.approx(1 - 1 / (1 + PRIOR * (1 - 1 / WINDOW)))
    assert found[WINDOW:] == [0.0, 0.0]
    assert -1.0 - judge(ledger, -1.0) == -2.0


def test_the_mean_against_a_reference(ledger: Ledger) -> None:
    rewards = [random.Random(5).choice([1.0, -1.0]) for _ in range(WINDOW * 2)]
    for place, reward in enumerate(rewards):
        earlier = rewards[max(0, place - WINDOW) : place]
        prior = PRIOR * (1 - len(earlier) / WINDOW)
        assert judge(ledger, reward) == pytest.approx(sum(earlier) / (len(earlier) + prior) if earlier else 0.0)
    assert mean_of([]) == 0.0


def test_users_and_tools_have_baselines_of_their_own(ledger: Ledger) -> None:
    advantages(ledger, [1.0] * WINDOW, next_state=TOOL_NEXT)
    assert judge(ledger, 1.0, TOOL_NEXT) == 1.0
    assert judge(ledger, -1.0, USER_NEXT) == 0.0
    assert judge(ledger, 1.0, [*TOOL_NEXT, *USER_NEXT]) < 0.0, "a user spoke, so the user's rewards count"


def test_a_reward_of_zero_neither_counts_nor_is_compared(ledger: Ledger) -> None:
    """A hint's sample has no reward; a baseline would train the stated 0."""
    advantages(ledger, [1.0] * 4)
    assert BASELINE not in (judge(ledger, 0.0), newest(ledger).metadata)[1]
    assert judge(ledger, 1.0) == mean_of([1.0] * 4)


def test_a_rule_never_gains_from_a_baseline_and_never_moves_it(ledger: Ledger) -> None:
    advantages(ledger, [-1.0] * WINDOW)
    assert judge(ledger, -1.0, score_source="rule") == 0.0, "its advantage stays -1 where honest ones have 0"
    assert judge(ledger, -1.0) == -1.0
    happy = advantages(ledger, [1.0] * WINDOW)
    assert happy[-1] < 0.1
    broken, honest = (-1.0 - judge(ledger, -1.0, score_source=source) for source in ("rule", "judge"))
    assert broken == honest == -2.0


def test_a_share_of_a_request_is_compared_as_a_share(ledger: Ledger) -> None:
    advantages(ledger, [1.0] * WINDOW)
    assert judge(ledger, 0.25, weight=0.25, score_source="feedback") == 0.25
    assert judge(ledger, 1.0) == 1.0, "it counted as one reply"


def test_a_restart_and_a_repeated_step_use_the_same_numbers(ledger: Ledger) -> None:
    advantages(ledger, [1.0, -1.0, 1.0, 1.0])
    first = [sample.metadata[BASELINE] for sample in ledger.samples.claim(0, 3)]
    again = Ledger(ledger.path)
    again.samples.reconcile(-1)
    judge(again, 1.0)
    assert [sample.metadata[BASELINE] for sample in again.samples.claim(0, 3)] == first
    assert judge(again, 1.0) == mean_of([1.0, 1.0, 1.0, -1.0, 1.0])


def test_a_verdict_that_feedback_replaced_does_not_count(ledger: Ledger) -> None:
    judge(ledger, 1.0)
    feedback = Feedback(turn_id=newest_turn(ledger), created_at=110.0, thumbs="down")
    ledger.feedback.record(feedback, as_next_state(feedback))
    assert judge(ledger, 1.0) == 0.0


def newest_turn(ledger: Ledger) -> str:
    return ledger.views.sample_records()[-1].turn_id


@pytest.mark.parametrize("order", ["alternating", "one after the other"])
def test_a_strict_and_a_lenient_person_have_baselines_of_their_own(ledger: Ledger, order: str) -> None:
    """Equal rewards of one person mean nothing in the end, whatever another one says, and the first ones still count."""
    said = [("alice", 1.0), ("bob", -1.0)] * WINDOW
    if order == "one after the other":
        said = [("alice", 1.0)] * WINDOW + [("bob", -1.0)] * WINDOW
    for owner, reward in said:
        judge(ledger, reward, owner=owner)
    assert [judge(ledger, reward, owner=owner) for owner, reward in (("alice", 1.0), ("bob", -1.0))] == [1.0, -1.0]
    assert judge(ledger, 1.0, owner="alice/agent") == 1.0, "a child key's people are its parent's"
    assert -0.1 < judge(ledger, 1.0, owner="carol") < 0.1 if order == "alternating" else True


def test_a_new_person_begins_with_what_the_others_say(ledger: Ledger) -> None:
    for _ in range(WINDOW):
        judge(ledger, 1.0, owner="alice")
    assert judge(ledger, -1.0, owner="bob") == 1.0
    fade = PRIOR * (1 - 1 / WINDOW)
    others = (WINDOW - 1) / (WINDOW - 1 + PRIOR / WINDOW)
    assert judge(ledger, -1.0, owner="bob") == pytest.approx((-1.0 + fade * others) / (1 + fade))


@pytest.mark.parametrize(
    ("query", "index", "values"),
    [
        (OF_OWNER, "samples_by_owner (baseline_owner=? AND baseline_role=?)", ("alice", "user", WINDOW)),
        (OF_ALL, "samples_by_role (baseline_role=?)", ("user", WINDOW)),
    ],
)
def test_the_cost_is_two_indexed_reads(ledger: Ledger, query: str, index: str, values: tuple[Any, ...]) -> None:
    plan = ledger.database.rows(f"EXPLAIN QUERY PLAN {query}", values)
    assert [row["detail"] for row in plan] == [f"SEARCH samples USING COVERING INDEX {index}"]


def test_with_an_adapter_per_person_nobody_elses_rewards_are_a_prior(ledger: Ledger) -> None:
    for _ in range(PRIOR):
        judge(ledger, 1.0, owner="alice")
    assert baseline_of(ledger, "bob", "user") > 0.0
    assert baseline_of(ledger, "bob", "user", alone=True) == 0.0
    judge(ledger, -1.0, owner="bob")
    assert baseline_of(ledger, "bob", "user", alone=True) == mean_of([-1.0])
