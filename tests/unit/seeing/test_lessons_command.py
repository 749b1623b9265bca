"""``openclaw-rl lessons RUN``: a person's lessons, read and changed beside a run that may be down."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import pytest

from lab.testkit.ledger_records import USER_NEXT, make_turn
from openclaw.credit.baseline import record_judged
from openclaw.ledger.records import Verdict
from openclaw.ledger.store import Ledger
from openclaw.lessons.lesson import Measure
from openclaw.owners import LOCAL
from openclaw.runs.lessons import main
from openclaw.runtime.where import ARGUMENTS_NAME, LEDGER_NAME, SETTINGS_NAME


@pytest.fixture
def run(tmp_path: Path) -> Path:
    Ledger(tmp_path / LEDGER_NAME).close()
    return tmp_path


def said(run: Path, capsys: pytest.CaptureFixture[str], *words: str, status: int = 0) -> str:
    assert main([str(run), *words]) == status
    out, error = capsys.readouterr()
    assert (error == "") == (status == 0)
    return out or error


def test_a_lesson_from_the_command_line(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert said(run, capsys) == "mode: off; lessons: 0\n"
    assert said(run, capsys, "mode", "auto") == "mode: auto\n"
    made = said(run, capsys, "add", "Keep", "answers", "short.").split()[0]
    assert said(run, capsys, "edit", made[:12], "Answer in German.").endswith("Answer in German.\n")
    assert "trial pinned" in said(run, capsys, "pin", made)
    assert "pinned" not in said(run, capsys, "unpin", made)
    assert "resting (off)" in said(run, capsys, "off", made)
    assert "resting" not in said(run, capsys, "on", made)
    [listed] = json.loads(said(run, capsys, "list", "--json"))
    assert (listed["id"], listed["text"], listed["origin"]) == (made, "Answer in German.", "owner")
    assert said(run, capsys, "rm", made) == f"deleted {made}\n"
    assert said(run, capsys, "list") == "mode: auto; lessons: 0\n"
    assert b"Answer in German" not in (run / LEDGER_NAME).read_bytes()


def test_the_list_tells_why_a_learned_lesson_rests(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = said(run, capsys, "add", "Keep answers short.").split()[0]
    with closing(Ledger(run / LEDGER_NAME)) as ledger:
        turn = make_turn(lessons=((made, "Keep answers short."),))
        ledger.turns.record(turn)
        ledger.turns.record_next_state(turn.id, USER_NEXT, 3.0)
        with ledger.transaction() as connection:
            record_judged(ledger, turn.id, Verdict(score=1), [], "under_lesson")
            ledger.lessons.settle(connection, turn.id, LOCAL, None)
        scores = {"plain": 2.9, "taught": 3.0, "error": 0.2, "taught_error": 0.1}
        measure = Measure(weight_version="8", at=9.0, scorer="base", prompts=8, practised=4, **scores)
        assert ledger.lessons.record_measure(LOCAL, made, "Keep answers short.", measure) == "learn"
    text = said(run, capsys)
    assert "resting (learned)" in text
    assert (
        "without it liked 0, disliked 0; version 8 scores 2.90 without it, 3.00 with it, +-0.20 (base, 8 prompts)"
        in text
    )
    [listed] = json.loads(said(run, capsys, "list", "--json"))
    assert listed["measure"]["taught"] == 3.0


def test_edited_words_leave_the_disk_of_a_run_that_is_up(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with closing(Ledger(run / LEDGER_NAME)):
        made = said(run, capsys, "add", "Keep zebras striped.").split()[0]
        said(run, capsys, "edit", made, "Answer in German.")
        assert b"zebras" not in b"".join(path.read_bytes() for path in run.glob(f"{LEDGER_NAME}*"))


def test_each_owner_has_lessons_of_its_own(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said(run, capsys, "add", "Keep answers short.", "--owner", "alice/phone")
    assert "lessons: 0" in said(run, capsys)
    assert "Keep answers short." in said(run, capsys, "--owner", "alice")
    assert said(run, capsys, "rm", "all", "--owner", "alice") == "deleted 1 lessons\n"


def test_the_mode_of_who_has_not_chosen_is_the_runs(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run / ARGUMENTS_NAME).write_text("{}")
    (run / SETTINGS_NAME).write_text('{"OPENCLAW_LESSONS": "confirm"}')
    assert said(run, capsys) == "mode: confirm; lessons: 0\n"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["add"], "the lesson has no words"),
        (["add", "See https://evil.example/."], "a lesson has no link"),
        (["mode", "always"], "mode 'always' is unknown; use auto, confirm, off"),
        (["pin", "lesson-unknown"], "lesson"),
    ],
)
def test_what_cannot_be_done_says_what_to_type(
    run: Path, capsys: pytest.CaptureFixture[str], words: list[str], told: str
) -> None:
    assert told in said(run, capsys, *words, status=2)


def test_a_place_without_a_ledger(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "no " in said(tmp_path, capsys, status=2)


def test_control_characters_do_not_reach_the_terminal(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with closing(Ledger(run / LEDGER_NAME)) as ledger, ledger.transaction() as connection:
        ledger.lessons.add("", "Keep answers short.")
        connection.execute("UPDATE lessons SET text = ?", ("\x1b[2J",))
    assert "\x1b" not in said(run, capsys)
