"""A folder that the run cannot write is named in one line before anything starts; a dry run only warns."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from slime.args import Arguments
from slime.arguments import checkpoint as written
from slime.arguments import parse_args
from slime.arguments.checkpoint import check_written
from slime.arguments.dry_run import of_machine
from tests.helpers.arguments import refusal
from tests.helpers.checkpoints import config_only

SETTINGS: dict[str, Callable[[Path], dict[str, Any]]] = {
    "--run-dir": lambda path: {"run_dir": str(path)},
    "--save": lambda path: {"save": str(path)},
    "--critic-save": lambda path: {"critic_save": str(path), "use_critic": True},
    "--save-hf": lambda path: {"save_hf": str(path / "{rollout_id}")},
    "--save-debug-rollout-data": lambda path: {"save_debug_rollout_data": str(path / "{rollout_id}.pt")},
    "--save-debug-train-data": lambda path: {"save_debug_train_data": str(path / "{rollout_id}" / "{rank}.pt")},
    "--tensorboard-dir": lambda path: {"tensorboard_dir": str(path)},
    "--wandb-dir": lambda path: {"wandb_dir": str(path)},
    "--update-weight-disk-dir": lambda path: {"update_weight_disk_dir": str(path)},
}


def run_with(tmp_path: Path, flag: str, path: Path) -> list[str]:
    return check_written(Arguments(**{"run_dir": str(tmp_path / "run"), **SETTINGS[flag](path)}))


def a_file(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("")


def below_a_file(path: Path) -> None:
    a_file(path.parent)


def a_broken_link(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to("nowhere")


@pytest.mark.parametrize("flag", SETTINGS)
@pytest.mark.parametrize(
    ("harm", "words"), [(a_file, "is a file"), (below_a_file, "is a file"), (a_broken_link, "is a link to nothing")]
)
def test_what_is_no_folder_is_named(tmp_path: Path, flag: str, harm: Callable[[Path], None], words: str) -> None:
    path = tmp_path / "some" / "folder"
    harm(path)
    (line,) = run_with(tmp_path, flag, path)
    assert line.startswith(f"{flag} {path} cannot be written to: {tmp_path / 'some'}")
    assert words in line
    assert of_machine(line)


@pytest.mark.parametrize("flag", SETTINGS)
@pytest.mark.parametrize("there", [True, False])
def test_a_folder_that_is_missing_or_empty_is_accepted(tmp_path: Path, flag: str, there: bool) -> None:
    path = tmp_path / "a" / "b"
    if there:
        path.mkdir(parents=True)
    assert run_with(tmp_path, flag, path) == []
    assert path.exists() is there, "a check creates nothing"


@pytest.mark.parametrize("read_only", [True, False])
@pytest.mark.parametrize("flag", SETTINGS)
def test_a_folder_without_write_permission_is_named(
    tmp_path: Path, flag: str, read_only: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root may write everywhere, so the kernel's answers are given."""
    path = tmp_path / "closed"
    path.mkdir()
    access, statvfs = os.access, os.statvfs
    monkeypatch.setattr(os, "access", lambda place, mode: Path(place) != path and access(place, mode))
    flags = SimpleNamespace(f_flag=os.ST_RDONLY if read_only else 0)
    monkeypatch.setattr(os, "statvfs", lambda place: flags if Path(place) == path else statvfs(place))
    (line,) = run_with(tmp_path, flag, path / "new")
    what = "on a read-only file system" if read_only else f"not writable by user {os.geteuid()}"
    assert line == f"{flag} {path / 'new'} cannot be written to: {path} is {what}; mend that, or name another folder"


@pytest.mark.parametrize("flag", SETTINGS)
@pytest.mark.parametrize(("free", "accepted"), [(0, False), (31, False), (32, True)])
def test_a_full_disk_is_named(
    tmp_path: Path, flag: str, free: int, accepted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    room = SimpleNamespace(f_frsize=2**20, f_bfree=free, f_bavail=free, f_flag=0)
    monkeypatch.setattr(os, "statvfs", lambda place: room)
    found = run_with(tmp_path, flag, tmp_path / "x")
    assert (found == []) is accepted
    assert accepted or f"its disk has {free} MiB left, and a run needs at least 32" in found[0]


@pytest.mark.parametrize(
    ("flag", "name", "is_folder"),
    [("--run-dir", *each) for each in written._IN_RUN_FOLDER.items()]
    + [("--save", *each) for each in written._IN_SAVE.items()],
)
def test_what_the_run_opens_in_a_folder_has_its_kind(tmp_path: Path, flag: str, name: str, is_folder: bool) -> None:
    folder = tmp_path / "used"
    folder.mkdir()
    (folder / name).write_text("") if is_folder else (folder / name).mkdir()
    (line,) = run_with(tmp_path, flag, folder)
    assert f"{folder / name} is {'not a folder' if is_folder else 'not a file'}" in line


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
@pytest.mark.parametrize("name", ["logs", "metrics.jsonl"])
def test_a_part_of_another_user_is_named(tmp_path: Path, name: str) -> None:
    part = tmp_path / name
    part.mkdir() if name == "logs" else part.write_text("")
    part.chmod(stat.S_IRUSR)
    (line,) = run_with(tmp_path, "--run-dir", tmp_path)
    assert f"{part} is not writable by user" in line


def test_the_programs_refuse_it_and_a_dry_run_warns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    words = (
        f"--rollout-batch-size 4 --num-rollout 1 --device cpu --rollout-max-response-len 8 --save {tmp_path / 'file'}"
    )
    words = [
        *words.split(),
        "--hf-checkpoint",
        str(config_only(tmp_path / "model")),
        "--disable-rollout-global-dataset",
    ]
    assert f"--save {tmp_path / 'file'} cannot be written to: {tmp_path / 'file'} is a file" in refusal(capsys, words)
    with pytest.raises(SystemExit) as ended:
        parse_args([*words, "--dry-run"])
    assert ended.value.code == 0
    assert "warning: not found on this machine: --save" in capsys.readouterr().out
