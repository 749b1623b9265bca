"""A hundred calls at a time, each in a sandbox of its own, in one pool: none is lost, mixed up, or leaves anything."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from agentrl.client import InProcessLeases, episode
from agentrl.environment import Registry, Weight
from agentrl.leases.metrics import PoolMetrics
from agentrl.leases.pool import Capacity, Pool
from agentrl.processes import ProcessLedger
from agentrl.protocol import JsonObject, StepResult
from agentrl.sandbox.bubblewrap import Bubblewrap
from agentrl.tasks.toolcall.environment import ToolCallEnvironment

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(900),
    pytest.mark.skipif(shutil.which("bwrap") is None, reason="needs bubblewrap: run scripts/setup_bubblewrap.sh"),
]
CALLS = 100
SECONDS = 600.0
"""A hundred sandboxes start on whatever the machine has left."""
TOOL = '''
import os, pathlib, time

def hold(number):
    """Leave a file, wait for all others, and return the file: nobody else may have been here."""
    with open("/work/own", "x") as file:
        file.write(str(number))
    while not pathlib.Path("/opt/tools/0/go").exists():
        time.sleep(0.2)
    return f"{number}: {open('/work/own').read()} of {sorted(os.listdir('/work'))}"
'''


class Counting(ToolCallEnvironment):
    """Knows how many calls have begun and not ended."""

    provider = Bubblewrap()
    running = 0

    async def step(self, action: JsonObject) -> StepResult:
        Counting.running += 1
        try:
            return await super().step(action)
        finally:
            Counting.running -= 1


def mentions(text: str) -> list[str]:
    """Return the processes of this machine whose command line has a text."""
    found: list[str] = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if text in line:
            found.append(line)
    return found


async def test_a_hundred_calls_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "tools"
    folder.mkdir()
    (folder / "mine.py").write_text(TOOL)
    schema = {"type": "object", "properties": {"number": {"type": "integer"}}, "required": ["number"]}
    hold = {
        "function": {"name": "hold", "parameters": schema},
        "binding": {"kind": "python", "entry": "mine:hold", "timeout_s": SECONDS},
    }
    (folder / "tools.json").write_text(
        json.dumps([{"function": {"name": "store_get"}, "binding": {"kind": "builtin"}}, hold])
    )
    monkeypatch.setenv("TOOLS_CONFIG", str(folder / "tools.json"))
    ledger = ProcessLedger(tmp_path / "pool.sqlite")
    capacity = Capacity(CALLS, Weight(1_000_000, 1_000.0))
    pool = Pool(Registry([Counting]), capacity, ledger, PoolMetrics(CollectorRegistry()))
    await pool.start()
    service = InProcessLeases(pool)

    async def play(number: int) -> str:
        async with episode(service, f"toolcall/get_value/train/{number}", wait_s=SECONDS) as lent:
            await lent.reset(timeout_s=SECONDS)
            seen = await lent.step({"tool": "hold", "arguments": {"number": number}}, timeout_s=SECONDS)
            assert seen.observation.text is not None
            return seen.observation.text

    try:
        playing = [asyncio.create_task(play(number)) for number in range(CALLS)]
        async with asyncio.timeout(SECONDS):
            while Counting.running < CALLS and not any(task.done() for task in playing):
                await asyncio.sleep(0.05)
        assert Counting.running == CALLS, [task.exception() for task in playing if task.done()]
        (folder / "go").touch()
        found = await asyncio.gather(*playing)
    finally:
        left = await pool.stop(120.0)
        groups = await ledger.groups()
        ledger.close()
    assert found == [f"{number}: {number} of ['own']" for number in range(CALLS)]
    assert (left, groups, Counting.running, capacity.used_slots) == (0, [], 0, 0)
    assert mentions(str(tmp_path)) == []
