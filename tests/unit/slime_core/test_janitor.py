"""What the janitor ends and removes once its owner is gone."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from groundwork import janitor
from lab.testkit.live_run import wait_until

SLEEP = (sys.executable, "-I", "-S", "-c", "import time; print(flush=True); time.sleep(600)")


RANK = """
import gc, sys, tempfile
from types import SimpleNamespace
from slime.backends.trainer.process import remove_wandb_folders_at_the_end
folders = [tempfile.TemporaryDirectory(dir=sys.argv[1]) for _ in range(2)]
sys.modules["wandb.sdk.data_types._private"] = SimpleNamespace(MEDIA_TMP=folders[0])
sys.modules["wandb.sdk.artifacts.artifact"] = SimpleNamespace(Artifact=SimpleNamespace(_TMP_DIR=folders[1]))
remove_wandb_folders_at_the_end()
gc.collect()
assert not remove_wandb_folders_at_the_end().stdin.closed
print(flush=True)
sys.stdin.read()
"""


@pytest.fixture
def children() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Processes that a test starts; what lives at its end is killed."""
    started: list[subprocess.Popen[bytes]] = []
    yield started
    for child in started:
        child.kill()
        child.communicate()


def sleeper(children: list[subprocess.Popen[bytes]], *words: str) -> subprocess.Popen[bytes]:
    child = subprocess.Popen([*SLEEP, *words], stdout=subprocess.PIPE)
    children.append(child)
    assert child.stdout is not None
    child.stdout.readline()
    return child


def test_processes_with_an_option_in_the_folder(tmp_path: Path, children: list[subprocess.Popen[bytes]]) -> None:
    folder = str(tmp_path / "ray")
    ray = [sleeper(children, f"--temp-dir={folder}"), sleeper(children, "x", f"--log_dir={folder}/session/logs")]
    sleeper(children, folder)
    sleeper(children, "--follow", f"{folder}/session/logs")
    sleeper(children, f"--temp-dir={folder}-2")
    assert {int(pid) for pid, _ in janitor.in_folder(folder)} == {child.pid for child in ray}


def test_a_process_that_was_never_named_ends_with_the_owner(
    tmp_path: Path, children: list[subprocess.Popen[bytes]]
) -> None:
    folder = tmp_path / "ray"
    folder.mkdir()
    late, other = sleeper(children, f"--temp-dir={folder}"), sleeper(children, str(folder))
    quick = "import sys; sys.path.append(sys.argv.pop(1)); import janitor; janitor.GRACE_SECONDS = 0.1; janitor.main()"
    words = [sys.executable, "-I", "-S", "-c", quick, str(Path(janitor.__file__).parent), str(folder)]
    subprocess.run(words, input=b"", timeout=60, check=True)
    assert late.wait(30) == -9
    assert other.poll() is None
    assert not folder.exists()


def test_a_killed_rank_leaves_no_folders_of_wandb(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    words = [sys.executable, "-c", RANK, str(tmp_path)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as rank:
        assert rank.stdout is not None
        assert rank.stdout.readline() == b"\n"
        assert len(list(tmp_path.iterdir())) == 2
        rank.kill()
    wait_until(lambda: not list(tmp_path.iterdir()), lambda: f"still there: {list(tmp_path.iterdir())}", 60)
