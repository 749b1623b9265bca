"""What the gateway costs: the same load through it and straight at the engine, side by side.

`python -m benchmarks.gateway [--quick] --json FILE [--connections 1,16,64,190] [--peer litellm --peer-python PATH]`. A
stand-in engine answers with a token per decode step, the gateway is the real runtime with its ledger on, the load client
is a third process. Per number of connections: time to first token (direct, through the gateway, and buffered), added
latency, throughput ratio, `/healthz` under load. With `--lessons N` only this is measured: what N lessons of a person add to
the time to the first token, rounds with and without them alternating. With `--costs` only this: the processor time of a request and
of a token, apart, from replies of two lengths. With `--dialects` only this: what each dialect adds to the first token. With
`--workers N` only this: what N workers carry beside one process alone. Without these options: the ceiling without a pace, stalls
as long as a weight update's, and memory per session held. Exit status 1 when something fails; figures are recorded, not judged.

Other gateways are measured in the same run when they are installed. For LiteLLM: `python -m venv DIR && DIR/bin/python -m pip
install "litellm[proxy]"`, then `--peer litellm --peer-python DIR/bin/python`.

Guarantees: stand-in engine, gateway and load client are separate processes that end with this one. Comparisons subtract
the time that a request spent in the engine. So neither the engine's pace nor the wait for its next step counts as
latency.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Event, Thread
from typing import Any

import psutil

from benchmarks.load import TURNS, Result, Spec
from benchmarks.machine import REPOSITORY, describe_machine
from groundwork.command_line import output_file
from groundwork.process import ChildProcess, spawn
from lab.testkit.tiny_random import build_tokenizer
from openclaw.gateway.dialects import DIALECTS, MESSAGES, RESPONSES, TEXT
from openclaw.runtime.process import free_port

START_SECONDS = 240.0
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
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


def get(port: int, path: str, *, method: str = "GET", body: object = None, timeout: float = 30.0):
    """Return the JSON that a server of this machine answers with."""
    data = None if body is None else json.dumps(body).encode()
    headers = {} if body is None else {"Content-Type": "application/json"}
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data, headers, method=method)
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
        """Return the processor time that the process and those below it have used."""
        process = psutil.Process(self.child.pid)
        times = [each.cpu_times() for each in (process, *process.children(recursive=True))]
        return sum(each.user + each.system for each in times)

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


def start_litellm(python: str, engine: Server, folder: Path) -> Server:
    """Start LiteLLM's proxy before the engine's OpenAI route, one worker, nothing logged.

    Raises:
        RuntimeError: when it is not installed or does not start.
    """
    port = free_port("127.0.0.1", 0)
    backend = {"model": "openai/policy", "api_base": f"http://127.0.0.1:{engine.port}/v1", "api_key": "none"}
    config = {"model_list": [{"model_name": "policy", "litellm_params": backend}]}
    (folder / "litellm.yaml").write_text(json.dumps(config))  # JSON is YAML
    program = Path(python).parent / "litellm"
    if not program.exists():
        raise RuntimeError(f"{program} does not exist; install litellm[proxy] there, or leave --peer out")
    command = [str(program), "--config", str(folder / "litellm.yaml"), "--host", "127.0.0.1", "--port", str(port)]
    environment = {
        "PYTHONPATH": "",
        "LITELLM_LOG": "ERROR",
        "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true",  # on loopback, for a measurement; ours has no key either
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "PATH": os.environ["PATH"],
    }
    return Server([*command, "--num_workers", "1"], port, "/health/liveliness", folder / "litellm.log", environment)


STEP_MS = 10.0
TOKENS = 64
CHAT = "/v1/chat/completions"
STALL_MS = 50.0
STALL_EVERY_SECONDS = 0.5
IDLE_SECONDS = 1.0


def pooled(runs: list[Run]) -> dict:
    """Return the figures of several runs of the same load: quantiles over all requests, medians over runs."""
    result = {
        "requests": sum(len(run.totals) for run in runs),
        "first_token_ms": milliseconds([value for run in runs for value in run.firsts]),
        "total_ms": milliseconds([value for run in runs for value in run.totals]),
        "tokens_per_second": round(statistics.median(run.tokens_per_second for run in runs), 1),
        "load_average": round(max(run.load_average for run in runs), 2),
    }
    if health := [value * 1e9 for run in runs for value in run.health]:
        result["healthz_ms"] = milliseconds(health)
    if cpu := [run.cpu_us_per_token for run in runs if run.cpu_us_per_token is not None]:
        result["cpu_us_per_token"] = round(statistics.median(cpu), 1)
    return result


def added(runs: list[Run], direct: list[Run]) -> dict:
    """Return what a way to the engine adds to the median of the direct way, engine time taken off both."""
    base = statistics.median(value for run in direct for value in run.overheads)
    base_first = statistics.median(value for run in direct for value in run.first_overheads)
    ratios = [ours.tokens_per_second / theirs.tokens_per_second for ours, theirs in zip(runs, direct, strict=True)]
    return {
        "added_latency_ms": milliseconds([value - base for run in runs for value in run.overheads]),
        "added_first_token_ms": milliseconds([value - base_first for run in runs for value in run.first_overheads]),
        "throughput_ratio": round(statistics.median(ratios), 4),
        "throughput_ratio_min": round(min(ratios), 4),
    }


def compare(
    workload: Workload, engine: Server, gateway: Server, peer: Server | None, load: tuple[int, float, int], folder: Path
) -> dict:
    """Measure one number of connections: direct, through the gateway streamed and buffered, through the peer.

    Args:
        workload: the conversation.
        engine: the stand-in.
        gateway: before it.
        peer: another gateway before the same engine, or None.
        load: connections, seconds a run, rounds.
        folder: where the ledger lies, to say how fast its disk was meanwhile.
    """
    connections, seconds, rounds = load
    ways: dict[str, tuple[Server | None, Spec]] = {
        "direct": (None, Spec(engine.port, "/generate", connections, seconds, workload.engine, workload.texts)),
        "gateway": (
            gateway,
            Spec(gateway.port, CHAT, connections, seconds, workload.chat, workload.texts, health=True),
        ),
        "buffered": (
            gateway,
            Spec(gateway.port, CHAT, connections, seconds, workload.chat, workload.texts, stream=False),
        ),
    }
    if peer:
        ways["peer"] = (peer, Spec(peer.port, CHAT, connections, seconds, workload.chat, workload.texts))
        ways["peer_direct"] = (None, Spec(engine.port, CHAT, connections, seconds, workload.chat, workload.texts))
    runs: dict[str, list[Run]] = {name: [] for name in ways}
    sync = sync_milliseconds(folder)
    for _ in range(rounds):
        for name, (server, spec) in ways.items():
            runs[name].append(measure(spec, engine, server))
            time.sleep(IDLE_SECONDS)
    figures: dict = {"connections": connections, **{name: pooled(runs[name]) for name in ways}, "disk_sync_ms": sync}
    figures["gateway"] |= added(runs["gateway"], runs["direct"])
    if peer:
        # A proxy may rename the replies, so its requests cannot be joined with the engine's records.
        base = figures["peer_direct"]
        figures["peer"]["added_total_p50_ms"] = round(figures["peer"]["total_ms"]["p50"] - base["total_ms"]["p50"], 3)
        ratios = [
            a.tokens_per_second / b.tokens_per_second for a, b in zip(runs["peer"], runs["peer_direct"], strict=True)
        ]
        figures["peer"]["throughput_ratio"] = round(statistics.median(ratios), 4)
    return figures


@contextmanager
def stalls(engine: Server) -> Iterator[list[float]]:
    """Stall the engine again and again while the body runs; gives the pauses in milliseconds."""
    over, pauses = Event(), []

    def work() -> None:
        while not over.wait(STALL_EVERY_SECONDS):
            pauses.append(get(engine.port, f"/stall?ms={STALL_MS}", method="POST")["ms"])

    thread = Thread(target=work)
    thread.start()
    try:
        yield pauses
    finally:
        over.set()
        thread.join()


def stall_figures(workload: Workload, engine: Server, gateway: Server, load: tuple[int, float, int]) -> dict:
    """Measure what requests wait beyond the engine's own pauses."""
    connections, seconds, rounds = load
    runs, direct, pauses = [], [], []
    for _ in range(rounds):
        with stalls(engine) as made:
            direct.append(
                measure(Spec(engine.port, "/generate", connections, seconds, workload.engine, workload.texts), engine)
            )
            runs.append(
                measure(Spec(gateway.port, CHAT, connections, seconds, workload.chat, workload.texts), engine, gateway)
            )
        pauses += made
    beyond = [value for run in runs for value in run.overheads]
    return {
        "connections": connections,
        "pauses": len(pauses),
        "pause_ms_median": round(statistics.median(pauses), 2),
        "beyond_the_pause_max_ms": round(max(beyond) / 1e6, 3),
        **added(runs, direct),
    }


