"""One owner leaves room in a batch while others have ready samples, and fills it alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from groundwork.exceptions import ConfigError
from lab.testkit.ledger_records import USER_NEXT, judged_sample, make_turn
from openclaw.credit.baseline import record_judged
from openclaw.inspect import main
from openclaw.ledger.feedback import as_next_state
from openclaw.ledger.records import Feedback, ScoreSource, Verdict
from openclaw.ledger.samples import BATCHES, IN_BATCHES, Candidate, Quota, choose, most
from openclaw.ledger.store import Ledger
from openclaw.owners import stored_id
from openclaw.training.samples import make_sample

HALF = Quota(owner=0.5, feedback=0.25)
KINDS = st.tuples(st.sampled_from(["", "alice", "bob", "carol"]), st.booleans())
SHARES = st.sampled_from([0.05, 0.1, 0.25, 0.3, 0.5, 0.75, 1.0])
QUOTAS = st.builds(Quota, owner=SHARES, feedback=SHARES)


def candidates(kinds: list[tuple[str, bool]], first: int = 1) -> list[Candidate]:
    return [Candidate(first + number, owner, stated) for number, (owner, stated) in enumerate(kinds)]


def of(owner: str, count: int, *, stated: bool = False) -> list[tuple[str, bool]]:
    return [(owner, stated)] * count


@given(st.lists(KINDS, max_size=60), st.lists(KINDS, max_size=10), st.integers(1, 24), QUOTAS)
def test_a_batch_is_full_and_shared(
    kinds: list[tuple[str, bool]], held_kinds: list[tuple[str, bool]], batch: int, quota: Quota
) -> None:
    held = candidates(held_kinds)
    ready = candidates(kinds, first=100)
    ids = choose(ready, held, batch, quota)
    chosen = [sample for sample in ready if sample.id in ids]
    left = [sample for sample in ready if sample.id not in ids]
    assert len(set(ids)) == len(ids) == len(chosen) == min(max(0, batch - len(held)), len(ready))
    for kind in set(kinds):
        mine = [sample for sample in ready if (sample.owner, sample.stated) == kind]
        taken = [sample for sample in mine if sample.id in ids]
        assert taken == mine[: len(taken)], "the oldest of a kind first"
    samples = Counter(sample.owner for sample in [*held, *chosen])
    stated = Counter(sample.owner for sample in [*held, *chosen] if sample.stated)
    most_samples, most_stated = most(quota.owner, batch), most(quota.feedback, batch)
    for owner in {sample.owner for sample in chosen}:
        others = [sample for sample in left if sample.owner != owner]
        if samples[owner] > most_samples:
            assert all(samples[other.owner] >= max(most_samples, samples[owner] - 1) for other in others)
        if stated[owner] > most_stated and any(each.stated for each in chosen if each.owner == owner):
            for other in others:
                assert samples[other.owner] >= most_samples or (other.stated and stated[other.owner] >= most_stated)
    everything = [*held, *chosen]
    if len(everything) >= batch:
        assert choose([*left, *candidates(of("dave", 3), 1000)], everything, batch, quota) == []


@given(st.lists(st.booleans(), max_size=40), st.lists(KINDS, max_size=6), st.integers(1, 24), QUOTAS)
def test_a_single_owner_is_served_oldest_first(
    stated: list[bool], held_kinds: list[tuple[str, bool]], batch: int, quota: Quota
) -> None:
    ready = candidates([("alice", each) for each in stated], first=100)
    wanted = max(0, batch - len(held_kinds))
    assert choose(ready, candidates(held_kinds), batch, quota) == [sample.id for sample in ready[:wanted]]


@pytest.mark.parametrize(
    ("kinds", "owners"),
    [
        (of("alice", 40) + of("bob", 40), {"alice": 8, "bob": 8}),
        (of("alice", 40) + of("bob", 3), {"alice": 13, "bob": 3}),
        (of("alice", 40) + of("bob", 4) + of("carol", 4), {"alice": 8, "bob": 4, "carol": 4}),
        (of("alice", 40, stated=True) + of("bob", 20) + of("carol", 20), {"alice": 4, "bob": 6, "carol": 6}),
        (of("alice", 40, stated=True) + of("bob", 40), {"alice": 8, "bob": 8}),
        (of("alice", 40) + of("bob", 40) + of("carol", 40), {"alice": 6, "bob": 5, "carol": 5}),
    ],
)
def test_shares_of_a_batch_of_sixteen(kinds: list[tuple[str, bool]], owners: dict[str, int]) -> None:
    ready = candidates(kinds)
    ids = set(choose(ready, [], 16, HALF))
    assert Counter(sample.owner for sample in ready if sample.id in ids) == owners


def test_shares_that_cannot_fill_a_batch_give_way_to_the_owner_with_the_fewest() -> None:
    ready = candidates(of("alice", 40) + of("bob", 40) + of("carol", 40))
    ids = set(choose(ready, [], 16, Quota(owner=0.25, feedback=1.0)))
    assert Counter(sample.owner for sample in ready if sample.id in ids) == {"alice": 6, "bob": 5, "carol": 5}


@given(
    st.lists(KINDS, max_size=60),
    st.integers(1, 24),
    QUOTAS,
    st.dictionaries(st.sampled_from("abc"), st.integers(0, 99)),
)
def test_who_had_little_before_comes_first_within_the_shares(
    kinds: list[tuple[str, bool]], batch: int, quota: Quota, before: dict[str, int]
) -> None:
    recent = {{"a": "alice", "b": "bob", "c": "carol"}[name]: count for name, count in before.items()}
    ready = candidates([(owner, False) for owner, _ in kinds])
    ids = choose(ready, [], batch, quota, recent)
    taken = Counter(sample.owner for sample in ready if sample.id in ids)
    left = {sample.owner for sample in ready if sample.id not in ids}
    for owner in left:
        for other, count in taken.items():
            had, has = recent.get(owner, 0) + taken[owner], recent.get(other, 0) + count
            assert taken[owner] >= most(quota.owner, batch) or had >= has - 1


def shares_over(batches: int, sends: dict[str, Callable[[int], int]], batch: int = 16) -> dict[str, float]:
    """Return each owner's part of what was trained; ``sends``: new samples of an owner by batch, all scored by thumbs."""
    ready: list[Candidate] = []
    history: list[Counter[str]] = []
    number = 0
    for step in range(batches):
        for owner, count in sends.items():
            for _ in range(count(step)):
                number += 1
                ready.append(Candidate(number, owner, True))
        ids = set(choose(ready, [], batch, HALF, sum(history[-BATCHES + 1 :], Counter())))
        history.append(Counter(sample.owner for sample in ready if sample.id in ids))
        ready = [sample for sample in ready if sample.id not in ids]
    total = sum(history, Counter())
    return {owner: total[owner] / total.total() for owner in sends}


