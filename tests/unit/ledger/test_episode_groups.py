"""A group that its driver closes, in the ledger: what was committed is settled after a crash, and only what is the group's."""

from __future__ import annotations

from pathlib import Path

import pytest

from openclaw.credit.episodes import settle
from openclaw.ledger.episodes import Settled
from openclaw.ledger.exceptions import EpisodeConflictError, UnknownRecordError
from openclaw.ledger.store import Ledger
from tests.helpers.episodes import RULES, create, three_turns


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "ledger.sqlite", clock=lambda: 100.0)


def closed(ledger: Ledger, name: str, reward: float, group: str = "g", owner: str = "alice") -> str:
    episode = create(ledger, name, owner=owner, group=group, group_size=4)
    three_turns(ledger, episode)
    ledger.episodes.close(episode.id, "ok", reward)
    return episode.id


def test_a_crash_after_the_close_loses_nothing(ledger: Ledger) -> None:
    ids = [closed(ledger, "a", 1.0), closed(ledger, "b", -1.0)]
    assert ledger.episodes.close_group("alice", "g") == []
    ledger.close()
    again = Ledger(ledger.path, clock=lambda: 100.0)
    assert [(each.id, each.reason, each.segments) for each in settle(again, RULES)] == [(each, None, 2) for each in ids]
    assert again.episodes.close_group("alice", "g") == []
    assert settle(again, RULES) == []


def test_other_groups_and_other_owners_go_on_waiting(ledger: Ledger) -> None:
    mine = closed(ledger, "a", 1.0)
    for name, group, owner in (("b", "h", "alice"), ("c", "g", "bob"), ("d", "g", "alice/tests")):
        closed(ledger, name, 1.0, group, owner)
    ledger.episodes.close_group("alice", "g")
    assert settle(ledger, RULES) == [Settled(mine, "straggler")]


def test_a_refused_close_changes_nothing(ledger: Ledger) -> None:
    closed(ledger, "a", 1.0)
    opened = create(ledger, "b", group="g", group_size=4)
    with pytest.raises(EpisodeConflictError, match=r"1 episodes of the group 'g' are open; .*send end_open"):
        ledger.episodes.close_group("alice", "g")
    with pytest.raises(UnknownRecordError):
        ledger.episodes.close_group("alice", "other", end_open=True)
    assert settle(ledger, RULES) == []
    assert ledger.episodes.close_group("alice", "g", end_open=True) == [Settled(opened.id, "infra_error")]
    assert ledger.episodes.get(opened.id).key_digest is None


def test_a_member_that_comes_between_close_and_settling_is_waited_for(ledger: Ledger) -> None:
    ids = [closed(ledger, name, reward) for name, reward in (("a", 1.0), ("b", -1.0))]
    ledger.episodes.close_group("alice", "g")
    create(ledger, "c", group="g", group_size=4)
    assert settle(ledger, RULES) == []
    ledger.episodes.close_group("alice", "g", end_open=True)
    assert {each.id for each in settle(ledger, RULES)} == set(ids)
