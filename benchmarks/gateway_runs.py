"""Parts of `benchmarks.gateway`: the processes of a measurement, one run of load, and its figures.

Guarantees: stand-in engine, gateway and load client are separate processes that end with this one. Comparisons subtract
the time that a request spent in the engine. So neither the engine's pace nor the wait for its next step counts as
latency.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.load import TURNS, Result, Spec
from benchmarks.machine import REPOSITORY
from groundwork.process import ChildProcess, spawn
from openclaw.runtime.process import free_port

START_SECONDS = 90.0
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
TICKS = os.sysconf("SC_CLK_TCK")
SYSTEM = (
    "You help one person with everyday questions. Answer in plain words, keep it short, and say when you do not know. "
)
QUESTION = "What should I keep in mind when I plant tomatoes on a balcony that gets sun in the morning only? "
ANSWER = (
    "Tomatoes want five hours of sun, so choose a small early kind, water it evenly and turn the pot now and then. "
)


@dataclass(frozen=True)
class Workload:
    """A conversation: the longest reply's tokens, and the bodies of its turns for the gateway and for the engine."""

    reply: list[tuple[int, str]]
    chat: list[dict]
    engine: list[dict]

    @property
    def texts(self) -> list[str]:
        """The text of each token of the reply."""
        return [text for _, text in self.reply]


@dataclass(frozen=True)
class Run:
    """One run of load: requests joined with the engine's own records, in nanoseconds."""

    totals: list[float]
    firsts: list[float]
    overheads: list[float]
    first_overheads: list[float]
    health: list[float]
    seconds: float
    tokens_per_second: float
    cpu_us_per_token: float | None
    load_average: float


