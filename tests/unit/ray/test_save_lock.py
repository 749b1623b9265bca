"""Two runs that name one folder to save to: the second is told who has it, and a crash of the first frees it."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from groundwork.checkpoint_names import LATEST
from groundwork.exceptions import ConfigError
from slime.args import Arguments
from slime.arguments.placement import Placement
from slime.arguments.process_environment import JOB_VARIABLE
from slime.ray import run as run_module
from slime.ray.placement import ReservedPlacement
from slime.ray.run import Run
from slime.ray.save_lock import own_save_folders

HOLDER = """
import sys
from slime.args import Arguments
from slime.ray.save_lock import own_save_folders
with own_save_folders(Arguments(save=sys.argv[1], resume=False, load=None, run_dir="/runs/first")):
    print("held", flush=True)
    sys.stdin.read()
"""


def run_of(save: Path, critic: Path | None = None, *, resume: bool = False) -> Arguments:
    return Arguments(
        **{"save": str(save), "critic_save": str(critic) if critic else None, "resume": resume, "load": None},
        run_dir=f"/runs/{save.name}",
    )


def test_a_folder_has_one_run_however_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(JOB_VARIABLE, json.dumps({"metadata": {"job_submission_id": "raysubmit_7"}}))
    (tmp_path / "link").symlink_to(tmp_path / "save")
    with own_save_folders(run_of(tmp_path / "save")):
        words = rf"^--save .*link is in use by another run \(job raysubmit_7, process {os.getpid()} on .*/runs/save, since .* UTC\)"
        with pytest.raises(ConfigError, match=words), own_save_folders(run_of(tmp_path / "link")):
            pytest.fail("it has the folder too")
        with own_save_folders(run_of(tmp_path / "other")):
            pass
    with own_save_folders(run_of(tmp_path / "link")):
        pass


def test_two_critics_do_not_share_a_folder_and_the_one_refused_lets_go_of_its_own(tmp_path: Path) -> None:
    with own_save_folders(run_of(tmp_path / "one", tmp_path / "critic")):
        second = own_save_folders(run_of(tmp_path / "two", tmp_path / "critic"))
        with pytest.raises(ConfigError, match=r"^--critic-save .*critic is in use by another run"), second:
            pytest.fail("it has the folder too")
        with own_save_folders(run_of(tmp_path / "two")):
            pass


def test_a_killed_driver_leaves_its_folder_to_the_one_that_resumes(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    first = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True,
    )  # fmt: skip
    with first:
        assert first.stdout is not None
        assert first.stdout.readline() == "held\n"
        (tmp_path / LATEST).write_text("2")
        with pytest.raises(ConfigError, match=f"process {first.pid} on .*/runs/first"):
            own_save_folders(run_of(tmp_path, resume=True)).__enter__()
        first.send_signal(signal.SIGKILL)
        first.wait(30)
    with own_save_folders(run_of(tmp_path, resume=True)):
        pass


def test_a_file_system_without_locks_is_named_aloud(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(descriptor: int, how: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with own_save_folders(run_of(tmp_path)):
        assert "the file system does not support locks (No locks available)" in capsys.readouterr().out


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"^--save .* cannot be written to"):
        own_save_folders(run_of(tmp_path / "file")).__enter__()


def test_a_run_that_has_its_gpus_waits_for_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two jobs with GPUs of their own: the second ends before it starts anything."""
    reserved = ReservedPlacement(Placement((0,), (), ()), None, ())
    monkeypatch.setattr(run_module, "ray_cluster", lambda *_, **__: contextlib.nullcontext())
    monkeypatch.setattr(run_module, "create_placement", lambda *_: reserved)
    monkeypatch.setattr(run_module, "create_rollout_manager", lambda *_: pytest.fail("it started"))
    folders = {"save": str(tmp_path), "run_dir": str(tmp_path / "run")}
    second = Run(Arguments(**folders, rollout_global_dataset=False, rollout_num_gpus=1))
    monkeypatch.setattr(second.stop, "install", lambda: None)
    with own_save_folders(run_of(tmp_path)), pytest.raises(ConfigError, match="in use by another run"), second:
        pytest.fail("it started")