def session_figures(workload: Workload, gateway: Server, counts: list[int]) -> list[dict]:
    """Hold more and more sessions; return the memory after each count."""
    rows = [{"sessions": get(gateway.port, "/healthz")["sessions"], "rss_mib": round(gateway.memory_mib(), 1)}]
    for count in counts:
        send(
            Spec(gateway.port, CHAT, 16, 0.0, workload.chat[:1], workload.texts, sessions=count - rows[-1]["sessions"])
        )
        rows.append({"sessions": get(gateway.port, "/healthz")["sessions"], "rss_mib": round(gateway.memory_mib(), 1)})
    return rows


class Bench:
    """What every part has: its sizes, the tokenizer, and the servers, which end with ``stack``."""

    def __init__(self, arguments: argparse.Namespace, folder: Path, stack: ExitStack) -> None:
        self.arguments, self.folder, self._stack = arguments, folder, stack
        self.seconds, self.rounds = (3.0, 1) if arguments.quick else (arguments.seconds, arguments.rounds)
        self.tokenizer = build_tokenizer()
        self.tokenizer.save_pretrained(folder / "tokenizer")

    def connections(self, *quick: int) -> list[int]:
        """Return the numbers of connections that are asked for, or those of a quick run."""
        return list(quick) if self.arguments.quick else [int(word) for word in self.arguments.connections.split(",")]

    def figures(self, **more: Any) -> dict[str, Any]:
        """Return the head of a part's figures, followed by ``more``."""
        return {"step_ms": STEP_MS, "seconds": self.seconds, "rounds": self.rounds, **more}

    def keep(self, server: Server) -> Server:
        """Return a server that ends with this measurement."""
        self._stack.callback(server.stop)
        return server

    def engine(self, workload: Workload, step_ms: float = STEP_MS) -> Server:
        """Start a stand-in engine."""
        return self.keep(start_engine(workload, step_ms, self.folder))

    def gateway(self, engine: Server, **variables: str) -> Server:
        """Start a gateway before ``engine``."""
        return self.keep(start_gateway(engine, self.folder / "tokenizer", self.folder, **variables))

    def warm(self, engine: Server, gateway: Server, workload: Workload, path: str = CHAT) -> None:
        """Let a gateway answer its first requests."""
        bodies = in_dialects(workload.chat)[path]
        measure(Spec(gateway.port, path, 4, 1.0, bodies, workload.texts), engine)


