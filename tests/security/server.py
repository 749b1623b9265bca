"""The server under attack: a real runtime process, with its own folder, before an engine process.

Guarantees: the engine is started again after a death, as a run does, and every death is counted. Both processes end with the
`Server`'s block, and with this process however it ends.
"""

from __future__ import annotations

import os
import resource
import secrets
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import httpx
import psutil

from groundwork.network import find_available_port
from groundwork.process import ChildProcess, spawn
from lab.testkit.waiting import wait_until
from openclaw.ledger.store import Ledger
from openclaw.ledger.views import TurnRecord

REPOSITORY = Path(__file__).resolve().parents[2]
CHAT = "/v1/chat/completions"
MODEL = "tiny-policy"
START_SECONDS = 240.0
ANSWER_SECONDS = 60.0
POLL_SECONDS = 0.05
OWNERS = ("alice", "bob")
DESCRIPTORS = 8192
"""Open files of the server and of the attacker, where the system allows so many."""
CONTEXT_LENGTH = 131072
"""Long enough for the patterns of 100 kB, which nothing would scan otherwise."""
MAX_REQUESTS = 64
SETTINGS = {
    "CONTEXT_LENGTH": str(CONTEXT_LENGTH),
    "OPENCLAW_MAX_TOKENS": "16",
    "PRM_MAX_NEW_TOKENS": "64",
    "OPENCLAW_MAX_REQUESTS": str(MAX_REQUESTS),
    "OPENCLAW_ENGINE_WAIT_SECONDS": "20",
    "OPENCLAW_GRACE_SECONDS": "1",
    "OPENCLAW_SERVE_ROLLOUTS": "1",
    "SERVED_MODEL_NAME": MODEL,
}


class Engine(Protocol):
    """An engine process that comes back after a death."""

    url: str

    def deaths(self) -> int:
        """Return how often it died."""
        ...

    def stop(self) -> None:
        """End it for good."""
        ...


def environment(**variables: str) -> dict[str, str]:
    """Return the environment of a process of ours."""
    paths = [str(REPOSITORY / name) for name in (".", "slime", "openclaw-combine", "openclaw-test")]
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR") if name in os.environ}
    offline = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "NO_PROXY": "*"}
    return {**kept, **offline, "PYTHONPATH": os.pathsep.join(paths), **variables}


def allow_many_files() -> None:
    """Raise this process's limit of open files, which its children inherit."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS if most == resource.RLIM_INFINITY else min(DESCRIPTORS, most)
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))


class StandInEngine:
    """`tests.security.engine` as a process; a thread starts it again when it died."""

    def __init__(self, tokenizer: Path, log: Path) -> None:
        self._port = find_available_port()
        self._command = [sys.executable, "-m", "tests.security.engine", "--tokenizer", str(tokenizer)]
        self._log = log
        self._deaths = 0
        self._stopping = threading.Event()
        self.url = f"http://127.0.0.1:{self._port}"
        self._process = self._start()
        self._thread = threading.Thread(target=self._keep_alive, name="engine keeper", daemon=True)
        self._thread.start()

    def _start(self) -> ChildProcess:
        return spawn([*self._command, "--port", str(self._port)], env=environment(), log_path=self._log, name="engine")

    def _keep_alive(self) -> None:
        while not self._stopping.wait(POLL_SECONDS):
            if not self._process.alive():
                self._deaths += 1
                self._process.kill()
                self._process = self._start()

    def deaths(self) -> int:
        """Return how often it died."""
        return self._deaths + (not self._process.alive())

    def seen(self) -> dict[str, Any]:
        """Return what reached the engine since it started."""
        return httpx.get(f"{self.url}/seen", trust_env=False, timeout=ANSWER_SECONDS).json()

    def stop(self) -> None:
        """End it for good."""
        self._stopping.set()
        self._thread.join()
        self._process.stop(2.0)


@dataclass
class Server:
    """A running server; ``keys`` holds the key of each owner, and is empty for a server without keys."""

    url: str
    folder: Path
    engine: Any
    process: ChildProcess
    keys: Mapping[str, str] = field(default_factory=dict)

    @property
    def port(self) -> int:
        """Port of the gateway."""
        return int(self.url.rpartition(":")[2])

    @property
    def ledger_path(self) -> Path:
        """File of the ledger."""
        return self.folder / "run" / "ledger.sqlite"

    @property
    def log(self) -> str:
        """What the runtime logged."""
        path = self.process.log_path
        return path.read_text(errors="replace") if path and path.exists() else ""

    def headers(self, owner: str | None = None) -> dict[str, str]:
        """Return the headers of a client of ``owner``."""
        return {"authorization": f"Bearer {self.keys[owner]}"} if owner in self.keys else {}

    def client(self, owner: str | None = None, seconds: float = ANSWER_SECONDS) -> httpx.Client:
        """Return a client of ``owner``, who has no key on a server without keys."""
        return httpx.Client(base_url=self.url, headers=self.headers(owner), trust_env=False, timeout=seconds)

    def chat(self, owner: str, text: str = "hello", /, **body: Any) -> httpx.Response:
        """Ask one question as ``owner``; ``body`` replaces fields of the request."""
        session = body.pop("session", None)
        headers = {"x-session-id": session} if session else {}
        with self.client(owner) as client:
            return client.post(CHAT, json={"messages": [{"role": "user", "content": text}], **body}, headers=headers)

    def healthz(self, seconds: float = ANSWER_SECONDS) -> float:
        """Return the seconds that ``GET /healthz`` took."""
        began = time.monotonic()
        with self.client(seconds=seconds) as client:
            assert client.get("/healthz").status_code == 200
        return time.monotonic() - began

    def records(self) -> list[TurnRecord]:
        """Return all turns in the ledger."""
        ledger = Ledger(self.ledger_path)
        try:
            return list(ledger.views.turn_records())
        finally:
            ledger.close()

    def in_flight(self) -> float:
        """Return how many chat completions are under way."""
        with self.client("bob") as client:
            lines = client.get("/metrics").text.splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith("openclaw_requests_in_flight "))

    def stored(self, words: str) -> bool:
        """Return whether the ledger's files or the log contain some words."""
        files = [*self.ledger_path.parent.glob("ledger.sqlite*"), self.process.log_path]
        return any(words.encode() in path.read_bytes() for path in files if path is not None and path.exists())

    def processes(self) -> list[psutil.Process]:
        """Return the runtime process and its workers."""
        runtime = psutil.Process(self.process.pid)
        return [runtime, *runtime.children(recursive=True)]

    def memory(self) -> int:
        """Return the resident bytes of the runtime and its workers."""
        return sum(_measured(process, lambda each: each.memory_info().rss) for process in self.processes())

    def descriptors(self) -> int:
        """Return the open files of the runtime and its workers."""
        return sum(_measured(process, lambda each: each.num_fds()) for process in self.processes())


