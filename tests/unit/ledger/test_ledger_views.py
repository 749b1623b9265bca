"""A user can see what became of each turn: the inspect command and the export of conversations."""

from __future__ import annotations

import json
import logging
import shutil
import uuid
from contextlib import closing
from pathlib import Path

import pytest

from lab.testkit.ledger_records import USER_NEXT, judged_sample, make_turn
from openclaw.credit.baseline import record_judged
from openclaw.inspect import main, whole_id
from openclaw.ledger.conversations import conversations
from openclaw.ledger.copying import copy_run
from openclaw.ledger.exceptions import UnknownRecordError
from openclaw.ledger.records import Verdict, VersionSpan, Vote
from openclaw.ledger.store import Ledger
from openclaw.owners import stored_id
from openclaw.training.samples import make_sample


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    """One trained turn, one without a sample, one dropped, one waiting, one that the judge could not read."""
    ledger = Ledger(tmp_path / "ledger.sqlite")
    judged_sample(ledger, "trained")
    ledger.samples.claim(0, 1)
    ledger.samples.record_step(0, "1", 105.0, 107.5)
    ledger.turns.record(make_turn("zero", index=1))
    ledger.turns.record_next_state("zero", USER_NEXT, 103.0)
    record_judged(ledger, "zero", Verdict(score=0, votes=(Vote("prm", "(c) \\boxed{0}", 0),)), [], "score_zero")
    dropped = make_turn("dropped", session_id="other")
    ledger.turns.record(dropped)
    ledger.turns.record_next_state("dropped", USER_NEXT, 104.0)
    sample = make_sample(dropped, -1.0, score=-1, teacher_log_probs=[-0.1, -0.2, -0.3])
    record_judged(ledger, "dropped", Verdict(score=-1, hint="Write plain prose."), [sample], None)
    ledger.samples.drop(2, "stale", 1)
    ledger.turns.record(make_turn("waiting", session_id="other", index=1))
    ledger.turns.record(make_turn("stuck", session_id="third"))
    ledger.turns.record_next_state("stuck", USER_NEXT, 104.0)
    ledger.judging.postpone("stuck", "connection refused", 0.0)
    return ledger


def shown(ledger: Ledger, capsys: pytest.CaptureFixture[str], *options: str) -> str:
    assert main([str(ledger.path), *options]) == 0
    return capsys.readouterr().out


def test_summary_counts_states_reasons_and_steps(ledger: Ledger, capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(ledger, capsys)
    assert "sessions 3   steps 1   failed judge attempts 1" in text
    assert "judged 3  pending 1  waiting 1" in text
    assert "score_zero 1" in text
    assert "dropped 1  leased 1" in text
    assert "stale 1" in text
    assert "last judge error: 1 turn stays unjudged; stuck failed 1 time, last with connection refused" in text
    assert "version 1 (2.5 s after the step)" in text


def test_each_turn_shows_verdict_and_step(ledger: Ledger, capsys: pytest.CaptureFixture[str]) -> None:
    lines = shown(ledger, capsys, "--turns").splitlines()
    assert len(lines) == 5
    assert "score +1" in lines[0]
    assert "leased in step 0, live as version 1" in lines[0]
    assert "score_zero" in lines[1]
    assert "dropped (stale)" in lines[2]
    assert "hint: Write plain prose." in lines[2]
    assert "waiting" in lines[3]
    assert "pending after 1 failed attempts: connection refused" in lines[4]


def test_samples_and_one_session(ledger: Ledger, capsys: pytest.CaptureFixture[str]) -> None:
    lines = shown(ledger, capsys, "--samples").splitlines()
    assert "reward +1.00" in lines[0]
    assert "teacher" in lines[1]
    text = shown(ledger, capsys, "--session", "session")
    assert "next state: No bold please, write it again." in text
    assert "prm vote 0" in text


def test_the_beginning_of_a_session_is_enough(ledger: Ledger, capsys: pytest.CaptureFixture[str]) -> None:
    ids = ledger.views.session_ids()
    whole = next(each for each in ids if sum(other.startswith(each) for other in ids) == 1 and len(each) > 1)
    begin = next(whole[:end] for end in range(1, len(whole) + 1) if sum(i.startswith(whole[:end]) for i in ids) == 1)
    told, _, rest = shown(ledger, capsys, "--session", begin).partition("\n")
    assert told == f"no session {begin}; this is {whole}, the only one whose id begins like that"
    assert rest == shown(ledger, capsys, "--session", whole)
    assert whole_id("session", ["session", "session-2"]) == "session"
    with pytest.raises(
        UnknownRecordError, match="2 sessions begin with 'sess', such as session and session-2; type more"
    ):
        whole_id("sess", ["session", "session-2"])
    with pytest.raises(UnknownRecordError, match="no session 'chat-12x'; did you mean chat-123"):
        whole_id("chat-12x", ["chat-123"])
    assert all(each in shown(ledger, capsys, "--turns", "--all") for each in ids), "--turns shows whole ids"


def test_missing_file_and_session_say_what_to_type(ledger: Ledger, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(ledger.path) + ".none"]) == 2
    assert "no ledger at" in capsys.readouterr().err
    assert main([str(ledger.path), "--session", "nobody"]) == 2
    assert "--turns" in capsys.readouterr().err


