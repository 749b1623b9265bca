"""``python -m openclaw_combine.test_rollout`` and ``inspect_sessions`` against a gateway."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from lab.testkit.ledger_records import make_turn
from openclaw.ledger.store import Ledger
from openclaw_combine.test_rollout import REACTION, main
from openclaw_combine.utils import inspect_sessions, session_rows
from openclaw_combine.utils import main as print_rows
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
    said = capsys.readouterr().out
    assert "2 of 2 samples collected" in said
    assert said.count(" 2 main and 0 side turns") == 2, "of these conversations, not of those before"
    rows = session_rows(tmp_path / "kept")
    assert [(row["main"], row["side"], row["with_next_state"]) for row in rows] == [(2, 0, 1)] * 5
    assert rows == session_rows(tmp_path / "kept" / "ledger.sqlite")
    assert [row["unjudged"] for row in rows] == [2] * 5
    assert print_rows([str(tmp_path / "kept")]) == 0
    said = "2 main and 0 side turns, 1 with a next state, 1 trainable, 2 not judged yet"
    assert capsys.readouterr().out.count(said) == 5


@pytest.mark.parametrize("variable", ["OPENCLAW_DEBUG=true", "ROLLOUT_LOG_LEVEL=DEBUG", "ROLLOUT_LOG_LEVEL=INFO"])
async def test_the_variables_of_the_log_count(
    start: Starter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, variable: str
) -> None:
    stack = await start(serve_rollouts=True)
    monkeypatch.setenv(*variable.split("="))
    monkeypatch.setattr(
        logging, "basicConfig", lambda **given: logging.getLogger("test_rollout").setLevel(given["level"])
    )
    assert await run(stack, tmp_path / "kept", 1) == 0
    told = [record.getMessage().partition(" ")[2] for record in caplog.records if record.name == "test_rollout"]
    shown = [
        "user: How many days has a leap year?",
        "assistant: Hello you.",
        f"user: {REACTION}",
        "assistant: Hello you.",
    ]
    assert told == ([] if variable.endswith("INFO") else shown)


async def test_a_server_that_hands_nothing_out_is_named(
    stack: Stack, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await run(stack, tmp_path / "kept", 1) == 2
    assert "--enable-rl-intercept" in capsys.readouterr().err


def test_sessions_are_a_mapping_of_their_turns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ledger = Ledger(tmp_path / "run" / "checkpoints" / "ledger.sqlite")
    for number, kind in enumerate(("main", "main", "side")):
        ledger.turns.record(make_turn(f"turn-{number}", session_id="s", index=number, kind=kind))
    ledger.turns.record(make_turn("other", session_id="t"))
    sessions = inspect_sessions(str(tmp_path / "run"))
    kinds = {session_id: [turn["type"] for turn in data] for session_id, data in sessions.items()}
    assert kinds == {"s": ["main", "main", "side"], "t": ["main"]}
    assert capsys.readouterr().out == ""


def test_a_folder_without_a_ledger(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(FileNotFoundError, match=r"no ledger\.sqlite in .* collect_rollouts\.py writes"):
        inspect_sessions(tmp_path)
    assert print_rows([str(tmp_path)]) == 2
    assert capsys.readouterr().err.startswith("inspect_sessions: no ledger.sqlite in")
