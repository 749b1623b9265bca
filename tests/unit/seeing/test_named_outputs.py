"""What a user names as output is written as what it is, or refused in one line with nothing left behind."""

from __future__ import annotations

import argparse
import json
import os
import stat
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from groundwork.command_line import new_output_file, output_file
from groundwork.private_files import OutputError, write_output, writing
from lab.testkit.ledger_records import judged_sample
from openclaw import inspect
from openclaw.ledger.store import Ledger
from openclaw.report.__main__ import main as report_main

Command = Callable[[Path, str], int]
COMMANDS: dict[str, Command] = {
    "export": lambda run, target: inspect.main([str(run), "export", target]),
    "--export": lambda run, target: inspect.main([str(run), "--export", target]),
    "report": lambda run, target: report_main([str(run), "--output", target]),
    "salvage": lambda run, target: inspect.main([str(run), "salvage", target]),
}
WRITES = ("export", "--export", "report")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    folder.mkdir()
    ledger = Ledger(folder / "ledger.sqlite")
    judged_sample(ledger, "turn-0")
    ledger.close()
    return folder


def call(command: str, run: Path, target: str) -> int:
    try:
        return COMMANDS[command](run, target)
    except SystemExit as ended:
        return int(ended.code or 0)


def refused(capsys: pytest.CaptureFixture[str]) -> str:
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "Traceback" not in said
    return said


def names(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*")}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    ("place", "says"),
    [
        ("folder", "is a folder; name a file in it"),
        ("folder/", "is a folder; name a file in it"),
        ("link to folder", "is a folder; name a file in it"),
        ("missing/file", "there is no folder"),
        ("plain/file", "there is no folder"),
        ("link to missing", "there is no folder"),
        ("loop", "Too many levels of symbolic links"),
        ("x" * 300, "File name too long"),
        ("-", "'-' is not a file; for the standard output write /dev/stdout"),
        ("run/ledger.sqlite", "is what is read; name another file"),
        ("link to ledger", "is what is read; name another file"),
    ],
)
def test_what_cannot_be_written_is_one_line(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, command: str, place: str, says: str
) -> None:
    folder = run.parent
    monkeypatch.chdir(folder)
    (folder / "folder").mkdir()
    (folder / "plain").write_text("kept")
    (folder / "link to folder").symlink_to("folder")
    (folder / "link to missing").symlink_to("missing/file")
    (folder / "link to ledger").symlink_to("run/ledger.sqlite")
    (folder / "loop").symlink_to("loop")
    before, kept = names(folder), (run / "ledger.sqlite").read_bytes()
    assert call(command, run, place if place == "-" else f"{folder}/{place}") == 2
    said = refused(capsys)
    assert says in said or (command == "salvage" and "exists; name a new file" in said)
    assert names(folder) - {"run/ledger.sqlite-wal", "run/ledger.sqlite-shm"} == before
    assert (run / "ledger.sqlite").read_bytes() == kept


@pytest.mark.parametrize("command", WRITES)
def test_a_link_stays_one_and_its_target_is_written(run: Path, command: str) -> None:
    folder = run.parent
    (folder / "real").mkdir()
    (folder / "link").symlink_to("middle")
    (folder / "middle").symlink_to("real/file")
    for old in (None, "old"):
        if old:
            (folder / "real" / "file").write_text(old)
        assert call(command, run, str(folder / "link")) == 0
        assert (folder / "link").is_symlink()
        assert (folder / "middle").is_symlink()
        written = folder / "real" / "file"
        assert not written.is_symlink()
        assert written.stat().st_size > 100
        assert stat.S_IMODE(written.stat().st_mode) == 0o600
        assert names(folder / "real") == {"file"}


@pytest.mark.parametrize("command", WRITES)
def test_a_device_is_written_into(run: Path, command: str, capsys: pytest.CaptureFixture[str]) -> None:
    before = os.stat("/dev/null")
    assert call(command, run, "/dev/null") == 0
    assert os.stat("/dev/null").st_rdev == before.st_rdev
    (run.parent / "link").symlink_to("/dev/null")
    assert call(command, run, str(run.parent / "link")) == 0
    assert (run.parent / "link").is_symlink()
    assert capsys.readouterr().out == "", "what is said must not be among what is written"
    assert call(command, run, "/dev/full") == 2
    assert "No space left on device" in refused(capsys)
    assert stat.S_ISCHR(os.stat("/dev/full").st_mode)


@pytest.mark.parametrize("command", WRITES)
def test_a_pipe_gets_everything_and_stays(run: Path, command: str) -> None:
    pipe = run.parent / "pipe"
    os.mkfifo(pipe)
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()))
    reader.start()
    assert call(command, run, str(pipe)) == 0
    reader.join()
    assert len(read[0]) > 100
    assert stat.S_ISFIFO(pipe.stat().st_mode)


@pytest.mark.parametrize("name", ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"])
def test_the_standard_output_gets_the_conversations_only(
    run: Path, name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert call("export", run, name) == 0
    said = capfd.readouterr()
    assert len(json.loads(said.out)["turns"]) == 1
    assert said.err.splitlines()[-1] == f"wrote 1 session to {name}"


def test_a_file_keeps_its_old_content_if_writing_fails(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("old")
    with suppress(RuntimeError), writing(file) as out:
        out.write(b"half of the new")
        raise RuntimeError
    with pytest.raises(OutputError, match="file cannot be written: no room; name another file"), writing(file):
        raise OSError(28, "no room")
    assert file.read_text() == "old"
    assert names(tmp_path) == {"file"}
    assert write_output(file, "half \ud800") == 6
    assert file.read_text() == "half ?"


def test_a_folder_that_may_not_be_written_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**options: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("tempfile.mkstemp", refuse)
    with pytest.raises(OutputError, match="file cannot be written: Permission denied; name another file"):
        write_output(tmp_path / "file", b"")


def test_a_ledger_that_is_not_saved_leaves_nothing(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ledger = run / "ledger.sqlite"
    data = bytearray(ledger.read_bytes())
    data[100:4096] = b"\1" * (4096 - 100)  # the list of tables
    ledger.write_bytes(data)
    assert call("salvage", run, str(run.parent / "new.sqlite")) == 2
    refused(capsys)
    assert names(run.parent) - {"run/ledger.sqlite-wal", "run/ledger.sqlite-shm"} == {"run", "run/ledger.sqlite"}


def test_options_of_output_are_checked_when_they_are_read(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for wrong in (str(tmp_path), "-", f"{tmp_path}/file/x"):
        for kind in (output_file, new_output_file):
            with pytest.raises(argparse.ArgumentTypeError):
                kind(wrong)
    with pytest.raises(argparse.ArgumentTypeError, match=f"there is no folder {tmp_path}/a/b; create it"):
        output_file(f"{tmp_path}/a/b/c")
    assert new_output_file(f"{tmp_path}/a/b/c") == tmp_path / "a" / "b" / "c"
    assert output_file("~/x.json") == Path.home() / "x.json"
