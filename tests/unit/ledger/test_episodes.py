"""Episodes in the ledger: from the key to the samples, whatever their turns look like and however they end."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lab.testkit.ledger_records import judged_sample
from openclaw.credit.baseline import WINDOW
from openclaw.credit.episodes import EpisodeRules, settle
from openclaw.inspect import main as inspect
from openclaw.ledger.commands import salvage
from openclaw.ledger.episodes import Episode, Settled
from openclaw.ledger.exceptions import EpisodeConflictError, OpenEpisodesError, UnknownRecordError
from openclaw.ledger.records import BASELINE
from openclaw.ledger.samples import rollout_of
from openclaw.ledger.store import Ledger
from openclaw.owners import stored_id
from openclaw.privacy.redactor import Redactor
from slime.utils.types import Sample
from tests.helpers.episodes import MOST, RULES, create, say, three_turns


@pytest.fixture
def now() -> list[float]:
    return [100.0]


@pytest.fixture
def ledger(tmp_path: Path, now: list[float]) -> Ledger:
    return Ledger(tmp_path / "ledger.sqlite", clock=lambda: now[0])


def reasons(ledger: Ledger) -> dict[str, str | None]:
    return {record.turn.id.split("-", 2)[2]: record.turn.reason for record in ledger.views.turn_records()}


def claimed(ledger: Ledger, count: int = 9, rollout_id: int = 0) -> list[Sample]:
    return ledger.samples.claim(rollout_id, count)


def test_turns_become_segments_with_the_ids_logprobs_and_versions_that_were_sampled(ledger: Ledger) -> None:
    episode = create(ledger)
    three_turns(ledger, episode)
    assert reasons(ledger) == dict.fromkeys(("one", "two", "branch"), "episode")
    assert ledger.episodes.close(episode.id, "ok", 0.5)
    assert settle(ledger, RULES) == [Settled(episode.id, None, segments=2, merged_turns=1)]
    merged, branch = claimed(ledger)
    assert merged.tokens == [1, 2, 3, 4, 5, 6]
    assert (merged.loss_mask, merged.response_length) == ([1, 1, 0, 1], 4)
    assert merged.rollout_log_probs == [-0.03, -0.04, 0.0, -0.06]
    assert merged.weight_spans == [["1", 0, 2], ["2", 3, 4]]
    assert merged.weight_versions == ["1", "2"]
    assert (branch.tokens, branch.loss_mask) == ([1, 2, 9, 8, 7], [1, 1])
    assert [sample.reward for sample in (merged, branch)] == [0.5, 0.5]
    assert [sample.metadata["turns"] for sample in (merged, branch)] == [
        ["episode-a-one", "episode-a-two"],
        ["episode-a-branch"],
    ]
    assert {rollout_of(merged), rollout_of(branch)} == {episode.id}
    assert reasons(ledger) == dict.fromkeys(("one", "two", "branch"))
    assert ledger.views.outcome("episode-a-two").sample == "leased", "a merged turn knows its sample"


def test_only_what_the_policy_sampled_for_the_trainer_is_trained(ledger: Ledger) -> None:
    episode = create(ledger)
    say(ledger, episode, "title", [1], [2], kind="side")
    say(ledger, episode, "aborted", [1, 2], [3], finish_reason="abort")
    say(ledger, episode, "grammar", [1, 4], [5], reason="grammar")
    say(ledger, episode, "after", [1, 4, 5, 6], [7], finish_reason="length")
    say(ledger, episode, "cold", [9], [9], temperature=0.0)
    say(ledger, episode, "long", [9] * RULES.max_tokens, [9])
    say(ledger, episode, "empty", [1], [])
    say(ledger, episode, "no-version", [8], [8], weight_versions=[])
    ledger.episodes.close(episode.id, "ok", 1.0)
    [settled] = settle(ledger, RULES)
    assert settled.segments == 2
    title, after = claimed(ledger)
    assert (title.tokens, title.loss_mask) == ([1, 2], [1])
    assert (after.tokens, after.response_length) == ([1, 4, 5, 6, 7], 1), "an untrained reply is context"
    assert after.status is Sample.Status.TRUNCATED
    assert reasons(ledger) == {
        "title": None,
        "aborted": "aborted",
        "grammar": "grammar",
        "after": None,
        "cold": "temperature",
        "long": "too_long",
        "empty": "no_tokens",
        "no-version": "no_weight_version",
    }


@pytest.mark.parametrize(
    ("status", "reward", "reason"),
    [("infra_error", None, "infra_error"), ("timeout", None, "no_reward"), ("ok", 0.0, "no_signal")],
)
def test_an_episode_without_a_signal_gives_no_samples_but_a_reason(
    ledger: Ledger, status: Any, reward: float | None, reason: str
) -> None:
    episode = create(ledger)
    three_turns(ledger, episode)
    ledger.episodes.close(episode.id, status, reward)
    settle(ledger, RULES)
    ended = ledger.episodes.get(episode.id)
    assert (ended.state, ended.reason, ended.segments) == ("settled", reason, 0)
    assert ledger.samples.ready_count() == 0
    assert set(reasons(ledger).values()) == {reason}


def test_a_method_that_ignores_rewards_gets_no_samples(ledger: Ledger) -> None:
    episode = create(ledger)
    three_turns(ledger, episode)
    ledger.episodes.close(episode.id, "ok", 1.0)
    settle(ledger, EpisodeRules(0.6, 1000, trains_rewards=False))
    assert ledger.episodes.get(episode.id).reason == "reward_unused"


def test_an_episode_gets_one_reward(ledger: Ledger) -> None:
    episode = create(ledger)
    assert ledger.episodes.close(episode.id, "ok", 0.5)
    assert not ledger.episodes.close(episode.id, "ok", 0.5)
    with pytest.raises(EpisodeConflictError, match="one reward"):
        ledger.episodes.close(episode.id, "ok", 0.6)
    settle(ledger, RULES)
    assert not ledger.episodes.close(episode.id, "ok", 0.5), "and also after it was settled"
    assert ledger.episodes.get(episode.id).reason == "no_turns"


def test_a_reply_that_ends_after_its_episode_is_recorded_and_not_trained(ledger: Ledger) -> None:
    episode = create(ledger)
    say(ledger, episode, "in-time", [1], [2])
    ledger.episodes.close(episode.id, "ok", 1.0)
    say(ledger, episode, "late", [1, 2, 3], [4])
    [settled] = settle(ledger, RULES)
    assert (settled.segments, settled.merged_turns) == (1, 0)
    assert reasons(ledger) == {"in-time": None, "late": "episode_over"}


def test_an_episode_that_nobody_rewards_expires(ledger: Ledger, now: list[float]) -> None:
    episode = create(ledger, ttl=10.0)
    three_turns(ledger, episode)
    assert ledger.episodes.expire() == []
    now[0] += 10.0
    assert ledger.episodes.expire() == [Settled(episode.id, "expired")]
    assert settle(ledger, RULES) == []
    assert ledger.samples.ready_count() == 0
    with pytest.raises(EpisodeConflictError, match="expired"):
        ledger.episodes.close(episode.id, "ok", 1.0)


def test_only_the_digest_of_an_open_key_is_in_the_file(ledger: Ledger) -> None:
    episode = create(ledger)
    assert [each.key_digest for each in ledger.episodes.open()] == [b"a"]
    ledger.episodes.close(episode.id, "ok", 1.0)
    assert ledger.episodes.open() == []
    assert ledger.episodes.get(episode.id).key_digest is None


def group(ledger: Ledger, count: int, **changes: Any) -> list[Episode]:
    changes = {"group": "g", "group_size": count, **changes}
    return [create(ledger, f"{changes['group']}{number}", **changes) for number in range(count)]


def test_the_rewards_of_a_full_group_are_compared_with_each_other(ledger: Ledger) -> None:
    first, second, third = group(ledger, 3)
    for episode, reward in ((first, 1.0), (second, -1.0), (third, 0.0)):
        assert ledger.samples.ready_count() == 0
        three_turns(ledger, episode)
        ledger.episodes.close(episode.id, "ok", reward)
        settle(ledger, RULES)
    rewards = {sample.metadata["episode"]: sample.reward for sample in claimed(ledger)}
    assert rewards == pytest.approx({first.id: 1.0, second.id: -1.0, third.id: 0.0}, abs=1e-5)
    raw = [sample.metadata["raw_reward"] for sample in claimed(ledger)]
    assert raw == [1.0, 1.0, -1.0, -1.0, 0.0, 0.0]
    assert all(BASELINE not in sample.metadata for sample in claimed(ledger))


def test_equal_rewards_of_a_group_have_no_signal(ledger: Ledger) -> None:
    for episode in group(ledger, 2):
        three_turns(ledger, episode)
        ledger.episodes.close(episode.id, "task_failed", -1.0)
    assert {settled.reason for settled in settle(ledger, RULES)} == {"no_signal"}
    assert ledger.samples.ready_count() == 0


def test_a_member_lost_to_the_infrastructure_is_replaced(ledger: Ledger) -> None:
    first, second = group(ledger, 2)
    with pytest.raises(EpisodeConflictError, match="has its 2 episodes"):
        create(ledger, "third", group="g", group_size=2)
    three_turns(ledger, first)
    ledger.episodes.close(first.id, "ok", 1.0)
    ledger.episodes.close(second.id, "infra_error", None)
    assert settle(ledger, RULES) == []
    third = create(ledger, "third", group="g", group_size=2)
    ledger.episodes.close(third.id, "ok", 0.0)
    assert {settled.id: settled.reason for settled in settle(ledger, RULES)} == {
        first.id: None,
        third.id: "no_turns",
    }


@pytest.mark.parametrize(("rewarded", "expected"), [(2, {None}), (1, {"straggler"})])
def test_a_group_with_missing_members_is_given_up_when_its_time_is_over(
    ledger: Ledger, now: list[float], rewarded: int, expected: set[str | None]
) -> None:
    episodes = group(ledger, 3, ttl=10.0)
    for number, episode in enumerate(episodes[:rewarded]):
        three_turns(ledger, episode)
        ledger.episodes.close(episode.id, "ok", float(number))
    assert settle(ledger, RULES) == [], "the others may still come"
    now[0] += 10.0
    assert settle(ledger, RULES) == [], "one is still open"
    ledger.episodes.expire()
    settled = settle(ledger, RULES)
    assert {each.reason for each in settled} == expected
    assert len(settled) == rewarded


def test_groups_are_of_one_owner_one_task_and_one_size(ledger: Ledger) -> None:
    create(ledger, "a", group="g", group_size=2)
    create(ledger, "b", group="g", group_size=3, owner="bob")
    with pytest.raises(EpisodeConflictError, match="another task or size"):
        create(ledger, "c", group="g", group_size=3)
    for name, owner, reward in (("a", "alice", 1.0), ("b", "bob", -1.0)):
        ledger.episodes.close(f"episode-{name}", "ok", reward)
        assert settle(ledger, RULES) == [], f"{owner}'s group waits for its own members"


def test_an_owner_has_a_bounded_number_of_open_episodes(ledger: Ledger) -> None:
    for number in range(MOST):
        create(ledger, str(number))
    with pytest.raises(OpenEpisodesError, match="reward or delete"):
        create(ledger, "more")
    create(ledger, "of-bob", owner="bob")


def test_a_reward_without_a_group_is_compared_with_earlier_episodes_only(ledger: Ledger) -> None:
    judged_sample(ledger, "a-persons-turn", session_id=stored_id("alice", "chat"))
    expected: list[float] = []
    rewards = [1.0, 1.0, -1.0]
    for number, reward in enumerate(rewards):
        episode = create(ledger, str(number))
        three_turns(ledger, episode)
        ledger.episodes.close(episode.id, "ok", reward)
        settle(ledger, RULES)
        earlier = rewards[:number]
        expected.append(sum(earlier) / (number + 8 * (1 - number / 64)))
    of_bob = create(ledger, "bob", owner="bob")
    three_turns(ledger, of_bob)
    ledger.episodes.close(of_bob.id, "ok", 1.0)
    settle(ledger, RULES)
    baselines = {s.metadata["episode"]: s.metadata[BASELINE] for s in claimed(ledger) if "episode" in s.metadata}
    assert list(baselines.values()) == pytest.approx([*expected, 0.0])
    judged_sample(ledger, "another", session_id=stored_id("alice", "chat"))
    [sample] = ledger.samples.claim(1, 1)
    assert sample.metadata[BASELINE] == pytest.approx(1 / (1 + 8 * (1 - 1 / 64))), "one earlier turn, no episode"


def test_a_batch_takes_whole_episodes_and_counts_each_as_one(ledger: Ledger) -> None:
    judged_sample(ledger, "turn", session_id=stored_id("bob", "chat"))
    for name in ("a", "b"):
        episode = create(ledger, name)
        three_turns(ledger, episode)
        ledger.episodes.close(episode.id, "ok", 1.0 if name == "a" else -1.0)
        settle(ledger, RULES)
    assert ledger.samples.ready_count() == 3
    batch = claimed(ledger, 2)
    assert [rollout_of(sample) for sample in batch] == [1, "episode-a", "episode-a"]
    assert claimed(ledger, 2) == batch
    assert (ledger.samples.leased_count(0), ledger.samples.ready_count()) == (2, 1)
    assert {rollout_of(sample) for sample in ledger.samples.claim(1, 5)} == {"episode-b"}
    ledger.samples.drop(batch[2].metadata["ledger_id"], "stale", 0)
    assert ledger.views.counts()["samples"] == {"dropped": 2, "leased": 3}
    assert ledger.samples.mark_trained(0) == 1
    assert ledger.samples.reconcile(-1) == {"trained": 0, "ready": 5}
    assert ledger.samples.ready_count() == 3


def test_forgetting_one_session_forgets_the_samples_of_its_episode(ledger: Ledger) -> None:
    episode, other = create(ledger, "a"), create(ledger, "b")
    for each, reward in ((episode, 1.0), (other, -1.0)):
        three_turns(ledger, each)
        ledger.episodes.close(each.id, "ok", reward)
        settle(ledger, RULES)
    claimed(ledger, 1)
    gone = ledger.sessions.forget(stored_id(episode.turn_owner, "other"))
    assert (gone.turns, gone.samples, gone.trained) == (1, 2, 2)
    assert {record.sample.metadata["episode"] for record in ledger.views.sample_records()} == {other.id}
    kept = {record.turn.id: record.turn.reason for record in ledger.views.turn_records()}
    assert kept["episode-a-one"] == "episode_forgotten"
    assert ledger.samples.forgotten_count() == 2


def test_a_deleted_episode_leaves_no_contents_and_takes_no_late_reply(ledger: Ledger) -> None:
    episode = create(ledger, metadata={"seed": "marmalade"}, group="g", group_size=2)
    three_turns(ledger, episode)
    ledger.episodes.delete(episode.id)
    for session in ledger.episodes.sessions(episode):
        ledger.sessions.forget(session)
    ledger.sessions.erase()
    say(ledger, episode, "late", [1], [2], session="new")
    assert list(ledger.views.turn_records()) == []
    for act in (ledger.episodes.get, ledger.episodes.delete):
        with pytest.raises(UnknownRecordError):
            act(episode.id)
    assert b"marmalade" not in ledger.path.read_bytes()
    create(ledger, "b", group="g", group_size=2)
    create(ledger, "c", group="g", group_size=2)


def test_a_turn_that_was_deleted_before_its_group_settled_is_in_no_sample(ledger: Ledger) -> None:
    episode = create(ledger)
    three_turns(ledger, episode)
    ledger.episodes.close(episode.id, "ok", 1.0)
    ledger.sessions.forget(stored_id(episode.turn_owner, "other"))
    [settled] = settle(ledger, RULES)
    assert settled.segments == 1


def test_a_crash_between_reward_and_samples_loses_neither(ledger: Ledger) -> None:
    episode = create(ledger)
    three_turns(ledger, episode)
    ledger.episodes.close(episode.id, "ok", 1.0)
    ledger.close()
    again = Ledger(ledger.path, clock=lambda: 200.0)
    assert [settled.segments for settled in settle(again, RULES)] == [2]
    assert settle(again, RULES) == []
    assert again.samples.ready_count() == 1


def test_settled_episodes_are_deleted_after_the_retention_time(ledger: Ledger, now: list[float]) -> None:
    old, kept = create(ledger, "old"), create(ledger, "kept")
    for episode in (old, kept):
        ledger.episodes.close(episode.id, "infra_error", None)
    say(ledger, kept, "one", [1], [2])
    now[0] += 1000.0
    assert ledger.episodes.delete_quiet(now[0]) == 1
    assert [episode.id for episode in ledger.episodes.all()] == [kept.id]


def test_task_and_metadata_are_redacted(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "redacted.sqlite", redaction=Redactor("secrets"))
    key = "sk-episode-" + "A1b2" * 10
    create(ledger, metadata={"note": f"use {key} there"})
    assert key not in str(ledger.episodes.get("episode-a").metadata)
    assert "REDACTED" in str(ledger.episodes.get("episode-a").metadata)


def test_salvage_keeps_episodes(ledger: Ledger, tmp_path: Path) -> None:
    episode = create(ledger)
    three_turns(ledger, episode)
    ledger.episodes.close(episode.id, "ok", 1.0)
    settle(ledger, RULES)
    ledger.close()
    salvage(ledger.path, tmp_path / "kept.sqlite")
    kept = Ledger(tmp_path / "kept.sqlite")
    assert kept.episodes.get(episode.id).segments == 2
    assert kept.samples.ready_count() == 1


def test_turns_of_an_episode_travel_to_a_collector_unjudged(ledger: Ledger, tmp_path: Path) -> None:
    episode = create(ledger)
    three_turns(ledger, episode)
    other = Ledger(tmp_path / "collected.sqlite")
    for changed in ledger.transfer.changed(0.0, 0, 10, owner="alice"):
        assert other.transfer.merge(changed)
    assert [record.turn.state for record in other.views.turn_records()] == ["excluded"] * 3


def test_counts_of_an_episode(ledger: Ledger) -> None:
    episode = create(ledger)
    three_turns(ledger, episode)
    say(ledger, episode, "cut", [1], [2], finish_reason="abort")
    counts = ledger.episodes.counts(episode)
    assert (counts.turns, counts.aborted) == (4, 1)
    assert (counts.prompt_tokens, counts.generated_tokens) == (2 + 5 + 3 + 1, 2 + 1 + 2 + 1)
    assert counts.weight_versions == ("1", "2")
    assert dict(counts.reasons) == {"aborted": 1}
    with closing(sqlite3.connect(ledger.path)) as connection:
        plan = connection.execute(
            "EXPLAIN QUERY PLAN SELECT 1 FROM turns WHERE session_id >= ? AND session_id < ?", episode.session_range
        ).fetchall()
    assert "SEARCH" in plan[0][-1], "an episode's turns are found without reading the whole table"


def test_inspect_lists_episodes_and_tells_the_story_of_one(ledger: Ledger, capsys: pytest.CaptureFixture[str]) -> None:
    episode = create(ledger, "a1", metadata={"seed": 7})
    three_turns(ledger, episode)
    ledger.episodes.close(episode.id, "ok", 0.5)
    settle(ledger, RULES)
    lost = create(ledger, "b1", group="g", group_size=2)
    ledger.episodes.close(lost.id, "infra_error", None)
    assert inspect([str(ledger.path), "--episodes"]) == 0
    first, second = capsys.readouterr().out.splitlines()
    for word in (episode.id, "count", "settled", "reward +0.50", "3 turns", "2 segments", "weights 1,2", "ready 2"):
        assert word in first
    for word in (lost.id, "group g", "infra_error", "reward     -", "0 turns"):
        assert word in second
    assert inspect([str(ledger.path), "--episode", "episode-a"]) == 0
    story = capsys.readouterr().out
    for word in ("1 turn merged", "'seed': 7", "sample 1 ready", f"--session @alice/{episode.id}:other"):
        assert word in story
    assert inspect([str(ledger.path), "--episode", "episode-"]) == 2
    assert inspect([str(ledger.path), "--episode", "episode-c"]) == 2
    assert "--episodes lists them" in capsys.readouterr().err


@pytest.mark.parametrize("reward", [1.0, -1.0, 0.5, 0.0])
def test_without_baseline_a_reward_is_its_advantage(ledger: Ledger, reward: float) -> None:
    """Equal rewards give samples again and again, and only a reward of 0 has no signal."""
    rules = replace(RULES, compares_rewards=False)
    for number in range(WINDOW + 2 if reward == 1.0 else 2):  # the window's first equal rewards have a signal anyway
        episode = create(ledger, f"n{number}")
        three_turns(ledger, episode)
        ledger.episodes.close(episode.id, "ok", reward)
        assert [each.reason for each in settle(ledger, rules)] == [None if reward else "no_signal"]
    assert {(s.reward, s.metadata[BASELINE]) for s in claimed(ledger, 999)} == ({(reward, 0.0)} if reward else set())
