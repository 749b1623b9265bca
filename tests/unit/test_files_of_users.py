"""Files that a user names: a text may hold any separator, and whatever a file holds, the error is one line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import eval_swe
import judge_set
import measure
import pytest
from simulated_users.reading import UserFileError, find_user
from simulated_users.rules import Rule, word_count

from agentrl.harness.records import lines as harness_lines
from agentrl.tasks.gui.osworld.task_file import read_meta, read_task
from agentrl.tasks.swe.contamination import changed
from agentrl.tasks.swe.diffs import diff_of
from agentrl.tasks.swe.importers import imported
from agentrl.tasks.swe.source import read_rows as swe_rows
from agentrl.tasks.terminal.source import TaskSource
from agentrl.tasks.toolcall.rows import read_rows as toolcall_rows
from groundwork.data_rows import json_objects
from groundwork.exceptions import ConfigError
from openclaw.gate.tasks import read_tasks
from openclaw.ledger.conversations import ImportFormatError, import_conversations
from openclaw.ledger.store import Ledger
from openclaw.offline.reading import read_logs
from openclaw.server.collect import main as collect_main
from slime.rollout.data_source import read_rows

SEPARATORS = "\x0b\x0c\x1c\x1d\x1e\u0085\u2028\u2029"
"""At which Python's splitlines cuts beside line feeds and carriage returns."""
WRITABLE = SEPARATORS[5:]
"""Of them, those that JSON takes as they are; the others are escaped."""
TEXT = f"one{SEPARATORS}two"
FIX = "diff --git a/m.py b/m.py\n--- a/m.py\n+++ b/m.py\n@@ -1 +1 @@\n-a = 1\n+a = 2\n"
SWE = {
    "instance_id": "acme__m-1", "repo": "acme/m", "base_commit": "abcdef0", "problem_statement": TEXT, "patch": FIX,
    "test_patch": FIX, "FAIL_TO_PASS": '["tests/test_m.py::test_a"]', "PASS_TO_PASS": "[]", "log_parser": "pytest",
}  # fmt: skip
CASE = {
    "id": "a", "domain": "chat", "language": "en", "tags": [], "user": TEXT, "reply": {"role": "assistant", "content": "a"},
    "next_state": [{"role": "user", "content": "b"}], "score": 1, "hint": False,
}  # fmt: skip
HI = {"role": "user", "content": TEXT}


def terminal_rows(file: Path) -> list[str]:
    return TaskSource(task_type="jsonl", dataset_dir=str(file)).ids()


def ledger_turns(file: Path) -> list[Any]:
    ledger = Ledger(file.with_suffix(".sqlite"))
    import_conversations(ledger, file)
    return [record.turn.messages for record in ledger.views.turn_records()]


def results_in(file: Path) -> list[Any]:
    (file.parent / "results.jsonl").write_bytes(file.read_bytes())
    return list(eval_swe.written(file.parent).values())


READERS: dict[str, tuple[Callable[[Path], Any], dict[str, Any], type[Exception]]] = {
    "json_objects": (lambda file: [row for _, row in json_objects(file)], {"text": TEXT}, ValueError),
    "--prompt-data": (lambda file: read_rows(str(file)), {"text": TEXT}, ConfigError),
    "toolcall rows": (lambda file: [row for _, row in toolcall_rows(file)], {"prompt": TEXT}, ConfigError),
    "swe rows": (swe_rows, SWE, ConfigError),
    "swe import": (lambda file: imported("swe-bench-lite", file)[0], SWE, ConfigError),
    "judge set": (judge_set.load, CASE, ValueError),
    "results of an evaluation": (results_in, {"instance_id": "a", "said": TEXT}, eval_swe.ConfigError),
    "gate tasks": (read_tasks, {"messages": [HI], "text": "a"}, ConfigError),
    "DATA_PATH": (lambda file: [turn.messages for each in read_logs(file).conversations for turn in each.turns], {"messages": [HI, {"role": "assistant", "content": "a"}]}, ImportFormatError),
    "inspect import": (ledger_turns, {"session_id": "s", "turns": [{"prompt": [HI], "response": "a"}]}, ImportFormatError),
    "GSM8K": (lambda file: measure.gsm8k_items(file), {"question": TEXT, "answer": "#### 1"}, measure.MeasureError),
}  # fmt: skip


