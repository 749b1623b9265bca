"""The JSON lines beside a ledger: a line per turn and verdict, after kills and deletions, too."""

from __future__ import annotations

import json
import logging
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from lab.testkit.ledger_records import USER_NEXT, judged_sample, make_turn
from openclaw.credit.baseline import record_judged
from openclaw.ledger.record_files import RecordFiles, erase_lines, older, record_paths
from openclaw.ledger.records import Feedback, Verdict, Vote
from openclaw.ledger.store import Ledger
from openclaw.privacy.redactor import Redactor

PLENTY = 1 << 30


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    ticks = iter(range(1000, 100_000))
    return Ledger(tmp_path / "ledger.sqlite", clock=lambda: float(next(ticks)))


def follow(ledger: Ledger, most_bytes: int = PLENTY) -> int:
    """Write as a new process does; return the number of lines."""
    return RecordFiles(ledger.path, most_bytes).follow()


def lines(path: Path) -> list[dict[str, Any]]:
    parts = [part for part in (older(path), path) if part.exists()]
    return [json.loads(line) for part in parts for line in part.read_bytes().splitlines()]


def turns_of(path: Path) -> list[str]:
    return [line["turn"] for line in lines(path)]


def test_turns_and_verdicts_have_a_line_each(ledger: Ledger) -> None:
    said = {"role": "assistant", "content": "5 🙂\n"}
    ledger.turns.record(make_turn("a", session_id='@me:s"1', response_message=said, kind="side", tools=[{"x": 1}]))
    judged_sample(ledger, "b")
    ledger.turns.record(make_turn("c"))
    ledger.turns.record_next_state("c", USER_NEXT, 102.0)
    verdict = Verdict(score=0, hint="Plain.", votes=(Vote("prm", 'no "box"', None, invalid="no_box"),), seconds=2.0)
    record_judged(ledger, "c", verdict, [], "score_zero")
    assert follow(ledger) == 5
    assert follow(ledger) == 0
    conversations, verdicts = record_paths(ledger.path)
    assert [path.name for path in (conversations, verdicts)] == ["ledger.conversations.jsonl", "ledger.verdicts.jsonl"]
    assert {path.stat().st_mode & 0o777 for path in (conversations, verdicts)} == {0o600}
    first, second, _ = lines(conversations)
    assert first == {
        "number": 1, "turn": "a", "session_id": '@me:s"1', "time": "1970-01-01T00:01:41.000+00:00", "type": "side",
        "prompt": make_turn().messages, "response": said, "finish_reason": "stop", "tools": [{"x": 1}],
        "weight_versions": [{"version": "1", "start": 0, "end": 3}],
    }  # fmt: skip
    assert (second["turn"], second["tools"]) == ("b", None)
    up, zero = lines(verdicts)
    assert (up["turn"], up["score"], up["reason"], up["next_state"]) == ("b", 1, None, USER_NEXT)
    assert (zero["number"], zero["turn"], zero["score"], zero["hint"], zero["reason"]) == (
        2,
        "c",
        0,
        "Plain.",
        "score_zero",
    )
    assert zero["votes"][0]["answer"] == 'no "box"'
    assert zero["votes"][0]["invalid"] == "no_box"


def test_a_kill_anywhere_loses_and_repeats_nothing(ledger: Ledger) -> None:
    for number in range(4):
        judged_sample(ledger, f"t{number}", session_id=f"s{number}")
    follow(ledger)
    whole = {path: path.read_bytes() for path in record_paths(ledger.path)}
    for path, content in whole.items():
        start = content.index(b"\n") + 1
        for cut in (0, 1, start - 1, start, start + 1, start + 40, len(content) - 2, len(content) - 1):
            for torn in (b"", b"\0" * 5000, b'{"number": 9, "tu\n', b"\n"):
                path.write_bytes(content[:cut] + torn)
                follow(ledger)
                assert path.read_bytes() == content, (path.name, cut, torn)


def test_every_verdict_of_a_turn_has_its_line(ledger: Ledger) -> None:
    """The newest row is replaced before and after it was written; a row's place in its table is taken again."""
    judged_sample(ledger, "a")
    judged_sample(ledger, "b", session_id="t")
    follow(ledger)
    for score in (-1, 1):
        thumbs = "up" if score == 1 else "down"
        ledger.feedback.record(Feedback(turn_id="b", created_at=200.0 + score, thumbs=thumbs), None)
        assert ledger.turns.get("b").state == "pending"
        record_judged(ledger, "b", Verdict(score=score, score_source="feedback"), [], "score_zero")
    assert follow(ledger) == 1, "the first of the two was replaced before anybody wrote it"
    _, verdicts = record_paths(ledger.path)
    assert [(line["turn"], line["score"]) for line in lines(verdicts)] == [("a", 1), ("b", 1), ("b", 1)]
    assert [line["number"] for line in lines(verdicts)] == [1, 2, 4]


def test_a_deleted_session_leaves_no_line(ledger: Ledger) -> None:
    for number in range(12):
        judged_sample(ledger, f"t{number}", session_id="gone" if number % 3 == 2 else "kept")
        follow(ledger, 4096)
    conversations, verdicts = record_paths(ledger.path)
    assert older(conversations).exists(), "some lines are in the older half"
    ledger.sessions.forget("gone")
    ledger.sessions.erase()
    for path in (conversations, verdicts):
        assert "gone" not in "".join(part.read_text() for part in (older(path), path) if part.exists())
        assert {part.stat().st_mode & 0o777 for part in (older(path), path) if part.exists()} == {0o600}
        assert {turn for turn in turns_of(path) if int(turn[1:]) % 3 == 2} == set()
    before = turns_of(conversations)
    assert follow(ledger) == 0, "the last line of each file was of a deleted turn"
    judged_sample(ledger, "t12", session_id="kept")
    assert follow(ledger) == 2
    assert turns_of(conversations) == [*before, "t12"]
    ledger.sessions.forget("kept")
    ledger.sessions.erase()
    assert turns_of(conversations) == turns_of(verdicts) == []
    assert follow(ledger) == 0
    assert erase_lines(ledger.path) == 0