LESSONS = (
    "Keep answers short.",
    "Answer in plain words.",
    "Use metric units.",
    "Say first what matters most.",
    "Leave out greetings.",
    "Give one example for each idea.",
)


def lesson_figures(
    workload: Workload, engine: Server, gateway: Server, count: int, load: tuple[int, float, int]
) -> dict:
    """Measure what a person's lessons add to the first token; the rounds with and without them alternate.

    Args:
        workload: the conversation.
        engine: the stand-in.
        gateway: before it.
        count: of lessons, which are added here.
        load: connections, seconds a run, rounds.
    """
    connections, seconds, rounds = load
    for text in LESSONS[:count]:
        get(gateway.port, "/v1/lessons", method="POST", body={"text": text})
    spec = Spec(gateway.port, CHAT, connections, seconds, workload.chat, workload.texts)
    runs: dict[str, list[Run]] = {"off": [], "auto": []}
    for _ in range(rounds):
        for mode, taken in runs.items():
            get(gateway.port, "/v1/me", method="PUT", body={"lessons": mode})
            taken.append(measure(spec, engine, gateway))
            time.sleep(IDLE_SECONDS)
    cpu = {mode: statistics.median(run.cpu_us_per_token or 0.0 for run in taken) for mode, taken in runs.items()}
    firsts = {mode: [value for run in taken for value in run.first_overheads] for mode, taken in runs.items()}
    return {
        "connections": connections,
        "lessons": count,
        "prompt_tokens": len(workload.engine[0]["input_ids"]),
        "requests": {mode: len(values) for mode, values in firsts.items()},
        "first_token_overhead_ms": {mode: milliseconds(values) for mode, values in firsts.items()},
        "cpu_ms_per_request": {mode: round(value * len(workload.reply) / 1e3, 3) for mode, value in cpu.items()},
        "added_first_token_p50_ms": round((quantile(firsts["auto"], 0.5) - quantile(firsts["off"], 0.5)) / 1e6, 3),
    }


def run_lessons(bench: Bench) -> dict:
    """Measure lessons in front of short and long conversations."""
    figures = bench.figures(lessons=[])
    for history in (0, bench.arguments.history):
        workload = build_workload(bench.tokenizer, TOKENS, history=history)
        engine = bench.engine(workload)
        gateway = bench.gateway(engine)
        bench.warm(engine, gateway, workload)
        for connections in (1, 16):
            found = lesson_figures(
                workload, engine, gateway, bench.arguments.lessons, (connections, bench.seconds, bench.rounds)
            )
            figures["lessons"].append(found)
            print(json.dumps(found), flush=True)
    return figures


