"""Every script of ``toolcall-rl``, ``terminal-rl``, ``gui-rl`` and ``swe-rl`` passes ``--dry-run`` from three folders, and plans the same there."""

from __future__ import annotations

import asyncio
import os
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = sorted(
    path.relative_to(ROOT)
    for folder in ("toolcall-rl", "terminal-rl", "gui-rl", "swe-rl")
    for path in (ROOT / folder).rglob("*.sh")
)
CLEAN = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
OWN = re.compile(r"\d{8}-\d{6}")
"""What differs from one start to the next: the time in a folder's name."""
SECONDS = 300


async def dry_run(script: Path, folder: Path) -> str:
    """Return what a dry run from a folder prints, its end included."""
    words = ["bash", os.path.relpath(ROOT / script, folder), "--dry-run"]
    process = await asyncio.create_subprocess_exec(
        *words, cwd=folder, env=CLEAN, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    try:
        async with asyncio.timeout(SECONDS):
            printed, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
    text = OWN.sub("TIME", printed.decode())
    assert process.returncode == 0, f"{folder}: {text}"
    return text


def test_the_scripts_are_all_here() -> None:
    assert {path.name for path in SCRIPTS} >= {
        *("run_toolcall_agent.sh", "run_toolcall_rl.sh", "run_terminal_agent.sh", "run_terminal_rl.sh"),
        *("run_gui_agent.sh", "run_gui_rl.sh", "gui_qwen3vl_8b_rl.sh", "gui_qwen3vl_8b_prm_rl.sh", "run_swe_agent.sh"),
        *("run_swe_rl.sh", "run_swe_rl_8b_prm_5nodes_remote.sh", "run_swe_rl_32b_remote_8nodes_resume.sh"),
        *("retool_qwen3_4b_sft.sh", "terminal_qwen3_8b_prm_rl_2nodes.sh", "run_pool_server.sh"),
    }


@pytest.mark.parametrize("script", SCRIPTS, ids=str)
async def test_a_dry_run_is_the_same_from_three_folders(script: Path, tmp_path: Path) -> None:
    """The repository, the script's own folder, and one that has nothing to do with it and stays empty."""
    elsewhere = tmp_path / "else where"
    elsewhere.mkdir()
    plans = [await dry_run(script, folder) for folder in (ROOT, ROOT / script.parent, elsewhere)]
    assert "dry run: " in plans[0]
    assert "Traceback" not in plans[0]
    assert plans[0] == plans[1] == plans[2]
    assert list(elsewhere.iterdir()) == []