FLOOD: Callable[[int], int] = lambda step: 64  # noqa: E731


@pytest.mark.parametrize("names", [1, 3, 14])
@pytest.mark.parametrize(
    "alice",
    [lambda step: 1, lambda step: 5 * (step in (0, 5)), lambda step: 10 * (step == 0)],
    ids=["one each", "five at a time", "ten at once"],
)
def test_a_sixteenth_of_the_traffic_is_a_sixteenth_of_ten_batches(names: int, alice: Callable[[int], int]) -> None:
    """Whenever its samples come, and by however many names another one sends whatever it can."""
    found = shares_over(10, {**{f"mallory-{number}": FLOOD for number in range(names)}, "alice": alice})
    assert found["alice"] == pytest.approx(sum(map(alice, range(10))) / 160)


@pytest.mark.parametrize(("names", "part"), [(1, 0.5), (3, 0.25), (7, 0.125)])
def test_who_sends_enough_has_an_equal_part(names: int, part: float) -> None:
    """A person with several names has several parts; names are keys, which the operator gives out."""
    found = shares_over(10, {**{f"mallory-{number}": FLOOD for number in range(names)}, "alice": lambda step: 8})
    assert found["alice"] == pytest.approx(part, abs=0.02)


def test_a_share_is_rounded_up_from_its_decimal_digits() -> None:
    assert [most(0.07, 100), most(0.5, 3), most(0.1, 30), most(1.0, 16), most(0.001, 4)] == [7, 2, 3, 16, 1]


def test_the_environment_sets_the_shares() -> None:
    assert Quota.from_env({}) == Quota(owner=0.5, feedback=0.25)
    assert Quota.from_env({"OPENCLAW_OWNER_SHARE": "1", "OPENCLAW_FEEDBACK_SHARE": "0.1"}) == Quota(1.0, 0.1)
    with pytest.raises(ConfigError, match="OPENCLAW_OWNER_SHARE"):
        Quota.from_env({"OPENCLAW_OWNER_SHARE": "0"})


def stated_sample(ledger: Ledger, turn_id: str, session_id: str) -> None:
    """Record a turn with a thumbs-up and the sample that follows from it."""
    turn = make_turn(turn_id, session_id=session_id)
    ledger.turns.record(turn)
    feedback = Feedback(turn_id=turn_id, created_at=102.0, thumbs="up")
    ledger.feedback.record(feedback, as_next_state(feedback))
    verdict = Verdict(score=1, score_source="feedback")
    record_judged(ledger, turn_id, verdict, [make_sample(turn, 1.0, score=1)], None, 1)


