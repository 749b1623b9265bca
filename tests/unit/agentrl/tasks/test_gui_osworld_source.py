"""Which tasks of a folder in OSWorld's layout a run gets: what the meta files list, without what cannot be judged here."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from agentrl.tasks.gui.osworld.environment import OsWorldEnvironment
from agentrl.tasks.gui.osworld.settings import VmSettings
from agentrl.tasks.gui.osworld.source import ids
from agentrl.tasks.names import Split
from groundwork.exceptions import ConfigError
from openclaw.launch.__main__ import main as launch

CHECK = {
    "func": "exact_match",
    "result": {"type": "vm_command_line", "command": ["date"]},
    "expected": {"type": "rule", "rules": {"expected": "x"}},
}
DOCX = {**CHECK, "func": "compare_docx_files"}
SUDO = [{"type": "execute", "parameters": {"command": "echo {CLIENT_PASSWORD} | sudo -S true", "shell": True}}]
Layout = Callable[..., None]


@pytest.fixture
def layout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Layout:
    """Return a function that writes tasks and meta files; a name that begins with ``docx`` or ``sudo`` asks for more."""
    monkeypatch.setenv("GUI_TEST_CONFIG_BASE_DIR", str(tmp_path))
    monkeypatch.setenv("TASK_TYPE", "osworld")

    def write(*names: str, train: list[str] | None = None, heldout: list[str] | None = None) -> None:
        (tmp_path / "examples" / "writer").mkdir(parents=True)
        for name in names:
            evaluator = DOCX if name.startswith("docx") else CHECK
            task = {"id": name, "instruction": "Do it.", "config": SUDO if name.startswith("sudo") else []}
            text = json.dumps({**task, "evaluator": evaluator}) if name != "broken" else "{"
            (tmp_path / "examples" / "writer" / f"{name}.json").write_text(text)
        for variable, listed in (("GUI_TRAIN_META_PATH", train), ("GUI_EVAL_META_PATH", heldout)):
            if listed is not None:
                (tmp_path / variable).write_text(json.dumps({"writer": listed}))
                monkeypatch.setenv(variable, str(tmp_path / variable))

    return write


def of_pool() -> list[str]:
    return [task.id.rpartition("/")[2] for task in OsWorldEnvironment.tasks()]


def of(split: Split) -> list[str]:
    return [name.rpartition("/")[2] for name in ids(VmSettings.from_env(), split)]


def test_what_no_meta_file_lists_is_not_read(layout: Layout, caplog: pytest.LogCaptureFixture) -> None:
    layout("a", "b", "docx", "broken", train=["a"], heldout=["b"])
    assert of_pool() == ["a", "b"]
    assert (of("train"), of("heldout")) == (["a"], ["b"])
    assert caplog.text == ""


def test_a_listed_task_that_cannot_be_judged_is_left_out_by_name(
    layout: Layout, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = ["a", "docx1", "sudo", "docx2", "broken"]
    layout(*listed, "b", train=["b"], heldout=listed)
    assert of("heldout") == ["a"]
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    first, second, *others = record.getMessage().splitlines()
    assert first == "4 of the 5 tasks of GUI_EVAL_META_PATH are left out:"
    docx = "evaluator.func: there is no metric 'compare_docx_files' for it"
    assert second == f"  2: {docx}; in osworld/writer/docx1, osworld/writer/docx2"
    assert [line.rpartition("/")[2] for line in others] == ["broken", "sudo"]
    assert "set GUI_CLIENT_PASSWORD; in osworld/writer/sudo" in others[1]
    caplog.clear()
    assert of("train") == ["b"]
    assert caplog.text == ""
    monkeypatch.setenv("GUI_CLIENT_PASSWORD", "pa55")
    assert of_pool() == ["b", "a", "sudo"]
    assert "3 of the 6 tasks of GUI_TRAIN_META_PATH and GUI_EVAL_META_PATH are left out" in caplog.text


def test_a_pool_without_meta_files_has_the_whole_folder(layout: Layout, caplog: pytest.LogCaptureFixture) -> None:
    layout("a", "docx")
    assert of_pool() == ["a"]
    assert "1 of the 2 tasks of GUI_TEST_CONFIG_BASE_DIR are left out" in caplog.text
    with pytest.raises(ConfigError, match="GUI_TRAIN_META_PATH names no task"):
        of("train")


def test_a_split_of_which_nothing_is_left_is_refused(layout: Layout) -> None:
    layout("docx", "a", train=["a"], heldout=["docx"])
    with pytest.raises(ConfigError, match="no task is left; 1 of the 1 tasks of GUI_EVAL_META_PATH"):
        of("heldout")


def test_splits_are_apart_and_name_what_is_there(layout: Layout, tmp_path: Path) -> None:
    layout("a", "b", train=["a"], heldout=["a", "b"])
    with pytest.raises(ConfigError, match="1 tasks are in GUI_TRAIN_META_PATH and GUI_EVAL_META_PATH"):
        of("train")
    (tmp_path / "GUI_EVAL_META_PATH").write_text(json.dumps({"writer": ["c"]}))
    for asked in (of_pool, lambda: of("train")):
        with pytest.raises(ConfigError, match=r"GUI_EVAL_META_PATH=.* names osworld/writer/c, which"):
            asked()


def test_a_dry_run_says_what_is_left_out(
    layout: Layout,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    layout("a", "b", "docx", train=["a", "docx"], heldout=["b"])
    words = ["--task", "gui", "--model", "qwen3-vl-8B", "--name", "x", "--dry-run"]
    launch(words)
    assert "osworld, 1 to train on, 0 to evaluate on" in capsys.readouterr().out
    assert "1 of the 2 tasks of GUI_TRAIN_META_PATH are left out" in caplog.text
    (Path(str(VmSettings.from_env().train_meta))).write_text(json.dumps({"writer": ["docx"]}))
    with pytest.raises(SystemExit, match="2"):
        launch(words)
    assert "no task is left" in capsys.readouterr().err