def test_a_folder_of_a_run_is_as_good_as_its_ledger(
    ledger: Ledger, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ledger.close()
    run, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    for folder in (run / "checkpoints", elsewhere):
        folder.mkdir(parents=True)
        shutil.copy(ledger.path, folder / "ledger.sqlite")
    moved = tmp_path / "moved"
    moved.mkdir()
    (moved / "arguments.json").write_text(json.dumps({"save": str(elsewhere)}))
    for place in (run, run / "checkpoints", elsewhere, moved):
        assert main([str(place)]) == 0
        assert "sessions 3   steps 1" in capsys.readouterr().out
    (tmp_path / "empty").mkdir()
    assert main([str(tmp_path / "empty")]) == 2
    assert capsys.readouterr().err.startswith(f"no ledger.sqlite in {tmp_path / 'empty'}; name the folder of a run")


def test_side_turns_are_counted_and_shown_on_request(ledger: Ledger, capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(2):
        ledger.turns.record(make_turn(f"measure-{number}", session_id=f"m{number}", kind="side"))
    lines = shown(ledger, capsys, "--turns").splitlines()
    assert len(lines) == 6
    assert lines[-1] == "2 side turns (measurements, heartbeats, ...) not shown; --all shows them"
    assert len(shown(ledger, capsys, "--turns", "--all").splitlines()) == 7
    with pytest.raises(SystemExit):
        main([str(ledger.path), "--all"])
    assert "--all goes with --turns" in capsys.readouterr().err


def test_a_new_ledger_logs_no_migrations(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        Ledger(tmp_path / "new.sqlite").close()
    assert "ledger version" not in caplog.text


def test_export_is_one_conversation_a_line(ledger: Ledger, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "conversations.jsonl"
    assert "wrote 3 sessions" in shown(ledger, capsys, "--export", str(path))
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert lines == list(conversations(ledger))
    assert [line["session_id"] for line in lines] == ["session", "other", "third"]
    assert [turn["trainable"] for line in lines for turn in line["turns"]] == [True, False, False, False, True], (
        "the last one waits for the judge"
    )
    assert Verdict.from_dict(lines[0]["turns"][0].pop("verdict")) == Verdict(score=1)
    assert lines[0]["turns"][0] == {
        "type": "main",
        "prompt": [{"role": "user", "content": "What is 2 + 3?"}],
        "response": {"role": "assistant", "content": "The sum is **5**."},
        "next_state": USER_NEXT,
        "trainable": True,
    }


def test_replies_that_fall_apart_are_counted_for_a_person_among_many(tmp_path: Path) -> None:
    """Only this person's fuse may pause this person's training, also where others talk much more."""
    with closing(Ledger(tmp_path / "many.sqlite")) as ledger, ledger.transaction():
        for name in ("alice", "alice", *(f"bob{number}" for number in range(1100))):
            turn = make_turn(uuid.uuid4().hex, session_id=stored_id(name, "s"))
            ledger.turns.record(turn)
            ledger.turns.record_next_state(turn.id, USER_NEXT, 103.0)
            record_judged(ledger, turn.id, Verdict(), [], "truncated" if name == "alice" else "score_zero")
        shares = [ledger.views.degenerate_share(("truncated",), person) for person in ("alice", "bob7", "carol", None)]
    assert shares == [1.0, 0.0, 0.0, 0.0]


REPLY = {"role": "assistant", "content": "yes"}
QUOTED = {"role": "user", "content": 'He wrote {"role": "assistant"} there.'}


def test_first_replies_are_those_that_the_facts_say(tmp_path: Path) -> None:
    cases = [
        {},
        {"messages": [*make_turn().messages, REPLY, *make_turn().messages]},
        {"messages": [QUOTED]},
        {"kind": "side"},
        {"scored": True, "state": "unscored"},
        {"weight_versions": []},
        {"weight_versions": [VersionSpan("3", 0, 2), VersionSpan("4", 2, 3)], "session_id": stored_id("alice", "s")},
    ]
    with closing(Ledger(tmp_path / "ledger.sqlite")) as ledger:
        for number, case in enumerate(cases):
            for score in (1, -1, None):
                turn_id = f"{number}-{score}"
                recorded = ledger.turns.record(make_turn(turn_id, **case))
                assert recorded is not None
                if recorded.state == "waiting":
                    ledger.turns.record_next_state(turn_id, USER_NEXT, 103.0)
                    record_judged(ledger, turn_id, Verdict(score=score), [], "test")
        with ledger.transaction() as connection:
            ledger.turns.take_back(connection, "0--1")
            connection.execute("UPDATE verdicts SET verdict = json_set(verdict, '$.score', 0) WHERE turn_id = '6--1'")
        facts = [
            (fact.version, fact.score)
            for fact in ledger.views.turn_facts()
            if fact.kind == "main"
            and fact.is_first
            and fact.state == "judged"
            and None not in (fact.score, fact.version)
        ]
        assert ledger.views.first_scores() == facts == [("1", 1), ("1", 1), ("1", -1), ("3", 1), ("3", 0)]
        assert ledger.views.first_scores("alice") == [("3", 1), ("3", 0)]
        with closing(Ledger(tmp_path / "copy.sqlite")) as copy:
            assert copy_run(ledger, copy, ledger.views.session_ids()).turns["test"] > 5
            assert copy.views.first_scores() == [], "another run's weights gave these replies"
        ledger.sessions.forget(stored_id("alice", "s"))
        assert ledger.views.first_scores() == [("1", 1), ("1", 1), ("1", -1)]


def test_what_the_window_asks_of_a_whole_run_reads_no_message(ledger: Ledger) -> None:
    asked: list[str] = []
    ledger.database.connection.set_trace_callback(asked.append)
    ledger.waiting.people()
    ledger.views.from_logs()
    ledger.database.connection.set_trace_callback(None)
    steps = [row["detail"] for sql in asked for row in ledger.database.rows(f"EXPLAIN QUERY PLAN {sql}")]
    tables = [step for step in steps if step.startswith(("SCAN", "SEARCH"))]
    assert len(tables) == 3
    assert all("COVERING INDEX" in step for step in tables), tables
