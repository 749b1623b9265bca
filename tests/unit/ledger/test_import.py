"""Conversations go out as JSON lines and come in again, the same and once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lab.testkit.ledger_records import judged_sample, make_turn
from openclaw.inspect import main
from openclaw.ledger.conversations import ImportFormatError, import_conversations, write_conversations
from openclaw.ledger.store import Ledger
from openclaw.privacy.redactor import Redactor

SECRET = "ghp_" + "a1B2" * 9
WRITTEN = {
    "session_id": "by-hand",
    "turns": [
        {"type": "main", "prompt": "What is 2 + 3?", "response": "5", "next_state": "Thanks.", "trainable": True},
        {
            "type": "side",
            "prompt": [{"role": "system", "content": "s"}, {"role": "user", "content": "q"}],
            "response": {"role": "assistant", "content": "a"},
            "next_state": None,
            "trainable": False,
        },
    ],
}


def write(path: Path, *lines: object) -> Path:
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))
    return path


def test_export_import_export_is_the_same(tmp_path: Path) -> None:
    first = Ledger(tmp_path / "first.sqlite")
    judged_sample(first, "trained")
    first.turns.record(make_turn("side", kind="side", index=1))
    first.turns.record(
        make_turn("waiting", session_id="other", response_message={"role": "assistant", "content": "ä\ud83d"})
    )
    judged_sample(first, "dropped", session_id="other")
    first.samples.drop(2, "stale", 0)
    write_conversations(first, tmp_path / "first.jsonl")
    second = Ledger(tmp_path / "second.sqlite")
    result = import_conversations(second, tmp_path / "first.jsonl")
    assert (result.sessions, result.added, result.known) == (2, 4, 0)
    write_conversations(second, tmp_path / "second.jsonl")
    assert (tmp_path / "second.jsonl").read_text() == (tmp_path / "first.jsonl").read_text()
    again = import_conversations(second, tmp_path / "first.jsonl")
    assert (again.added, again.known) == (0, 4)
    own = import_conversations(first, tmp_path / "first.jsonl")
    assert (own.added, own.known) == (0, 4), "a ledger's own export adds nothing to it"


@pytest.mark.parametrize("indent", [None, 2])
def test_one_object_with_texts(tmp_path: Path, indent: int | None) -> None:
    ledger = Ledger(tmp_path / "ledger.sqlite")
    import_conversations(ledger, write(tmp_path / "one.json", json.dumps(WRITTEN, indent=indent)))
    first, second = [record.turn for record in ledger.views.turn_records("by-hand")]
    assert first.messages == [{"role": "user", "content": "What is 2 + 3?"}]
    assert first.response_message == {"role": "assistant", "content": "5"}
    assert first.next_state == [{"role": "user", "content": "Thanks."}]
    assert [(turn.state, turn.reason, turn.index) for turn in (first, second)] == [
        ("excluded", "imported", 0),
        ("excluded", "imported_not_trainable", 1),
    ]
    assert second.kind == "side"


def test_imported_turns_are_neither_judged_nor_trained(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.sqlite")
    import_conversations(ledger, write(tmp_path / "one.json", WRITTEN))
    assert ledger.judging.pending(5) == []
    assert ledger.judging.finished_sessions(5) == []
    assert ledger.sessions.idle(1e12, "", 5)[0] == []
    assert ledger.samples.ready_count() == 0


def test_the_same_words_said_twice_stay_two_turns(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.sqlite")
    twice = {"session_id": "s", "turns": [WRITTEN["turns"][0]] * 2}
    assert import_conversations(ledger, write(tmp_path / "a.json", twice)).added == 2
    three = {"session_id": "s", "turns": [WRITTEN["turns"][0]] * 3}
    result = import_conversations(ledger, write(tmp_path / "b.json", three))
    assert (result.added, result.known) == (1, 2)


def test_secrets_are_redacted_and_recognised_when_imported_again(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.sqlite", redaction=Redactor("secrets"))
    turn = {**WRITTEN["turns"][0], "prompt": f"my key is {SECRET}", "next_state": f"it is {SECRET}"}
    path = write(tmp_path / "a.json", {"session_id": "s", "turns": [turn]})
    assert import_conversations(ledger, path).added == 1
    assert import_conversations(ledger, path).added == 0
    ledger.close()
    assert SECRET.encode() not in ledger.path.read_bytes()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "is not JSON"),
        ({"turns": []}, "session_id is missing"),
        ({"session_id": "s", "turns": {}}, "turns is not a list"),
        ({"session_id": "s", "turns": [3]}, "turn 0 is not an object"),
        ({"session_id": "s", "turns": [{"type": "other"}]}, "type must be main or side"),
        ({"session_id": "s", "turns": [{"prompt": 3, "response": "a"}]}, "prompt: write a text"),
        ({"session_id": "s", "turns": [{"prompt": "q", "response": []}]}, "response is one message, got 0"),
    ],
)
def test_a_wrong_line_is_named_and_nothing_is_added(tmp_path: Path, line: object, message: str) -> None:
    ledger = Ledger(tmp_path / "ledger.sqlite")
    path = write(tmp_path / "a.jsonl", WRITTEN, line)
    with pytest.raises(ImportFormatError, match=f"a.jsonl line 2.*{message}"):
        import_conversations(ledger, path)
    assert ledger.views.counts()["turns"] == {}


def test_commands_import_and_export(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ledger = tmp_path / "new" / "ledger.sqlite"
    path = write(tmp_path / "a.jsonl", WRITTEN)
    assert main([str(ledger), "import", str(path)]) == 0
    assert "added 2 turns of 1 session; 0 were already there" in capsys.readouterr().out
    assert main([str(ledger), "export", str(tmp_path / "b.jsonl")]) == 0
    assert json.loads((tmp_path / "b.jsonl").read_text())["turns"][0]["next_state"] == [
        {"role": "user", "content": "Thanks."}
    ]
    assert main([str(ledger), "import", str(tmp_path / "none.jsonl")]) == 2
    assert "cannot be read" in capsys.readouterr().err
