"""Logs are queued once: every turn is scored, judged or trained, or has a reason; a run's rows keep their bits."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from groundwork.exceptions import ConfigError
from lab.testkit.ledger_records import USER_NEXT, judged_sample, make_turn
from openclaw.credit.baseline import record_judged
from openclaw.credit.episodes import settle
from openclaw.ledger.conversations import write_conversations
from openclaw.ledger.logs import ReplyScores
from openclaw.ledger.records import Feedback, Verdict, Vote
from openclaw.ledger.store import Ledger
from openclaw.offline.checks import check_tokens, same_batches
from openclaw.offline.intake import Report, Wishes, take_in
from openclaw.offline.reading import read_logs
from openclaw.privacy.redactor import Redactor
from openclaw.training.rollout import by_rollout
from openclaw.training.samples import make_sample
from tests.helpers.episodes import RULES, create, say, three_turns

SECRET = "ghp_" + "a1B2" * 9
USER = {"role": "user", "content": "What is 2 + 3?"}
REPLY = {"role": "assistant", "content": "It is **5**."}
PICTURE = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]}
CHAT = {"messages": [USER, REPLY, *USER_NEXT, REPLY]}


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "new.sqlite", redaction=Redactor("secrets"))


def taken(ledger: Ledger, tmp_path: Path, *lines: Any, **wishes: Any) -> Report:
    path = tmp_path / "log.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    return take_in(read_logs(path), ledger, Wishes(**wishes))


def test_turns_of_a_chat_wait_for_scores_or_have_a_reason(ledger: Ledger, tmp_path: Path) -> None:
    secret = {"messages": [{"role": "user", "content": f"My key is {SECRET}"}, REPLY, *USER_NEXT]}
    reacted = {"messages": [USER, REPLY, {"role": "user", "content": f"use {SECRET}"}]}
    left_out = {"messages": [USER, {**REPLY, "weight": 0}, *USER_NEXT]}
    report = taken(ledger, tmp_path, CHAT, {"messages": [PICTURE, REPLY, *USER_NEXT]}, secret, reacted, left_out)
    assert (report.conversations, report.turns, report.to_score) == (5, 6, 2)
    assert report.reasons == {"no_next_state": 1, "log_media": 1, "redacted": 1, "imported_not_trainable": 1}
    assert ledger.views.counts()["turns"] == {"excluded": 4, "unscored": 2}
    assert ledger.views.counts()["turn_reasons"] == report.reasons
    assert ledger.judging.finished_sessions(9) == [name for name in ledger.views.session_ids() if not any(
        record.turn.state == "unscored" for record in ledger.views.turn_records(name)
    )]  # fmt: skip
    ledger.close()
    assert SECRET.encode() not in ledger.path.read_bytes()


def test_a_log_that_is_read_again_or_has_grown_adds_only_what_is_new(ledger: Ledger, tmp_path: Path) -> None:
    assert taken(ledger, tmp_path, CHAT, CHAT).turns == 2, "the same conversation without a name is one conversation"
    again = taken(ledger, tmp_path, CHAT)
    assert (again.turns, again.known) == (0, 2)
    more = taken(ledger, tmp_path, CHAT, {"messages": [*USER_NEXT, REPLY, USER]})
    assert (more.turns, more.known) == (1, 2)
    assert ledger.views.counts()["turns"] == {"excluded": 1, "unscored": 2}


def test_versions_of_a_conversation_without_a_name_share_their_turns(ledger: Ledger, tmp_path: Path) -> None:
    """Many programs log the whole conversation after each reply."""
    more = {"messages": [*CHAT["messages"], *USER_NEXT, REPLY, USER]}
    short = {"messages": CHAT["messages"][:3]}
    report = taken(ledger, tmp_path, short, CHAT, more)
    assert (report.to_score, report.known) == (3, 2), "each reply once"
    assert taken(ledger, tmp_path, {"messages": [*more["messages"], REPLY, USER]}).to_score == 1
    other = Ledger(tmp_path / "passes.sqlite")
    taken(other, tmp_path, short, CHAT, passes=2)
    assert other.views.counts()["turns"] == {"excluded": 2, "unscored": 2}, "but each pass has its own"
    named = [{**line, "session_id": name} for name, line in (("a", short), ("b", CHAT))]
    assert taken(Ledger(tmp_path / "named.sqlite"), tmp_path, *named).to_score == 2


def test_a_call_that_is_logged_twice_is_trained_once(ledger: Ledger, tmp_path: Path) -> None:
    first = {"request": {"messages": [USER]}, "response": {"choices": [{"message": REPLY}]}}
    second = {"request": {"messages": [USER, REPLY, *USER_NEXT]}, "response": {"choices": [{"message": REPLY}]}}
    report = taken(ledger, tmp_path, first, second, first, second)
    assert (report.turns, report.to_score) == (2, 1)
    named = [{**line, "session_id": name} for name in ("a", "b") for line in (first, second)]
    assert taken(ledger, tmp_path, *named).to_score == 2, "two conversations of the same words"


def test_the_same_words_said_twice_stay_two_turns(ledger: Ledger, tmp_path: Path) -> None:
    turn = {"prompt": "q", "response": "a", "next_state": "n"}
    assert taken(ledger, tmp_path, {"session_id": "s", "turns": [turn, turn]}).to_score == 2
    assert taken(ledger, tmp_path, {"session_id": "s", "turns": [turn, turn, turn]}).to_score == 1


def test_limit_and_passes(ledger: Ledger, tmp_path: Path) -> None:
    side = {"session_id": "side", "turns": [{"type": "side", "prompt": "q", "response": "a"}]}
    other = {"messages": [*USER_NEXT, REPLY, USER]}
    report = taken(ledger, tmp_path, side, CHAT, other, limit=1, passes=3)
    assert (report.conversations, report.to_score) == (1, 1)
    assert len(ledger.views.session_ids()) == 3
    sessions = [record.turn.session_id for record in ledger.views.turn_records() if record.turn.state == "unscored"]
    assert [name[-2:] for name in sessions[1:]] == ["~2", "~3"], "a pass begins after the one before it"


VERDICT = Verdict(score=-1, hint="No bold.", votes=(Vote("prm", "\\boxed{-1}", -1), Vote("hint", "x", 1, "No bold.")))


def test_an_export_keeps_its_verdicts_unless_the_judge_is_asked_again(ledger: Ledger, tmp_path: Path) -> None:
    run = Ledger(tmp_path / "run.sqlite")
    turn = make_turn("t", tools=[{"type": "function", "function": {"name": "f"}}], finish_reason="length")
    run.turns.record(turn)
    run.turns.record_next_state("t", USER_NEXT, 102.0)
    record_judged(run, "t", VERDICT, [make_sample(turn, -1.0, score=-1)], None)
    run.turns.record(make_turn("open", session_id="b"))
    run.turns.record_next_state("open", USER_NEXT, 103.0)
    write_conversations(run, tmp_path / "export.jsonl")
    report = take_in(read_logs(tmp_path / "export.jsonl"), ledger, Wishes())
    assert (report.to_score, report.with_verdict) == (2, 1)
    kept, judged = [record.turn for record in ledger.views.turn_records()]
    assert (kept.tools, kept.finish_reason) == (turn.tools, "length")
    assert ledger.judging.kept_verdict(kept.id) == VERDICT
    assert ledger.judging.kept_verdict(judged.id) is None
    other = Ledger(tmp_path / "other.sqlite")
    take_in(read_logs(tmp_path / "export.jsonl"), other, Wishes(judge_again=True))
    assert {other.judging.kept_verdict(record.turn.id) for record in other.views.turn_records()} == {None}


def test_a_secret_in_a_verdict_is_redacted(ledger: Ledger, tmp_path: Path) -> None:
    verdict = Verdict(score=-1, hint=f"Never say {SECRET}", votes=(Vote("hint", SECRET, 1, SECRET),))
    turn = {"prompt": "q", "response": "a", "next_state": "n", "verdict": verdict.to_dict()}
    taken(ledger, tmp_path, {"session_id": "s", "turns": [turn]})
    [record] = ledger.views.turn_records()
    kept = ledger.judging.kept_verdict(record.turn.id)
    assert kept is not None
    assert SECRET not in json.dumps(kept.to_dict())


@pytest.fixture
def run(tmp_path: Path) -> Ledger:
    """A run of two steps, a dropped sample, one that is ready, a side turn, an unanswered one, one to judge."""
    run = Ledger(tmp_path / "run.sqlite")
    for number in range(6):
        judged_sample(run, f"t{number}", session_id=f"s{number % 3}", version=str(number))
    run.feedback.record(Feedback(turn_id="t5", created_at=1.0, thumbs="up", text="fine"), USER_NEXT)
    record_judged(
        run, "t5", Verdict(score=1, score_source="feedback"), [make_sample(run.turns.get("t5"), 1.0, score=1)], None
    )
    run.turns.record(make_turn("side", kind="side", session_id="only-side"))
    run.turns.record(make_turn("unanswered", session_id="s0"))
    run.turns.record(make_turn("pending", session_id="s0"))
    run.turns.record_next_state("pending", USER_NEXT, 105.0)
    for rollout_id, samples in ((0, (2, 3)), (1, (1, 5))):
        with run.transaction() as connection:
            for sample in samples:
                run.database.update_one(connection, "samples", sample, state="leased", rollout_id=rollout_id)
        run.samples.record_step(rollout_id, str(rollout_id), 200.0, 201.0)
    run.samples.drop(4, "stale", 1)
    return run


def rows(ledger: Ledger, table: str, *left_out: str) -> list[dict[str, Any]]:
    found = [dict(row) for row in ledger.database.rows(f"SELECT * FROM {table} ORDER BY 1")]
    return [{name: value for name, value in row.items() if name not in left_out} for row in found]


def test_a_run_is_copied_bit_by_bit_in_the_order_of_its_batches(run: Ledger, ledger: Ledger) -> None:
    report = take_in(read_logs(run.path), ledger, Wishes())
    assert (report.conversations, report.samples, report.with_verdict, report.to_judge) == (3, 5, 6, 1)
    assert report.reasons == {"no_next_state": 1, "stale": 1, "superseded": 1}
    assert [record.turn_id for record in ledger.views.sample_records() if record.state == "ready"] == [
        "t1",
        "t2",
        "t0",
        "t4",
        "t5",
    ]
    theirs = {row["turn_id"]: row for row in rows(run, "samples") if row["reason"] is None}
    changed = ("id", "state", "rollout_id")
    for row in rows(ledger, "samples"):
        if row["state"] == "ready":
            kept = theirs[row["turn_id"]]
            assert {n: v for n, v in row.items() if n not in changed} == {
                n: v for n, v in kept.items() if n not in changed
            }
    assert rows(ledger, "verdicts") == rows(run, "verdicts")
    assert rows(ledger, "feedback", "id") == rows(run, "feedback", "id")
    changed = ("number", "state", "reason", "copied")
    before = {row["id"]: row for row in rows(run, "turns", *changed)}
    assert all(before[row["id"]] == row for row in rows(ledger, "turns", *changed))
    assert {row["copied"] for row in ledger.database.rows("SELECT copied FROM turns")} == {1}
    first = ledger.samples.claim(0, 2)
    assert [sample.metadata["turn_id"] for sample in first] == ["t1", "t2"], "the batch of step 0"
    assert run.views.counts()["samples"] == {"dropped": 2, "leased": 4, "ready": 1}, "the run itself is unchanged"


def test_a_run_is_copied_once(run: Ledger, ledger: Ledger) -> None:
    take_in(read_logs(run.path), ledger, Wishes())
    ledger.samples.claim(0, 2)
    before = [rows(ledger, table) for table in ("turns", "samples", "verdicts", "feedback", "sessions")]
    report = take_in(read_logs(run.path), ledger, Wishes())
    assert (report.turns, report.known, report.samples) == (0, 8, 0)
    assert [rows(ledger, table) for table in ("turns", "samples", "verdicts", "feedback", "sessions")] == before


def test_judged_again_a_run_keeps_its_ids_only(run: Ledger, ledger: Ledger) -> None:
    report = take_in(read_logs(run.path), ledger, Wishes(judge_again=True))
    assert (report.to_judge, report.samples) == (7, 0)
    assert len(ledger.judging.pending(20)) == 7
    assert ledger.turns.get("t3").response_logprobs == run.turns.get("t3").response_logprobs


def test_a_run_that_was_stopped_while_it_renewed_scores(tmp_path: Path, ledger: Ledger) -> None:
    run = Ledger(tmp_path / "stopped.sqlite")
    taken(run, tmp_path, CHAT)
    [turn] = run.logs.unscored_session()
    run.logs.record_scores([(replace(turn, temperature=0.6), ReplyScores([1], [2, 3], [-0.1, -0.2], "4"))])
    record_judged(run, turn.id, VERDICT, [make_sample(run.turns.get(turn.id), -1.0, score=-1)], None)
    [sample] = run.samples.claim(0, 1)
    run.logs.score_again(sample.metadata["ledger_id"])
    report = take_in(read_logs(run.path), ledger, Wishes())
    assert (report.to_score, report.with_verdict, report.samples) == (1, 1, 0)
    assert (ledger.turns.get(turn.id).state, ledger.turns.get(turn.id).prompt_ids) == ("unscored", [])


@pytest.mark.parametrize("as_text", [False, True])
def test_a_conversation_that_was_deleted_does_not_come_back(
    run: Ledger, ledger: Ledger, tmp_path: Path, as_text: bool
) -> None:
    path = run.path
    if as_text:
        path = tmp_path / "export.jsonl"
        write_conversations(run, path)
    wishes = Wishes(passes=2)
    take_in(read_logs(path), ledger, wishes)
    before = set(ledger.views.session_ids())
    gone = ledger.sessions.forget("s0")
    assert before - set(ledger.views.session_ids()) == {"s0", "s0~2"}, "all passes are one conversation"
    assert gone.turns > 2
    report = take_in(read_logs(path), ledger, wishes)
    assert (report.turns, report.forgotten) == (0, 1)
    assert before - set(ledger.views.session_ids()) == {"s0", "s0~2"}
    assert "1 conversation left out, which this run was told to forget" in report.lines()


def test_passes_through_a_run(run: Ledger, ledger: Ledger) -> None:
    take_in(read_logs(run.path), ledger, Wishes(passes=2, limit=1))
    assert [record.turn_id for record in ledger.views.sample_records()] == ["t0", "t3", "t0~2", "t3~2"]


def test_the_choices_of_a_request_stay_together_in_each_pass(tmp_path: Path, ledger: Ledger) -> None:
    """Feedback on one of several choices counts as its share of one reply."""
    run = Ledger(tmp_path / "choices.sqlite")
    for turn_id in ("t", "t.1", "t.2"):
        run.turns.record(make_turn(turn_id, session_id="s"))
        run.turns.record_next_state(turn_id, USER_NEXT, 102.0)
    take_in(read_logs(run.path), ledger, Wishes(passes=2))
    assert {record.turn.id: ledger.turns.choices(record.turn.id) for record in ledger.views.turn_records("s~2")} == {
        "t~2": 3,
        "t~2.1": 3,
        "t~2.2": 3,
    }
    ledger.sessions.forget("s")
    assert ledger.views.session_ids() == []


def test_each_pass_of_an_episode_is_a_rollout(tmp_path: Path, ledger: Ledger) -> None:
    run = Ledger(tmp_path / "episodes.sqlite")
    for turn_id in ("a", "b"):
        turn = make_turn(turn_id, session_id="s")
        run.turns.record(turn)
        run.turns.record_next_state(turn_id, USER_NEXT, 102.0)
        sample = make_sample(turn, 1.0, score=1, metadata={"episode": "episode-1"})
        record_judged(run, turn_id, Verdict(score=1), [sample], None)
    with run.transaction() as connection:
        connection.execute("UPDATE samples SET episode = 'episode-1'")
    take_in(read_logs(run.path), ledger, Wishes(passes=2))
    assert ledger.samples.ready_count() == 2
    batch = by_rollout(ledger.samples.claim(0, 2))
    assert [[sample.metadata["turn_id"] for sample in rollout] for rollout in batch] == [["a", "b"], ["a~2", "b~2"]]


@pytest.fixture
def agents(tmp_path: Path) -> Ledger:
    """A run with an episode of two sessions, whose first turn is a side call."""
    run = Ledger(tmp_path / "agents.sqlite", clock=lambda: 100.0)
    episode = create(run)
    say(run, episode, "title", [1, 2], [3, 4], kind="side")
    three_turns(run, episode)
    run.episodes.close(episode.id, "ok", 0.5)
    settle(run, RULES)
    batch = run.samples.claim(0, 9)
    assert batch[0].metadata["turn_id"].endswith("title")
    run.samples.record_step(0, "1", 1.0, 2.0)
    return run


def held(ledger: Ledger) -> list[tuple[list[int], float]]:
    return [(record.sample.tokens, record.sample.reward) for record in ledger.views.sample_records()]


def test_an_episode_is_copied_whole_and_counted_as_what_it_is(agents: Ledger, tmp_path: Path, ledger: Ledger) -> None:
    report = take_in(read_logs(agents.path), ledger, Wishes(limit=1))
    assert held(ledger) == held(agents), "a side call that was trained, and the second session of the episode"
    assert (report.turns, report.in_episodes, report.samples) == (4, 4, len(held(agents)))
    assert not report.reasons
    assert "4 turns of agents' episodes, which these samples hold" in list(report.lines())
    assert same_batches(agents.path, 1) is None, "a batch counts episodes"
    again = Ledger(tmp_path / "again.sqlite")
    take_in(read_logs(agents.path), again, Wishes(judge_again=True))
    assert held(again) == held(agents), "a verifier gave the reward, so there is no judge to ask"


def test_a_secret_in_any_turn_of_an_episode_keeps_its_samples_back(tmp_path: Path, ledger: Ledger) -> None:
    run = Ledger(tmp_path / "agents.sqlite")
    episode = create(run)
    say(run, episode, "one", [1, 2], [3, 4])
    say(run, episode, "two", [1, 2, 3, 4, 5], [6], response_message={"role": "assistant", "content": SECRET})
    run.episodes.close(episode.id, "ok", 0.5)
    settle(run, RULES)
    assert [record.sample.tokens for record in run.views.sample_records()] == [[1, 2, 3, 4, 5, 6]]
    take_in(read_logs(run.path), ledger, Wishes())
    assert held(ledger) == []


def test_every_pass_of_an_episode_is_forgotten(agents: Ledger, ledger: Ledger) -> None:
    take_in(read_logs(agents.path), ledger, Wishes(passes=2))
    assert ledger.samples.ready_count() == 2
    ledger.sessions.forget(next(name for name in ledger.views.session_ids() if name.endswith(":s")))
    assert held(ledger) == [], "the other session's samples may hold tokens of this one"


def test_versions_of_a_forgotten_conversation_without_a_name_do_not_come_back(ledger: Ledger, tmp_path: Path) -> None:
    """Many programs log the whole conversation after each reply, under no name."""
    short, whole = {"messages": CHAT["messages"][:3]}, {"messages": [*CHAT["messages"], *USER_NEXT, REPLY, USER]}
    other = {"messages": [*USER_NEXT, REPLY, USER]}
    taken(ledger, tmp_path, whole, short, CHAT, other)
    [session, _] = ledger.views.session_ids()
    ledger.sessions.forget(session)
    left = [record.turn.messages for record in ledger.views.turn_records()]
    assert left == [USER_NEXT], "one session had all of them"
    longer = {"messages": [*whole["messages"], REPLY, USER]}
    report = taken(ledger, tmp_path, whole, short, CHAT, longer, other)
    assert (report.forgotten, report.turns, report.known) == (4, 0, 1)
    calls = [
        {"request": {"messages": longer["messages"][:end]}, "response": {"choices": [{"message": REPLY}]}}
        for end in (5, 7)
    ]
    assert taken(ledger, tmp_path, *calls).forgotten == 1, "also as the later calls of its log"


def test_secrets_of_a_run_that_did_not_redact(tmp_path: Path, ledger: Ledger) -> None:
    run = Ledger(tmp_path / "open.sqlite")
    turn = make_turn("t", messages=[{"role": "user", "content": f"key {SECRET}"}])
    run.turns.record(turn)
    run.turns.record_next_state("t", USER_NEXT, 102.0)
    record_judged(run, "t", Verdict(score=1), [make_sample(turn, 1.0, score=1)], None)
    report = take_in(read_logs(run.path), ledger, Wishes())
    assert report.reasons == {"redacted": 1}
    assert ledger.samples.ready_count() == 0
    assert ledger.turns.get("t").response_ids == []


def test_a_secret_in_the_words_of_a_judge_is_not_copied(tmp_path: Path, ledger: Ledger) -> None:
    run = Ledger(tmp_path / "open.sqlite")
    turn = make_turn("t")
    run.turns.record(turn)
    run.turns.record_next_state("t", [{"role": "user", "content": f"use {SECRET}"}], 102.0)
    told = Verdict(score=-1, hint=f"Use {SECRET}.", votes=(Vote("hint", SECRET, 1, f"Use {SECRET}."),))
    record_judged(run, "t", told, [make_sample(turn, -1.0, score=-1, metadata={"hint": told.hint})], None)
    again = Ledger(tmp_path / "again.sqlite", redaction=Redactor("secrets"))
    assert take_in(read_logs(run.path), again, Wishes(judge_again=True)).to_judge == 1
    report = take_in(read_logs(run.path), ledger, Wishes())
    assert (report.reasons, report.samples) == ({"redacted": 1}, 0)
    for each in (ledger, again):
        each.close()
        assert SECRET.encode() not in each.path.read_bytes()


def test_ids_of_another_tokenizer_are_refused(run: Ledger, tmp_path: Path, tiny_random_model: Path) -> None:
    with pytest.raises(ConfigError, match=r"its token ids are not those of .*name the model of that run with HF_CKPT"):
        check_tokens(run.path, str(tiny_random_model))


def test_another_batch_size_is_said(run: Ledger) -> None:
    assert same_batches(run.path, 2) is None
    assert (
        same_batches(run.path, 16) == "its batch size was 2 and this run's is 16; BATCH_SIZE=2 gives the same batches"
    )