@pytest.mark.parametrize("reader", READERS)
def test_a_text_may_hold_any_separator(tmp_path: Path, reader: str) -> None:
    read, row, _ = READERS[reader]
    file = tmp_path / "rows.jsonl"
    other = {**row, "id": "b"} if "id" in row else {**row, "instance_id": "acme__m-2"} if "instance_id" in row else row
    texts = [json.dumps(each, ensure_ascii=False) for each in (row, other)]
    file.write_bytes("\n\n".join(texts).encode() + b"\r\n")
    found = read(file)
    assert repr(WRITABLE)[1:-1] in repr(found)
    if reader not in ("DATA_PATH", "inspect import"):
        assert len(found) == 2
    file.write_bytes(b"\xef\xbb\xbf" + texts[0].encode())  # as some editors begin a file
    read(file)


def test_the_tasks_of_a_terminal_data_set_hold_any_separator(tmp_path: Path) -> None:
    file = tmp_path / "tasks.jsonl"
    row = {"task": {"task_path": "t"}, "prompt": TEXT}
    file.write_text(json.dumps(row, ensure_ascii=False) + "\n", encoding="utf-8")
    assert terminal_rows(file) == ["t"]


def test_the_records_of_a_harness_hold_any_separator(tmp_path: Path) -> None:
    file = tmp_path / "episodes.jsonl"
    file.write_text(json.dumps({"said": TEXT}, ensure_ascii=False) + '\n{"cut', encoding="utf-8")
    assert list(harness_lines(file)) == [{"said": TEXT}]


def test_a_diff_has_the_lines_of_git() -> None:
    old, new = {"m.py": f"a = '{TEXT}'\nb = 1\n"}, {"m.py": f"a = '{TEXT}'\nb = 2\n"}
    diff = diff_of(old, new)
    assert f"\n a = '{TEXT}'\n-b = 1\n+b = 2\n" in diff
    assert changed(f"+x = '{TEXT}'\n") == changed(f"-x = '{TEXT}'\n".replace("-", "+"))
    assert "two" in changed(f"+x = '{TEXT}'\n")


DEEP = "[" * 100_000
BROKEN: dict[str, bytes] = {
    "not UTF-8": b'{"text": "caf\xe9"}\n',
    "UTF-16": '{"text": "a"}'.encode("utf-16"),
    "NUL": b"\0" * 64,
    "deep": DEEP.encode(),
    "deep and closed": b'{"text": ' + b"[" * 5000 + b"]" * 5000 + b"}",
    "a list": b"[1, 2]\n",
    "a number": b"7\n",
    "cut off": b'{"text": "a',
    "two in a line": b'{"text": "a"} {"text": "b"}',
    "a large number": b'{"text": ' + b"9" * 5000 + b"}",
    "SQLite": b"SQLite format 3\0" + b"\1" * 100,
    "another row": b'{"nothing": "of this"}\n',
    "a picture": b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR",
}
TAKES_ANY_ROW = {"swe import", "json_objects", "--prompt-data", "toolcall rows"}


@pytest.mark.parametrize("broken", [*BROKEN, "a folder", "missing", "closed"])
@pytest.mark.parametrize("reader", READERS)
def test_a_broken_file_is_one_line(tmp_path: Path, reader: str, broken: str) -> None:
    read, _, refused = READERS[reader]
    file = tmp_path / "rows.jsonl"
    if broken == "a folder":
        file.mkdir()
    elif broken == "closed":
        file.symlink_to(file)
    elif broken != "missing":
        file.write_bytes(BROKEN[broken])
    if broken == "another row" and reader in TAKES_ANY_ROW:
        read(file)
        return
    expected = (refused, OSError) if reader in ("json_objects", "judge set", "results of an evaluation") else refused
    if broken == "SQLite" and reader == "DATA_PATH":
        return  # a ledger, which SQLite reads
    with pytest.raises(expected) as raised:
        read(file)
    said = str(raised.value)
    assert said.count("\n") == 0
    assert len(said) < 1000
    assert "rows.jsonl" in said or "results.jsonl" in said


def smith_folder(file: Path) -> Any:
    folder = file.parent / "instances" / "acme__m.abc.x__1"
    folder.mkdir(parents=True)
    (folder / "patch.diff").write_text(FIX)
    (folder / "report.json").write_bytes(file.read_bytes())
    return imported("swe-smith", folder.parent)


WHOLE: dict[str, Callable[[Path], Any]] = {
    "OSWorld task": lambda file: read_task(file, password=False),
    "OSWorld meta": read_meta,
    "SWE-smith folder": smith_folder,
}