def test_a_deletion_that_a_kill_interrupted_is_finished(ledger: Ledger) -> None:
    judged_sample(ledger, "a", session_id="gone")
    judged_sample(ledger, "b", session_id="kept")
    follow(ledger)
    ledger.sessions.forget("gone")  # and the process dies
    files = RecordFiles(ledger.path, PLENTY)
    files.start()
    files.close()
    assert [turns_of(path) for path in record_paths(ledger.path)] == [["b"], ["b"]]


def test_deleting_while_a_thread_writes(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("openclaw.ledger.record_files.POLL_SECONDS", 0.0)
    files = RecordFiles(ledger.path, 8192)
    files.start()

    def forget() -> None:
        other = Ledger(ledger.path)
        for number in range(0, 60, 2):
            written.acquire()
            other.sessions.forget(f"s{number}")
            erase_lines(other.path)
        other.close()

    written = threading.Semaphore(0)
    forgetting = threading.Thread(target=forget)
    forgetting.start()
    for number in range(60):
        ledger.turns.record(make_turn(f"t{number}", session_id=f"s{number}"))
        if number % 2 == 0:
            written.release()
    forgetting.join()
    files.close()
    conversations, _ = record_paths(ledger.path)
    seen = turns_of(conversations)
    assert seen == sorted(set(seen), key=lambda turn: int(turn[1:]))
    assert [turn for turn in seen if int(turn[1:]) % 2 == 0] == []
    assert seen[-1] == "t59"


def test_files_stay_within_their_bound(ledger: Ledger) -> None:
    files = RecordFiles(ledger.path, 8000)
    for number in range(60):
        ledger.turns.record(make_turn(f"t{number:03}", session_id=f"s{number}"))
        files.follow()
    conversations, _ = record_paths(ledger.path)
    seen = turns_of(conversations)
    assert seen == [f"t{number:03}" for number in range(60 - len(seen), 60)]
    assert len(seen) > 5
    longest = max(map(len, older(conversations).read_bytes().splitlines(keepends=True)))
    assert older(conversations).stat().st_size + conversations.stat().st_size <= 8000 + longest


def test_a_backlog_is_left_for_later(ledger: Ledger) -> None:
    for number in range(100):
        ledger.turns.record(make_turn(f"t{number}"))
    files = RecordFiles(ledger.path, PLENTY)
    assert files.follow(lambda seconds: True) == 32
    assert files.follow() == 68
    conversations, _ = record_paths(ledger.path)
    assert turns_of(conversations) == [f"t{number}" for number in range(100)]


def test_files_of_another_ledger_are_set_aside(ledger: Ledger, caplog: pytest.LogCaptureFixture) -> None:
    for number in range(3):
        ledger.turns.record(make_turn(f"t{number}"))
    follow(ledger)
    conversations, _ = record_paths(ledger.path)
    ledger.close()
    for part in ledger.path.parent.glob("ledger.sqlite*"):
        part.unlink()
    fresh = Ledger(ledger.path)
    fresh.turns.record(make_turn("new"))
    with caplog.at_level(logging.WARNING):
        files = RecordFiles(fresh.path, PLENTY)
        files.start()
        files.close()
    assert turns_of(conversations) == ["new"]
    assert "is of another ledger; renamed to" in caplog.text
    [aside] = [path for path in conversations.parent.glob("ledger.conversations.jsonl.*") if path.suffix[1:].isdigit()]
    assert turns_of(aside) == ["t0", "t1", "t2"]


def test_a_failure_is_said_once_and_made_up_for(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("openclaw.ledger.record_files.POLL_SECONDS", 0.0)
    conversations, _ = record_paths(ledger.path)
    conversations.mkdir()
    ledger.turns.record(make_turn("a"))
    tried = threading.Event()
    asked = RecordFiles.follow

    def counted(files: RecordFiles, *rest: Any) -> int:
        attempts.append(1)
        if len(attempts) > 3:
            tried.set()
        return asked(files, *rest)

    attempts: list[int] = []
    monkeypatch.setattr(RecordFiles, "follow", counted)
    monkeypatch.setattr(RecordFiles, "_adopt", lambda files: None)
    files = RecordFiles(ledger.path, PLENTY)
    with caplog.at_level(logging.ERROR):
        files.start()
        assert tried.wait(30)
        conversations.rmdir()
        files.close()
    assert caplog.text.count("are not written now; they will be later") == 1
    assert turns_of(conversations) == ["a"]


def test_what_the_ledger_redacts_is_redacted(tmp_path: Path) -> None:
    secret = "sk-proj-" + "a1B2c3D4e5F6" * 4
    ledger = Ledger(tmp_path / "named.db", redaction=Redactor("secrets"))
    ledger.turns.record(make_turn("a", messages=[{"role": "user", "content": f"my key is {secret}"}]))
    ledger.turns.record(make_turn("b", session_id="t"))
    ledger.turns.record_next_state("b", [{"role": "user", "content": secret}], 102.0)
    vote = Vote("prm", f"it said {secret}", 1)
    record_judged(ledger, "b", Verdict(score=0, votes=(vote,)).redacted(ledger.database.redaction), [], "score_zero")
    follow(ledger)
    texts = [path.read_text() for path in record_paths(ledger.path)]
    assert secret not in "".join(texts)
    assert all(texts)
    assert os.path.exists(tmp_path / "named.conversations.jsonl")
