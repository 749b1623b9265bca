"""Gateway, pool and driver as the real commands, for tests that kill them and start them again.

Guarantee: what is started ends with `Servers.end`. A server keeps its port, its ledger and its folders when it is started again.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import psutil

from agentrl.harness.records import BEGUN, EPISODES, GROUPS, lines
from groundwork.network import find_available_port
from lab.testkit.waiting import eventually
from tests.helpers.killable_agent import FOLDER_VARIABLE, TASK, KillableAgent

REPOSITORY = Path(__file__).resolve().parents[2]
SECONDS = 240.0
KEYS = {"OPENCLAW_API_KEY": "sk-operator-0123456789", "AGENTRL_KEY": "pool-0123456789"}
METHOD = "openclaw_rl_method.BinaryRL"
TRIES = 100
"""Runs are lost as long as an engine takes to come back."""
RUN_S = 600
"""Most seconds of a run; a group of runs of any length would outlive what the gateway allows."""


@dataclass
class Command:
    """One command line, which may be started several times; `start` is for one that serves at ``url``."""

    name: str
    argv: list[str]
    environment: dict[str, str]
    log: Path
    url: str
    process: subprocess.Popen[bytes] | None = None
    pids: list[int] = field(default_factory=list)

    def launch(self) -> None:
        """Start it, without waiting."""
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(self.argv, env=self.environment, stdout=log, stderr=log)
        self.pids.append(self.process.pid)

    async def start(self) -> None:
        """Start it, and wait until it serves."""
        self.launch()
        async with httpx.AsyncClient(trust_env=False) as client:

            async def serves() -> bool:
                assert self.status() is None, self.said()
                try:
                    return (await client.get(f"{self.url}/healthz")).status_code == 200
                except httpx.TransportError:
                    return False

            await eventually(serves, True, SECONDS)

    def status(self) -> int | None:
        """Return its exit status, None while it runs."""
        assert self.process is not None, f"{self.name} was not started"
        return self.process.poll()

    def family(self) -> list[psutil.Process]:
        """Return all processes below it, those in its sandboxes too."""
        assert self.process is not None
        return psutil.Process(self.process.pid).children(recursive=True)

    def kill(self) -> list[psutil.Process]:
        """Kill it alone; return what was below it."""
        assert self.process is not None
        family = self.family()
        self.process.kill()
        self.process.wait()
        return family

    def end(self) -> None:
        """Ask it to end, and wait until it has."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(SECONDS)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()

    def said(self) -> str:
        """Return the end of its log."""
        return f"{self.name}:\n{self.log.read_text()[-6000:]}"


class Servers:
    """A gateway before an engine, a pool, and the driver of one group of two."""

    def __init__(self, folder: Path, engine_url: str, model: Path) -> None:
        """Prepare the commands.

        Args:
            folder: for ledgers, logs and records; its path must be short, because sockets lie below it.
            engine_url: of the policy's engine.
            model: whose tokenizer the gateway uses.
        """
        self.ledger, self.records, self.runs = folder / "ledger.sqlite", folder / "records", folder / "runs"
        self.temporary, self.pool_ledger = folder / "tmp", folder / "pool.sqlite"
        for each in (self.runs, self.temporary):
            each.mkdir()
        self._folder = folder
        port = find_available_port()
        variables = {
            "PORT": str(port),
            "OPENCLAW_POLICY_URL": engine_url,
            "OPENCLAW_JUDGE_URL": engine_url,
            "OPENCLAW_TOKENIZER": str(model),
            "OPENCLAW_JUDGE_TOKENIZER": str(model),
            "OPENCLAW_METHOD": METHOD,
            "OPENCLAW_LEDGER": str(self.ledger),
            "OPENCLAW_ENGINE_WAIT_SECONDS": "1",
            "OPENCLAW_GRACE_SECONDS": "1",
        }
        self.gateway = self._command("gateway", ["openclaw.runtime"], port, variables)
        gateway, port = ["--gateway-url", self.gateway.url], find_available_port()
        agent = f"{KillableAgent.__module__}.{KillableAgent.__name__}"
        pool = ["agentrl.pool", "--env", "agentrl.harness.environment.HarnessEnvironment", "--harness", agent, *gateway]
        pool += ["--slots", "1", "--memory-mib", "4096", "--cpu", "4", "--ledger", str(self.pool_ledger)]
        pool += ["--port", str(port)]
        self.pool = self._command("pool", pool, port, {"TMPDIR": str(self.temporary), FOLDER_VARIABLE: str(self.runs)})
        driver = ["agentrl.harness", "--harness", KillableAgent.name, "--task", TASK, "--group-size", "2", *gateway]
        driver += [
            "--parallel",
            "1",
            "--groups",
            "1",
            "--tries",
            str(TRIES),
            "--timeout-s",
            str(RUN_S),
            "--pool-url",
            self.pool.url,
        ]
        self.driver = self._command("driver", [*driver, "--records", str(self.records)], 0, {})

    def _command(self, name: str, module: list[str], port: int, variables: dict[str, str]) -> Command:
        """Return ``python -m MODULE`` with these variables, and few others of this process."""
        kept = {each: os.environ[each] for each in ("PATH", "HOME", "OMP_NUM_THREADS") if each in os.environ}
        paths = os.pathsep.join(str(REPOSITORY / each) for each in (".", "slime", "openclaw-rl"))
        environment = {**kept, **KEYS, "PYTHONPATH": paths, "HF_HUB_OFFLINE": "1", **variables}
        url = f"http://127.0.0.1:{port}"
        return Command(name, [sys.executable, "-m", *module], environment, self._folder / f"{name}.log", url)

    async def start(self) -> None:
        """Start all; the driver begins its first run."""
        await self.gateway.start()
        await self.pool.start()
        self.driver.launch()

    def ended_runs(self) -> list[dict[str, object]]:
        """Return what the driver kept of each run that has ended."""
        return list(lines(self.records / EPISODES))

    def ended_groups(self) -> list[dict[str, object]]:
        """Return what the driver kept of each group that is over."""
        return [line for line in lines(self.records / GROUPS) if line["state"] != BEGUN]

    async def driven(self) -> None:
        """Wait until the driver has ended well."""
        await eventually(self.driver.status, 0, SECONDS)

    def said(self) -> str:
        """Return the ends of all logs."""
        return "\n".join(each.said() for each in self._all() if each.log.exists())

    def end(self) -> None:
        """End all, the driver first."""
        for each in self._all():
            each.end()

    def _all(self) -> tuple[Command, ...]:
        return self.driver, self.pool, self.gateway
