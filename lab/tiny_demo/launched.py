"""The demo's run: started by the real launcher, stopped by its process id.

Guarantees: the run cannot outlive the demo (lifeline pipe). After `stop` its process group is gone. A run that dies is
reported with the end of its log. A port in use is refused before anything starts.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import psutil

from groundwork.paused import paused
from groundwork.process import ChildProcess, spawn
from groundwork.start_timeline import VARIABLE, Beginning
from openclaw.config.runtime_variables import RuntimeVariables, client_key
from openclaw.launch.variables import LaunchVariables
from openclaw.runtime.process import reserve_port
from openclaw.runtime.where import CHECKPOINTS_NAME, LEDGER_NAME

MODEL_NAME = "tiny"
"""The name under which the policy is served."""
REPOSITORY = Path(__file__).resolve().parents[2]
START_TIMEOUT_SECONDS = 420.0
STOP_TIMEOUT_SECONDS = 90.0
HOST = "127.0.0.1"
# The variables that the demo decides, under all their names: two names of one variable must not differ.
OF_OPTIONS = ("num_rollout", "seed", "run_dir", "resume")
OF_DEMO = ("hf_ckpt", "prm_model_path", "save_ckpt", "served_model_name", "ledger", "data_path")
DECIDED = {
    name
    for declared in (*LaunchVariables.variables(), *RuntimeVariables.variables())
    if declared.field in (*OF_OPTIONS, *OF_DEMO, "host", "port")
    for name in declared.names
}
TINKER = "tinker"
PROFILE_OF = {"cpu": "tiny_cpu", "cuda": "tiny_gpu", TINKER: "tiny_tinker"}
# Updates of a run that learns until it is stopped.
ENDLESS = 1_000_000


class RunFailed(RuntimeError):
    """The launched run ended or never became ready."""


@dataclass(frozen=True)
class Settings:
    """The demo's settings for the launcher; what the caller's variables set wins over ``defaults``."""

    method: str
    updates: int
    seed: int
    port: int
    run_dir: Path
    model: Path
    extra: Sequence[str] = ()
    resume: bool = False
    device: str = "cpu"
    defaults: Mapping[str, str] = field(default_factory=dict)

    @property
    def ledger(self) -> Path:
        """The ledger file, beside the checkpoints as in any run."""
        return self.run_dir / CHECKPOINTS_NAME / LEDGER_NAME

    @property
    def base_url(self) -> str:
        """The URL of the OpenAI API."""
        return f"http://{HOST}:{self.port}/v1"

    @property
    def profile(self) -> str:
        """The launcher's profile of the device."""
        return PROFILE_OF[self.device]

    @property
    def launcher_words(self) -> list[str]:
        """The launcher's arguments."""
        named = ["--tinker-model", MODEL_NAME] if self.device == TINKER and "--tinker-model" not in self.extra else []
        return ["--profile", self.profile, "--method", self.method, *named, *self.extra]

    @property
    def command(self) -> list[str]:
        """The command to run."""
        return [sys.executable, "-m", "openclaw.launch", *self.launcher_words]

    def environment(self, inherited: Mapping[str, str]) -> dict[str, str]:
        """Return the run's variables merged over the caller's."""
        paths = [str(REPOSITORY), str(REPOSITORY / "slime"), inherited.get("PYTHONPATH", "")]
        return {
            **self.defaults,
            **{name: value for name, value in inherited.items() if name not in DECIDED},
            "PYTHONPATH": os.pathsep.join(path for path in paths if path),
            "HOST": HOST,
            "PORT": str(self.port),
            "HF_CKPT": str(self.model),
            "PRM_MODEL_PATH": str(self.model),
            "SERVED_MODEL_NAME": MODEL_NAME,
            "NUM_ROLLOUT": str(self.updates),
            "SEED": str(self.seed),
            "RUN_DIR": str(self.run_dir),
            "RESUME": "1" if self.resume else "",
            "SAVE_CKPT": str(self.run_dir / CHECKPOINTS_NAME),
            "OPENCLAW_LEDGER": str(self.ledger),
            "HF_HUB_OFFLINE": "1",
            "TRANSFORMERS_OFFLINE": "1",
        }