def in_dialects(chat: Sequence[dict]) -> dict[str, list[dict]]:
    """Return a conversation's requests in each dialect, by its path; a text completion has the last question alone."""
    bodies: dict[str, list[dict]] = {dialect.path: [] for dialect in DIALECTS}
    for body in chat:
        model, [system, *messages] = body["model"], body["messages"]
        bodies[CHAT].append(body)
        bodies[MESSAGES.path].append({"model": model, "system": system["content"], "messages": messages})
        bodies[RESPONSES.path].append({"model": model, "instructions": system["content"], "input": messages})
        bodies[TEXT.path].append({"model": model, "prompt": messages[-1]["content"]})
    return bodies


def run_dialects(bench: Bench) -> dict:
    """Measure what each dialect adds to the first token; rounds of all dialects and of the direct way alternate."""
    workload = build_workload(bench.tokenizer, TOKENS)
    engine = bench.engine(workload)
    gateway = bench.gateway(engine)
    bodies = in_dialects(workload.chat)
    figures = bench.figures(dialects=[])
    for path in bodies:
        bench.warm(engine, gateway, workload, path)
    for count in bench.connections(16):
        direct, runs = list[Run](), {path: list[Run]() for path in bodies}
        for _ in range(bench.rounds):
            direct.append(
                measure(Spec(engine.port, "/generate", count, bench.seconds, workload.engine, workload.texts), engine)
            )
            for path, talk in bodies.items():
                runs[path].append(
                    measure(Spec(gateway.port, path, count, bench.seconds, talk, workload.texts), engine, gateway)
                )
                time.sleep(IDLE_SECONDS)
        for path, taken in runs.items():
            figures["dialects"].append({"connections": count, "path": path, **pooled(taken), **added(taken, direct)})
            print(json.dumps(figures["dialects"][-1]), flush=True)
    return figures


LONG_REPLY_TOKENS = 512


def cost_figures(runs: dict[int, list[Run]]) -> dict:
    """Return the processor time of a request and of a streamed token, apart.

    Args:
        runs: by the most tokens of a reply, two of them; a run's time is a part for each request and a part for each token.
    """
    points = []
    for taken in runs.values():
        requests = [len(run.totals) for run in taken]
        tokens = [run.tokens_per_second * run.seconds for run in taken]
        length = sum(tokens) / sum(requests)
        points.append((length, statistics.median(run.cpu_us_per_token or 0.0 for run in taken) * length))
    (short, brief), (long, whole) = points
    token = (whole - brief) / (long - short)
    return {
        "tokens_per_reply": [round(short, 1), round(long, 1)],
        "cpu_us_per_token": [round(brief / short, 1), round(whole / long, 1)],
        "of_a_token_us": round(token, 1),
        "of_a_request_ms": round((brief - token * short) / 1e3, 3),
    }


def run_costs(bench: Bench) -> dict:
    """Measure what a request and a token cost, rounds with short and with long replies alternating."""
    figures = bench.figures(costs=[])
    loads = {}
    for tokens in (TOKENS, LONG_REPLY_TOKENS):
        workload = build_workload(bench.tokenizer, tokens)
        engine = bench.engine(workload)
        gateway = bench.gateway(engine)
        loads[tokens] = workload, engine, gateway
        bench.warm(engine, gateway, workload)
    for count in bench.connections(16):
        runs: dict[int, list[Run]] = {tokens: [] for tokens in loads}
        for _ in range(bench.rounds):
            for tokens, (workload, engine, gateway) in loads.items():
                spec = Spec(gateway.port, CHAT, count, bench.seconds, workload.chat, workload.texts)
                runs[tokens].append(measure(spec, engine, gateway))
                time.sleep(IDLE_SECONDS)
        figures["costs"].append({"connections": count, **cost_figures(runs)})
        print(json.dumps(figures["costs"][-1]), flush=True)
    return figures