def build_workload(tokenizer, tokens: int, history: int = 0) -> Workload:
    """Return the conversation whose replies have up to ``tokens`` tokens, after ``history`` earlier exchanges."""
    ids = tokenizer.encode(ANSWER * (tokens // 8), add_special_tokens=False)[:tokens]
    reply = [(token, tokenizer.decode([token])) for token in ids]
    answer = {"role": "assistant", "content": tokenizer.decode(ids)}
    messages = [{"role": "system", "content": SYSTEM * 4}]
    for number in range(history):
        messages += [{"role": "user", "content": f"{number}: {QUESTION * 4}"}, answer]
    chat, engine, first = [], [], len(messages)
    for turn in range(TURNS):
        question = {"role": "user", "content": f"{QUESTION} ({turn})"}
        messages.append(question)
        unsaid = [
            {"role": "assistant", "content": None} if n > first and m is answer else m for n, m in enumerate(messages)
        ]
        chat.append({"model": "policy", "messages": unsaid})
        prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
        sampling = {"temperature": 0.6, "max_new_tokens": tokens}
        engine.append({"input_ids": prompt, "sampling_params": sampling, "return_logprob": True})
        messages.append(answer)
    return Workload(reply, chat, engine)


def get(port: int, path: str, *, method: str = "GET", timeout: float = 30.0):
    """Return the JSON that a server of this machine answers with."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", method=method)
    with DIRECT.open(request, timeout=timeout) as response:
        return json.loads(response.read())


class Server:
    """A server process of the measurement. Owns the child."""

    def __init__(self, command: list[str], port: int, ready: str, log: Path, environment: dict[str, str]) -> None:
        """Start ``command`` and wait until it answers ``GET ready``.

        Raises:
            RuntimeError: with the end of its log, when it does not.
        """
        self.port = port
        paths = os.pathsep.join([str(REPOSITORY), str(REPOSITORY / "slime")])
        self.child: ChildProcess = spawn(
            command, env={**os.environ, "PYTHONPATH": paths, **environment}, log_path=log, name=command[2]
        )
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                get(port, ready, timeout=1.0)
                return
            except OSError as error:
                if not self.child.alive() or time.monotonic() > deadline:
                    tail = self.child.log_tail()
                    self.child.kill()
                    raise RuntimeError(f"{command} does not answer: {error}\n{tail}") from error
                time.sleep(0.05)

    def cpu_seconds(self) -> float:
        """Return the processor time that the process has used."""
        fields = Path(f"/proc/{self.child.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def memory_mib(self) -> float:
        """Return the process's resident memory."""
        pages = int(Path(f"/proc/{self.child.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 2**20

    def stop(self) -> None:
        """End the process."""
        self.child.stop(timeout=5.0)


def start_engine(workload: Workload, step_ms: float, folder: Path) -> Server:
    """Start a stand-in engine."""
    port = free_port("127.0.0.1", 0)
    command = [sys.executable, "-m", "benchmarks.standin_engine", "--port", str(port), "--step-ms", str(step_ms)]
    return Server(
        [*command, "--reply", json.dumps(workload.reply)], port, "/v1/models", folder / f"engine-{port}.log", {}
    )


def start_gateway(engine: Server, tokenizer: Path, folder: Path, **variables: str) -> Server:
    """Start the runtime as a run does, in front of ``engine``, with its ledger in ``folder``."""
    port = free_port("127.0.0.1", 0)
    environment = {
        "PORT": str(port),
        "OPENCLAW_POLICY_URL": f"http://127.0.0.1:{engine.port}",
        "OPENCLAW_TOKENIZER": str(tokenizer),
        "OPENCLAW_LEDGER": str(folder / f"ledger-{port}.sqlite"),
        "ROLLOUT_LOG_LEVEL": "WARNING",
        **variables,
    }
    command = [sys.executable, "-m", "openclaw.runtime"]
    return Server(command, port, "/healthz", folder / f"gateway-{port}.log", environment)


def send(spec: Spec) -> Result:
    """Run the load client; its result comes in a file, since through a pipe it was sometimes cut.

    Raises:
        RuntimeError: when a request failed; a figure with failures in it would mean nothing.
    """
    with tempfile.TemporaryFile() as output:
        subprocess.run(
            [sys.executable, "-m", "benchmarks.load"],
            input=json.dumps(asdict(spec)).encode(),
            stdout=output,
            cwd=REPOSITORY,
            check=True,
        )
        output.seek(0)
        result = Result(**json.loads(output.read()))
    if result.errors or not result.requests:
        raise RuntimeError(f"{len(result.errors)} of {len(result.requests)} requests failed: {result.errors[:3]}")
    return result


def measure(spec: Spec, engine: Server, server: Server | None = None) -> Run:
    """Put load on the gateway, a peer or the engine itself, and join it with the engine's records.

    Args:
        spec: the load.
        engine: behind it.
        server: whose processor time is counted; None: nobody's.
    """
    get(engine.port, "/records")
    load_average, before = os.getloadavg()[0], server.cpu_seconds() if server else 0.0
    result = send(spec)
    used = server.cpu_seconds() - before if server else 0.0
    records = {rid: (arrival, first, end) for rid, arrival, first, end in get(engine.port, "/records")}
    overheads, first_overheads = [], []
    for name, start, first, end, _ in result.requests:
        if record := records.get(name):
            overheads.append((end - start) - (record[2] - record[0]))
            first_overheads.append((first - start) - (record[1] - record[0]))
    starts, ends = [item[1] for item in result.requests], [item[3] for item in result.requests]
    generated, seconds = sum(item[4] for item in result.requests), (max(ends) - min(starts)) / 1e9
    return Run(
        totals=[float(item[3] - item[1]) for item in result.requests],
        firsts=[float(item[2] - item[1]) for item in result.requests],
        overheads=overheads,
        first_overheads=first_overheads,
        health=result.health,
        seconds=seconds,
        tokens_per_second=generated / seconds,
        cpu_us_per_token=used / generated * 1e6 if server else None,
        load_average=load_average,
    )


def sync_milliseconds(folder: Path, times: int = 100) -> dict[str, float]:
    """Return how long the disk under ``folder`` takes to make 8 KiB durable; a reply waits for that once."""
    taken = []
    with (folder / "sync").open("wb") as file:
        for _ in range(times):
            file.write(bytes(8192))
            file.flush()
            started = time.perf_counter_ns()
            os.fdatasync(file.fileno())
            taken.append(float(time.perf_counter_ns() - started))
    return milliseconds(taken)


def quantile(values: Sequence[float], share: float) -> float:
    """Return the value below which ``share`` of ``values`` lie (nearest rank)."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def milliseconds(nanoseconds: Sequence[float]) -> dict[str, float]:
    """Return p50 and p99 in milliseconds."""
    return {name: round(quantile(nanoseconds, share) / 1e6, 3) for name, share in (("p50", 0.5), ("p99", 0.99))}