class LaunchedRun:
    """One run; owns its process."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.log_path = settings.run_dir / "driver.log"
        self._child: ChildProcess | None = None

    def check_port(self) -> None:
        """Raise `RunFailed` if the port is in use."""
        port = self.settings.port
        try:
            reserve_port(HOST, port).close()  # the launcher holds it from its start on
        except OSError as error:
            cause = error.__cause__
            why = getattr(cause, "strerror", None) or error
            raise RunFailed(f"port {port} is in use ({why}); choose another with --port") from error

    def start(self, beginning: Beginning | None = None) -> None:
        """Start the launcher; ``beginning``: of the start's timeline, which otherwise begins here."""
        environment = self.settings.environment(os.environ)
        environment.pop(VARIABLE, None)
        environment |= beginning.carried() if beginning else {}
        self.settings.run_dir.mkdir(parents=True, exist_ok=True)
        self._child = spawn(self.settings.command, env=environment, log_path=self.log_path, name="run")

    def check(self) -> None:
        """Raise `RunFailed` when the run has ended."""
        if self._child is None or not self._child.alive():
            code = self._child.returncode if self._child else None
            tail = self._child.log_tail(25) if self._child else ""
            raise RunFailed(f"the run ended with exit code {code}; the end of {self.log_path}:\n{tail}")

    def check_trains(self) -> None:
        """Raise `RunFailed` when the run has ended, or a fuse has paused its training."""
        self.check()
        if note := paused(self.settings.run_dir):
            raise RunFailed(f"{note}; see {self.log_path}")

    async def wait_ready(self) -> None:
        """Return when the gateway answers.

        Raises:
            RunFailed: when the run ends first, or takes too long.
        """
        deadline = time.monotonic() + START_TIMEOUT_SECONDS
        async with httpx.AsyncClient(trust_env=False, timeout=2.0) as client:
            while time.monotonic() < deadline:
                self.check()
                with contextlib.suppress(httpx.TransportError):
                    if (await client.get(f"http://{HOST}:{self.settings.port}/healthz")).is_success:
                        return
                await asyncio.sleep(0.5)
        raise RunFailed(f"the gateway did not answer within {START_TIMEOUT_SECONDS:.0f} s; see {self.log_path}")

    async def gateway_counts(self, key: str | None = None) -> dict[str, float]:
        """Return the gateway's own counts of requests, refusals and generated tokens.

        ``key``: an admin's, if the server has several; default: that of `client_key`.
        """
        headers = {}
        if key := key or client_key():
            headers["Authorization"] = f"Bearer {key}"
        async with httpx.AsyncClient(trust_env=False, timeout=10.0, headers=headers) as client:
            text = (await client.get(f"http://{HOST}:{self.settings.port}/metrics")).raise_for_status().text
        names = {
            "requests": "openclaw_requests_total",
            "refused": "openclaw_refused_total",
            "generated_tokens": "openclaw_generated_tokens_total",
            "mixed_version_replies": "openclaw_mixed_version_replies_total",
            "practice_idle": "openclaw_practice_idle_looks_total",
        }
        return {
            name: sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(metric))
            for name, metric in names.items()
        }

    def cpu_seconds(self) -> float:
        """Return the processor time that the run's processes have taken, which another load on the machine changes little."""
        if self._child is None or not self._child.alive():
            return 0.0
        parent = psutil.Process(self._child.pid)
        total = 0.0
        for process in (parent, *parent.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess):
                times = process.cpu_times()
                total += times.user + times.system + times.children_user + times.children_system
        return total

    def stop(self) -> int | None:
        """Stop the run, then kill the rest of its process group; return its exit code."""
        if self._child is None:
            return None
        if self._child.alive():
            os.kill(self._child.pid, signal.SIGTERM)
            try:
                self._child.wait(STOP_TIMEOUT_SECONDS)
            except subprocess.TimeoutExpired:
                print(
                    f"the run did not end within {STOP_TIMEOUT_SECONDS:.0f} s; killing its process group",
                    file=sys.stderr,
                )
        return self._child.kill()