def run_workers(bench: Bench) -> dict:
    """Measure one process and several workers before the same engine; rounds of both and of the engine itself alternate."""
    workload = build_workload(bench.tokenizer, TOKENS)
    engine = bench.engine(workload)
    gateways = {}
    for workers in (1, bench.arguments.workers):
        gateways[workers] = bench.gateway(engine, GATEWAY_WORKERS=str(workers))
        while get(gateways[workers].port, "/healthz").get("workers", 1) < workers:
            time.sleep(0.05)
        bench.warm(engine, gateways[workers], workload)
    figures = bench.figures(workers=[])
    for count in bench.connections(16):
        direct: list[Run] = []
        runs: dict[int, list[Run]] = {workers: [] for workers in gateways}
        for _ in range(bench.rounds):
            straight = Spec(engine.port, "/generate", count, bench.seconds, workload.engine, workload.texts)
            direct.append(measure(straight, engine))
            for workers, gateway in gateways.items():
                spec = Spec(gateway.port, CHAT, count, bench.seconds, workload.chat, workload.texts, health=True)
                runs[workers].append(measure(spec, engine, gateway))
                time.sleep(IDLE_SECONDS)
        rows = {workers: pooled(taken) | added(taken, direct) for workers, taken in runs.items()}
        figures["workers"].append({"connections": count, "direct": pooled(direct), **rows})
        print(json.dumps(figures["workers"][-1]), flush=True)
    return figures


def run_all(bench: Bench) -> dict:
    """Take every measurement and return the figures."""
    arguments, seconds, rounds, folder = bench.arguments, bench.seconds, bench.rounds, bench.folder
    workload, brief = build_workload(bench.tokenizer, TOKENS), build_workload(bench.tokenizer, 8)
    engine = bench.engine(workload)
    gateway = bench.gateway(engine)
    peer = bench.keep(start_litellm(arguments.peer_python, engine, folder)) if arguments.peer else None
    bench.warm(engine, gateway, workload)

    figures = bench.figures(reply_tokens=TOKENS, paced=[])
    for count in bench.connections(1, 16):
        figures["paced"].append(compare(workload, engine, gateway, peer, (count, seconds, rounds), folder))
        print(json.dumps(figures["paced"][-1]), flush=True)
    figures["stalls"] = stall_figures(workload, engine, gateway, (16, seconds, rounds))
    print(json.dumps({"stalls": figures["stalls"]}), flush=True)

    long = build_workload(bench.tokenizer, TOKENS, history=arguments.history)
    figures["long_history"] = compare(long, engine, gateway, None, (16, seconds, rounds), folder)
    figures["long_history"]["prompt_tokens"] = len(long.engine[0]["input_ids"])
    print(json.dumps({"long_history": figures["long_history"]}), flush=True)

    fast = bench.engine(workload, 0.0)
    ceiling = bench.gateway(fast)
    figures["unpaced"] = compare(workload, fast, ceiling, None, (16, seconds, rounds), folder)
    print(json.dumps({"unpaced": figures["unpaced"]}), flush=True)

    small = bench.engine(brief, 0.0)
    holder = bench.gateway(small)
    figures["sessions"] = session_figures(brief, holder, [200] if arguments.quick else [1000, 5000])
    print(json.dumps({"sessions": figures["sessions"]}), flush=True)
    return figures


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gateway", description=__doc__)
    parser.add_argument("--connections", default="1,16,64,190", help="comma-separated (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=8.0, help="of each run (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each kind, alternating (default: %(default)s)")
    parser.add_argument(
        "--history", type=int, default=40, help="exchanges before a long conversation (default: %(default)s)"
    )
    parts = parser.add_mutually_exclusive_group()
    parts.add_argument(
        "--lessons",
        type=int,
        choices=range(1, len(LESSONS) + 1),
        help="measure only what so many lessons of a person add to the first token",
    )
    parts.add_argument("--workers", type=int, help="measure only what so many workers carry beside one process alone")
    parts.add_argument(
        "--costs", action="store_true", help="measure only the processor time of a request and of a token, apart"
    )
    parts.add_argument("--dialects", action="store_true", help="measure only what each dialect adds to the first token")
    parser.add_argument("--peer", choices=("litellm",), default=None, help="another gateway to measure in the same run")
    parser.add_argument(
        "--peer-python", default=sys.executable, help="interpreter that has the peer (default: this one)"
    )
    parser.add_argument(
        "--quick", action="store_true", help="1 and 16 connections, one short round: checks that it runs"
    )
    parser.add_argument("--json", required=True, type=output_file, help="file for the figures")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="gateway-") as folder, ExitStack() as stack:
        asked = {
            run_lessons: arguments.lessons,
            run_costs: arguments.costs,
            run_dialects: arguments.dialects,
            run_workers: arguments.workers,
        }
        work = next((part for part, wanted in asked.items() if wanted), run_all)
        figures = work(Bench(arguments, Path(folder), stack))
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    arguments.json.write_text(json.dumps({"machine": describe_machine(), **figures}, indent=1) + "\n")


if __name__ == "__main__":
    main()
