"""An environment that keeps a sandbox, and the pool process around it that a test kills: ``python -m ... LEDGER MARK``."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from agentrl.processes import Processes, ProcessLedger, end_leftovers
from agentrl.sandbox.bubblewrap import Bubblewrap
from agentrl.sandbox.interface import SandboxSpec
from tests.helpers.sandboxes import SMALL, line


async def main(ledger_path: str, mark: str) -> None:
    """Start as a pool does, keep processes in a sandbox, say so, and wait to be killed."""
    ledger = ProcessLedger(Path(ledger_path))
    await end_leftovers(ledger)
    provider = Bubblewrap()
    await provider.check()
    if mark == "restarted":
        ledger.close()
        print("clean", flush=True)
        return
    box = await provider.start(SandboxSpec(limits=SMALL), Processes(ledger))
    await line(box, f"setsid bash -c 'trap \"\" TERM HUP; while :; do sleep 100; done' {mark} & setsid sleep 1000 &")
    print("running", flush=True)
    await line(box, f"exec -a {mark} sleep 1000", timeout_s=1000)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
