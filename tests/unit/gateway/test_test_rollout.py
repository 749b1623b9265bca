"""``python -m openclaw_combine.test_rollout`` and ``inspect_sessions`` against a gateway."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from openclaw.server.collect_check import main
from openclaw_combine.utils import inspect_sessions
from tests.unit.gateway.conftest import Stack, Starter


async def run(stack: Stack, folder: Path, count: int) -> int:
    for _ in range(2 * count):
        stack.say("Hello you.")
    words = ["--num-samples", str(count), "--output-dir", str(folder), "--api-endpoint", f"{stack.url}/v1"]
    return await asyncio.to_thread(main, words)


async def test_samples_are_collected_and_shown(
    start: Starter, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stack = await start(serve_rollouts=True)
    assert await run(stack, tmp_path / "kept", 3) == 0
    assert "3 of 3 samples collected" in capsys.readouterr().out
    assert await run(stack, tmp_path / "kept", 2) == 0
    assert "2 of 2 samples collected" in capsys.readouterr().out
    rows = inspect_sessions(tmp_path / "kept")
    assert [(row["main"], row["side"], row["with_next_state"]) for row in rows] == [(2, 0, 1)] * 5
    assert rows == inspect_sessions(tmp_path / "kept" / "ledger.sqlite")
    assert [row["unjudged"] for row in rows] == [2] * 5
    said = "2 main and 0 side turns, 1 with a next state, 1 trainable, 2 not judged yet"
    assert said in capsys.readouterr().out


async def test_a_server_that_hands_nothing_out_is_named(
    stack: Stack, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await run(stack, tmp_path / "kept", 1) == 2
    assert "--enable-rl-intercept" in capsys.readouterr().err


def test_a_folder_without_a_ledger(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"collect_rollouts\.py writes one"):
        inspect_sessions(tmp_path)