def test_a_typed_thumb_counts_for_the_share_of_feedback(ledger: Ledger) -> None:
    """Feedback has a row of its own; a message that is only a thumb has a verdict."""
    for number in range(8):
        source: ScoreSource = "feedback" if number < 4 else "judge"
        turn = make_turn(f"a-{number}", session_id=stored_id("alice", source))
        ledger.turns.record(turn)
        verdict = Verdict(score=1, score_source=source)
        ledger.turns.record_next_state(turn.id, USER_NEXT, 1.0)
        record_judged(ledger, turn.id, verdict, [make_sample(turn, 1.0, score=1)], None, 0)
    judged_sample(ledger, "b", session_id=stored_id("bob", "s"))
    batch = ledger.samples.claim(0, 4, Quota(owner=1.0, feedback=0.25))
    assert Counter(sample.session_id for sample in batch) == {"@alice:feedback": 1, "@alice:judge": 2, "@bob:s": 1}


def owners_of(ledger: Ledger, rollout_id: int, count: int) -> Counter[str]:
    samples = ledger.samples.claim(rollout_id, count, HALF)
    return Counter((sample.session_id or "").partition(":")[0] for sample in samples)


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "ledger.sqlite")


def test_a_flood_of_one_key_leaves_half_of_the_batch_to_another(ledger: Ledger) -> None:
    for number in range(24):
        stated_sample(ledger, f"a-{number}", stored_id("alice" if number % 2 else "alice/agent", f"s-{number}"))
    for number in range(6):
        judged_sample(ledger, f"b-{number}", session_id=stored_id("bob", "s"))
    assert owners_of(ledger, 0, 8) == {"@alice": 2, "@alice/agent": 2, "@bob": 4}, "a child key counts as its parent"
    assert owners_of(ledger, 0, 8)["@bob"] == 4, "claimed again"
    assert owners_of(ledger, 1, 8)["@bob"] == 2
    assert owners_of(ledger, 2, 8).total() == 8, "alone again"


def test_batches_before_count_for_their_owners(ledger: Ledger) -> None:
    """The third person's samples are the newest, and older ones of the others are ready."""
    for number in range(24):
        for owner in ("alice", "bob"):
            judged_sample(ledger, f"{owner}-{number}", session_id=stored_id(owner, "s"))
    assert owners_of(ledger, 0, 8) == {"@alice": 4, "@bob": 4}
    for number in range(8):
        judged_sample(ledger, f"c-{number}", session_id=stored_id("carol", "s"))
    assert [owners_of(ledger, step, 8)["@carol"] for step in (1, 2)] == [4, 4]
    plan = ledger.database.rows(f"EXPLAIN QUERY PLAN SELECT id FROM samples WHERE {IN_BATCHES}", (0, 9))
    assert [row["detail"] for row in plan] == [
        "SEARCH samples USING INDEX samples_by_rollout (rollout_id>? AND rollout_id<?)"
    ]


def test_claiming_again_gives_the_same_samples_when_others_have_arrived(ledger: Ledger) -> None:
    for number in range(9):
        judged_sample(ledger, f"a-{number}", session_id=stored_id("alice", "s"))
    first = [sample.metadata["ledger_id"] for sample in ledger.samples.claim(0, 8, HALF)]
    assert first == list(range(1, 9))
    for number in range(9):
        judged_sample(ledger, f"b-{number}", session_id=stored_id("bob", "s"))
    assert [sample.metadata["ledger_id"] for sample in ledger.samples.claim(0, 8, HALF)] == first
    ledger.samples.drop(8, "stale", 0)
    assert [sample.metadata["ledger_id"] for sample in ledger.samples.claim(0, 8, HALF)] == [*range(1, 8), 10]


def test_inspect_shows_owners_when_there_are_several(ledger: Ledger, capsys: pytest.CaptureFixture[str]) -> None:
    judged_sample(ledger, "l-0")
    ledger.samples.claim(0, 1)
    assert main([str(ledger.path)]) == 0
    assert "owner" not in capsys.readouterr().out
    stated_sample(ledger, "a-0", stored_id("alice", "s"))
    judged_sample(ledger, "a-1", session_id=stored_id("alice/agent", "s"))
    assert main([str(ledger.path)]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines() if line.startswith("owner ")]
    assert [" ".join(words) for words in lines] == [
        "owner local samples: ready 0 in a step 1 scored by feedback 0",
        "owner alice samples: ready 2 in a step 0 scored by feedback 1",
    ]