@pytest.mark.parametrize("broken", [name for name in BROKEN if name not in ("another row", "cut off")])
@pytest.mark.parametrize("reader", WHOLE)
def test_a_broken_whole_file_is_one_line(tmp_path: Path, reader: str, broken: str) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_bytes(BROKEN[broken])
    with pytest.raises(ConfigError) as raised:
        WHOLE[reader](file)
    assert str(raised.value).count("\n") == 0
    assert str(tmp_path) in str(raised.value)


@pytest.mark.parametrize("kind", ["file", "in a file", "no ledger"])
def test_a_collector_needs_a_folder(tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("kept")
    (tmp_path / "no ledger").mkdir()
    (tmp_path / "no ledger" / "ledger.sqlite").write_bytes(b"no ledger" * 1000)
    folder = tmp_path / {"file": "file", "in a file": "file/x", "no ledger": "no ledger"}[kind]
    assert collect_main(["--api-endpoint", "http://127.0.0.1:1", "--output-dir", str(folder), "--once"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert str(folder) in said


USERS: dict[str, tuple[str, str]] = {
    "itself": ("name: me\nwish: w\nrule: &a {contains_any: *a}\n", "refers to itself"),
    "itself in a list": ("name: me\nwish: w\ncomplaints: &a [*a]\n", "refers to itself"),
    "deep": ("name: me\nrule: " + "[" * 40 + "]" * 40, "20 levels; write a smaller file"),
    "many": ("a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(f"{b}: &{b} [{','.join(['*' + a] * 9)}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True)), "more than"),
    "a date that is none": ("name: 2026-99-99\n", "month must be in 1..12"),
    "NUL": ("name: \0\n", "is not YAML"),
    "two documents": ("name: me\n---\nname: you\n", "is not YAML"),
    "a tab": ("name:\tme\n\trule: 3\n", "is not YAML"),
    "a Python object": ("name: !!python/object/apply:os.system [ls]\n", "is not YAML"),
    "a list as key": ("? [a]\n: b\n", ""),
    "a list": ("- a\n", "is not a mapping"),
    "empty": ("", "is not a mapping"),
}  # fmt: skip


@pytest.mark.parametrize("case", USERS)
def test_a_broken_user_is_named(tmp_path: Path, case: str) -> None:
    text, says = USERS[case]
    file = tmp_path / "me.yaml"
    file.write_text(text)
    with pytest.raises(UserFileError) as raised:
        find_user(str(file))
    assert says in str(raised.value)
    assert all(line.startswith(str(file)) for line in str(raised.value).split("\n"))


RULES = [
    (
        "{min_words: 9, max_tokens: 3}",
        160,
        "min_words 9 is above max_tokens 3, which counts words and punctuation marks",
    ),
    ("{min_words: 9, max_words: 3}", 160, "min_words 9 is above max_words 3"),
    ("{min_words: 9}", 8, "rule.min_words 9 is above max_tokens 8, where a reply is cut off"),
    ("{max_words: 3, min_tokens: 9}", 160, None),  # a reply of punctuation marks
    ("{min_words: 8, max_tokens: 8}", 8, None),
]


@pytest.mark.parametrize(("rule", "limit", "says"), RULES)
def test_a_rule_that_no_reply_can_follow_is_refused(tmp_path: Path, rule: str, limit: int, says: str | None) -> None:
    file = tmp_path / "me.yaml"
    file.write_text(f"name: me\nwish: w\ncomplaints: [wrong]\nthanks: [fine]\nmax_tokens: {limit}\nrule: {rule}\n")
    if says is None:
        find_user(str(file))
        return
    with pytest.raises(UserFileError, match=rf"me\.yaml:\d+: .*{says}"):
        find_user(str(file))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("今天天气很好。", 6),
        ("我有 3 个苹果", 6),
        ("これはペンです", 7),
        ("안녕하세요 여러분", 2),
        ("It's 3 o'clock, naïve café", 7),
        ("สวัสดี", 4),
    ],
)
def test_words_are_counted_in_scripts_without_spaces(text: str, words: int) -> None:
    assert word_count(text) == words
    assert not Rule.model_validate({"max_words": words - 1}).likes(text)
    assert Rule.model_validate({"max_words": words, "min_words": words}).likes(text)


def test_a_user_that_is_no_file_is_named(tmp_path: Path) -> None:
    for name in ("folder.yaml", "missing.yaml"):
        (tmp_path / "folder.yaml").mkdir(exist_ok=True)
        with pytest.raises(UserFileError, match=r"name an existing file"):
            find_user(str(tmp_path / name))
    (tmp_path / "me.yaml").write_bytes(b"name: caf\xe9\n")
    with pytest.raises(UserFileError, match="save it as UTF-8"):
        find_user(str(tmp_path / "me.yaml"))
