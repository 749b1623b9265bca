"""`python -m openclaw.runtime` as a process: serves, and ends cleanly on SIGTERM."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

import httpx

from groundwork.network import find_available_port
from lab.testkit.engine import mock_engine
from lab.testkit.waiting import eventually
from openclaw.ledger.store import Ledger

SECONDS = 240.0


def environment(repository: Path, **variables: str) -> dict[str, str]:
    paths = [str(repository / name) for name in (".", "slime", "openclaw-combine")]
    kept = {name: value for name, value in os.environ.items() if name in ("PATH", "HOME", "OMP_NUM_THREADS")}
    return {**kept, "PYTHONPATH": os.pathsep.join(paths), "HF_HUB_OFFLINE": "1", **variables}


async def test_serves_and_ends_on_sigterm(repository: Path, tiny_random_model: Path, tmp_path: Path) -> None:
    port = find_available_port()
    async with mock_engine(lambda prompt: list(range(70, 90))) as engine:
        tokens = engine.token_gate = asyncio.Semaphore(20 + 3)
        log = tmp_path / "runtime.log"
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "openclaw.runtime",
            env=environment(
                repository,
                PORT=str(port),
                OPENCLAW_POLICY_URL=engine.url,
                OPENCLAW_JUDGE_URL=engine.url,
                OPENCLAW_TOKENIZER=str(tiny_random_model),
                OPENCLAW_JUDGE_TOKENIZER=str(tiny_random_model),
                OPENCLAW_METHOD="openclaw_combine_method.Combine",
                OPENCLAW_LEDGER=str(tmp_path / "ledger.sqlite"),
                OPENCLAW_RUN_DIR=str(tmp_path),
                OPENCLAW_ENGINE_WAIT_SECONDS="1",
                OPENCLAW_GRACE_SECONDS="1",
            ),
            stderr=log.open("wb"),
        )
        try:
            async with httpx.AsyncClient(
                base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=SECONDS
            ) as client:
                await healthy(client, process, log)
                request = {"messages": [{"role": "user", "content": "hi"}]}
                assert (await client.post("/v1/chat/completions", json=request)).status_code == 200
                assert "openclaw_judge_in_flight" in (await client.get("/metrics")).text
                cut_off = asyncio.create_task(client.post("/v1/chat/completions", json=request))
                await eventually(tokens.locked, True, SECONDS)
                process.send_signal(signal.SIGTERM)
                assert await asyncio.wait_for(process.wait(), SECONDS) == 0, log.read_text()
                await asyncio.gather(cut_off, return_exceptions=True)
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
    ledger = Ledger(tmp_path / "ledger.sqlite")
    turns = [record.turn for record in ledger.views.turn_records()]
    ledger.close()
    assert [turn.finish_reason for turn in turns] == ["stop", "abort"]
    assert turns[1].response_ids == [70, 71, 72]
    written = (tmp_path / "ledger.conversations.jsonl").read_text().splitlines()
    assert [json.loads(line)["finish_reason"] for line in written] == ["stop", "abort"]


async def healthy(client: httpx.AsyncClient, process: asyncio.subprocess.Process, log: Path) -> None:
    """Wait until the process answers."""

    async def answers() -> bool:
        assert process.returncode is None, log.read_text()
        try:
            return (await client.get("/healthz")).status_code == 200
        except httpx.ConnectError:
            return False

    await eventually(answers, True, SECONDS)
