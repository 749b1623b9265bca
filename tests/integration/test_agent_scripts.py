"""Every script of ``toolcall-rl``, ``terminal-rl``, ``gui-rl`` and ``swe-rl`` passes ``--dry-run`` from three folders, and plans the same there.

The programs that the scripts become run in this process; for one script of each folder and program, in processes of their own
as well, with the same result.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.helpers.launch_plans import CLEAN, ROOT, becomes
from tests.page_commands.in_process import run_call

SCRIPTS = sorted(
    path.relative_to(ROOT)
    for folder in ("toolcall-rl", "terminal-rl", "gui-rl", "swe-rl")
    for path in (ROOT / folder).rglob("*.sh")
)
STARTED = (
    *("gui-rl/run_gui_rl.sh", "swe-rl/run_swe_rl.sh", "swe-rl/eval/run_eval_swe.sh", "swe-rl/scripts/run_swe_rl.sh"),
    *("terminal-rl/run_terminal_rl.sh", "terminal-rl/remote/run_pool_server.sh", "toolcall-rl/run_tiny_cpu.sh"),
    "toolcall-rl/run_toolcall_rl.sh",
)
OWN = re.compile(r"\d{8}-\d{6}|[\d.]+ GiB free")
"""What differs from one start to the next: the time in a folder's name, and the room on the disk."""
SCRIPT = re.compile(r"bash (\S+\.sh)")
SECONDS = 300


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """A folder that has nothing to do with the repository."""
    folder = tmp_path / "else where"
    folder.mkdir()
    return folder


def comparable(printed: str, folder: Path) -> str:
    """Return what was printed in ``folder`` without what differs by start; scripts to type are named by their whole paths."""
    return SCRIPT.sub(lambda match: f"bash {(folder / match[1]).resolve()}", OWN.sub("ITS OWN", printed))


def dry_run(script: Path, folder: Path, stage: Path) -> str:
    """Return what a dry run from a folder prints; its program runs in this process and forgets modules of ``stage``."""
    code, printed = run_call(becomes(ROOT / script, folder, "--dry-run"), stage)
    assert code == 0, f"{folder}: {printed}"
    return comparable(printed, folder)


def started(script: Path, folder: Path) -> str:
    """Return what a dry run from a folder prints, as a process."""
    words = ["bash", os.path.relpath(ROOT / script, folder), "--dry-run"]
    done = subprocess.run(
        words,
        cwd=folder,
        env=CLEAN,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, f"{folder}: {done.stdout}"
    return comparable(done.stdout, folder)


def test_the_scripts_are_all_here() -> None:
    assert {path.name for path in SCRIPTS} >= {
        *("run_toolcall_agent.sh", "run_toolcall_rl.sh", "run_terminal_agent.sh", "run_terminal_rl.sh"),
        *("run_gui_agent.sh", "run_gui_rl.sh", "gui_qwen3vl_8b_rl.sh", "gui_qwen3vl_8b_prm_rl.sh", "run_swe_agent.sh"),
        *("run_swe_rl.sh", "run_swe_rl_8b_prm_5nodes_remote.sh", "run_swe_rl_32b_remote_8nodes_resume.sh"),
        *("retool_qwen3_4b_sft.sh", "terminal_qwen3_8b_prm_rl_2nodes.sh", "run_pool_server.sh"),
    }


@pytest.mark.parametrize("script", SCRIPTS, ids=str)
def test_a_dry_run_is_the_same_from_three_folders(script: Path, elsewhere: Path) -> None:
    """The repository, the script's own folder, and one that has nothing to do with it and stays empty."""
    plans = [dry_run(script, folder, elsewhere) for folder in (ROOT, ROOT / script.parent, elsewhere)]
    assert "dry run: " in plans[0]
    assert "Traceback" not in plans[0]
    assert plans[0] == plans[1] == plans[2]
    assert list(elsewhere.iterdir()) == []


@pytest.mark.parametrize("name", STARTED)
def test_a_process_says_the_same(name: str, elsewhere: Path) -> None:
    """Wherever it starts, it finds the modules of the repository, whatever the names in its folder."""
    script = Path(name)
    plan = dry_run(script, ROOT, elsewhere)
    assert started(script, ROOT / script.parent) == plan
    assert started(script, elsewhere) == plan
    assert list(elsewhere.iterdir()) == []