def _measured(process: psutil.Process, measure: Any) -> int:
    try:
        return measure(process)
    except psutil.NoSuchProcess:
        return 0


def save_tokenizer(folder: Path) -> Path:
    """Write the tests' tokenizer to ``folder`` and return it."""
    from lab.testkit.tiny_random import build_tokenizer

    build_tokenizer().save_pretrained(folder)
    return folder


@contextmanager
def running_server(
    folder: Path, *, keys: bool = True, engine: Any = None, tokenizer: Path | None = None, **settings: str
) -> Iterator[Server]:
    """Serve from ``folder`` until the block ends.

    Args:
        folder: for ledger, logs and keys.
        keys: whether `OWNERS` have keys; otherwise nobody needs one.
        engine: the engine, which the caller stops; None starts a stand-in.
        tokenizer: of that engine.
        settings: further environment variables of the runtime.
    """
    allow_many_files()
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = tokenizer or save_tokenizer(folder / "tokenizer")
    own = StandInEngine(tokenizer, folder / "engine.log") if engine is None else None
    engine = engine or own
    port = find_available_port()
    named = {owner: secrets.token_hex(24) for owner in OWNERS} if keys else {}
    variables = {
        **SETTINGS,
        "PORT": str(port),
        "OPENCLAW_POLICY_URL": engine.url,
        "OPENCLAW_TOKENIZER": str(tokenizer),
        "OPENCLAW_LEDGER": str(folder / "run" / "ledger.sqlite"),
        **settings,
    }
    if own is not None:
        variables |= {
            "OPENCLAW_JUDGE_URL": engine.url,
            "OPENCLAW_JUDGE_TOKENIZER": str(tokenizer),
            "OPENCLAW_METHOD": "openclaw_combine_method.Combine",
        }
    if keys:
        path = folder / "keys"
        path.touch(mode=0o600)
        path.write_text("".join(f"{name}:{key}\n" for name, key in named.items()))
        variables["OPENCLAW_API_KEYS_FILE"] = str(path)
    usual = os.umask(0o022)
    try:
        process = spawn(
            [sys.executable, "-m", "openclaw.runtime"],
            env=environment(**variables),
            log_path=folder / "run" / "runtime.log",
            name="runtime",
        )
    finally:
        os.umask(usual)
    server = Server(f"http://127.0.0.1:{port}", folder, engine, process, named)
    try:
        _wait_until_ready(server)
        yield server
    finally:
        process.stop(5.0)
        if own is not None:
            own.stop()


def _wait_until_ready(server: Server) -> None:
    """Wait for the first reply, which needs both processes."""

    def ready() -> bool:
        assert server.process.alive(), f"the runtime ended:\n{server.log[-3000:]}"
        try:
            return server.chat(OWNERS[1]).status_code == 200
        except httpx.TransportError:
            return False

    wait_until(ready, lambda: f"no reply within {START_SECONDS:g} s:\n{server.log[-3000:]}", START_SECONDS)
