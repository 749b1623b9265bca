"""Build the CPU image and run compose.yaml without Docker, in a clean root: ``python -m tests.images``.

It needs root on a machine with debootstrap and bubblewrap, ten minutes and 8 GB. It prints one line per step and exits with 1
at the first that fails. What differs from Docker:

* The base is a minimal Debian of the image's release with Debian's own Python; the image has one of its own in /usr/local.
* Prometheus is Debian's, which is older than the one of compose.yaml. Grafana is not run: Prometheus answers the board's queries.
* Layers, the network and limits of containers are not there; programs have this machine's network.
* pip takes this machine's indexes of packages, and nothing else of it.

The image for GPUs is not built: no registry of packages has its base.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx

from groundwork.network import find_available_port
from tests.images.files import (
    Services,
    health_of,
    left_out,
    plain,
    read_services,
    read_stages,
    sources,
    words_of,
)
from tests.images.root import Mounts, Root, debian, let_pip_find_packages, missing, removed, stop

REPOSITORY = Path(__file__).resolve().parents[2]
PYTHON = "python3.11 python3.11-venv"
KEY = "a-key-of-compose-0123456789"
START_SECONDS = 900.0
STEP_SECONDS = 240.0
COMPLAINT = "please no lists and no bold"
PERIOD = {"s": 1, "m": 60}
Check = Callable[[], Any]


class Steps:
    """Tells each step with its seconds."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    def tell(self, what: str) -> None:
        """Say that a step is done."""
        now = time.monotonic()
        print(f"{now - self._began:7.1f} s  {what}", flush=True)
        self._began = now


def until(check: Check, seconds: float, what: str, process: subprocess.Popen[str] | None = None) -> Any:
    """Return the first result of ``check`` that is true; exit if there is none in time, or the process ends before."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            if result := check():
                return result
        except (httpx.HTTPError, subprocess.CalledProcessError):
            pass
        if process is not None and process.poll() is not None:
            raise SystemExit(f"{what}: the service ended with {process.returncode}")
        time.sleep(1.0)
    raise SystemExit(f"{what}: not within {seconds:g} s")


def build(target: str, work: Path, steps: Steps) -> Root:
    """Return the root that the instructions of a target make."""
    stage = read_stages(REPOSITORY)[target]
    release = stage.base.rpartition("-")[2]
    log = work / f"{target}.log"
    log.unlink(missing_ok=True)
    root = debian(release, work).copied(work / target)
    let_pip_find_packages(root)
    root.run(["/bin/sh", "-c", f"apt-get update && apt-get install --yes --no-install-recommends {PYTHON}"], log=log)
    steps.tell(f"FROM {stage.base}: debian {release} with {PYTHON}")
    for name, value in stage.instructions:
        follow(root, name, value, log)
        steps.tell(f"{name} {value}"[:110])
    return root


def follow(root: Root, name: str, value: str, log: Path) -> None:
    """Follow an instruction of the Dockerfile."""
    if name == "RUN":
        try:
            root.run(["/bin/sh", "-c", value], log=log)
        except subprocess.CalledProcessError as error:
            raise SystemExit(f"RUN {value}\n{error.output[-3000:]}") from error
    elif name == "COPY":
        place = value.split()[-1]
        for source in sources(value):
            copy(source, root.inside(place))
        owner = next(word.removeprefix("--chown=") for word in value.split() if word.startswith("--chown="))
        Root(root.path, folder=root.folder).run(["chown", "--recursive", owner, place])
    elif name == "USER":
        root.user = value
    elif name == "WORKDIR":
        root.folder = value
    elif name == "ENV":
        variable, _, setting = value.partition("=")
        root.variables[variable] = setting
    elif name not in ("EXPOSE", "CMD"):
        raise SystemExit(f"{name}: tests.images does not know this instruction")


def copy(source: str, place: Path) -> None:
    """Copy what an image gets of a folder of the repository."""

    def ignored(folder: str, names: list[str]) -> list[str]:
        below = Path(folder).relative_to(REPOSITORY)
        return [name for name in names if left_out(REPOSITORY, str(below / name))]

    shutil.copytree(REPOSITORY / source, place, symlinks=True, ignore=ignored, dirs_exist_ok=True)


def mounts_of(service: Mapping[str, Any], root: Root, work: Path) -> Mounts:
    """Return the volumes of a service; a new one has what the image has at its place, a missing folder is made by root."""
    mounts = []
    for volume in service["volumes"]:
        source, place, *mode = volume.split(":")
        folder = REPOSITORY / source if mode else work / "volumes" / source
        if not folder.exists() and source.startswith("."):
            folder.mkdir(parents=True)
        elif not folder.exists():
            folder.parent.mkdir(parents=True, exist_ok=True)
            inside = root.path / place.lstrip("/")
            inside.mkdir(parents=True, exist_ok=True)
            subprocess.run(["cp", "--archive", str(inside), str(folder)], check=True)
        mounts.append((folder, place, not mode))
    return mounts


class Service:
    """A service of compose.yaml in its root."""

    def __init__(self, name: str, services: Services, root: Root, work: Path, given: Mapping[str, str]) -> None:
        self.name, self._service, self._root = name, services[name], root
        self._variables = {key: plain(str(value), given) for key, value in self._service["environment"].items()}
        self._words = words_of([*self._service.get("entrypoint", []), *self._service["command"]], given)
        self._mounts = mounts_of(self._service, root, work)
        self._log = work / f"{name}.log"
        self._health = health_of(self._service, given)
        self.process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Start it and wait until its health check says yes."""
        with self._log.open("a") as log:
            self.process = self._root.start(
                self._words, self._mounts, self._variables, stdout=log, stderr=log, stdin=subprocess.DEVNULL
            )
        until(self.healthy, START_SECONDS, f"{self.name} (see {self._log})", self.process)

    def healthy(self) -> bool:
        """Run the health check."""
        self._root.run(self._health, self._mounts, self._variables)
        return True

    def stop(self) -> float:
        """Stop it as Docker does, and return the seconds that it took."""
        assert self.process is not None
        period = str(self._service.get("stop_grace_period", "10s"))
        seconds = stop(self.process, int(period[:-1]) * PERIOD[period[-1]])
        self.process = None
        return seconds

    def kill(self) -> None:
        """End it at once."""
        if self.process is not None:
            self.process.kill()


def talk(server: httpx.Client, complaint: str) -> int:
    """Ask a question, complain about the reply, and return the version of the weights that gave it."""
    question = {"role": "user", "content": "Tom has 3 apples and gets 4 more. How many?"}
    reply = server.post("/v1/chat/completions", json={"model": "tiny", "messages": [question]})
    reply.raise_for_status()
    feedback = {"response_id": reply.json()["id"], "text": complaint}
    server.post("/v1/feedback", json=feedback).raise_for_status()
    return int(reply.headers["x-weight-version"])


def learn(server: httpx.Client) -> int:
    """Talk until the model has made a step, and return its version."""
    before = talk(server, COMPLAINT)

    def step() -> int:
        version = talk(server, COMPLAINT)
        return version if version > before else 0

    return until(step, STEP_SECONDS, "a step of the trainer")


def board_queries() -> list[str]:
    """Return the queries of the board."""
    board = json.loads((REPOSITORY / "monitoring/grafana/boards/openclaw_rl.json").read_text())
    notes = [each["expr"] for each in board["annotations"]["list"]]
    return [*notes, *(target["expr"] for panel in board["panels"] for target in panel["targets"])]


def check_board(metrics: str, address: str) -> tuple[int, int]:
    """Ask Prometheus every query of the board; return how many there are and how many have an answer by now."""
    known = {name.removesuffix("_created") for name in re.findall(r"^# TYPE (\w+) ", metrics, re.M)}
    known |= {f"{name}_bucket" for name in re.findall(r"^# TYPE (\w+) histogram", metrics, re.M)}
    answered, queries = 0, board_queries()
    for query in queries:
        names = set(re.findall(r"openclaw_\w+", query))
        if names - known:
            raise SystemExit(f"the gateway has no {', '.join(names - known)}: {query}")
        answer = httpx.get(f"{address}/api/v1/query", params={"query": query}, trust_env=False).json()
        if answer["status"] != "success":
            raise SystemExit(f"{query}: {answer['error']}")
        answered += bool(answer["data"]["result"])
    return len(queries), answered


def prometheus_root(work: Path, steps: Steps) -> Root:
    """Return a root with Debian's Prometheus, whose folder belongs to its user as in the image."""
    root = debian("bookworm", work).copied(work / "prometheus")
    install = "apt-get update && apt-get install --yes --no-install-recommends prometheus wget"
    root.run(
        ["/bin/sh", "-c", f"{install} && install --directory --owner nobody /prometheus && mkdir -p /etc/prometheus"]
    )
    root.user, root.folder = "nobody", "/prometheus"
    steps.tell("prom/prometheus: debian bookworm with its prometheus")
    return root


def compose(image: Root, work: Path, steps: Steps) -> None:
    """Run the services of compose.yaml with the profile cpu, except Grafana."""
    services = read_services(REPOSITORY)
    port = str(find_available_port())
    given = {"PORT": port, "SGLANG_API_KEY": KEY}
    removed(work / "volumes")
    run = Service("run-cpu", services, image, work, given)
    watcher = Service("prometheus", services, prometheus_root(work, steps), work, given)
    with ExitStack() as ends:
        ends.callback(run.kill)
        ends.callback(watcher.kill)
        server = ends.enter_context(
            httpx.Client(
                base_url=f"http://127.0.0.1:{port}",
                headers={"Authorization": f"Bearer {KEY}"},
                trust_env=False,
                timeout=120.0,
            )
        )
        run.start()
        steps.tell("run-cpu: up, and its health check says yes")
        watcher.start()
        steps.tell("prometheus: up, and its health check says yes")
        assert httpx.get(f"{server.base_url}/v1/models", trust_env=False).status_code == 401, "the key is not asked for"
        assert "<h1>" in server.get("/window/learning").text
        version = learn(server)
        steps.tell(f"a conversation with complaints: the model serves version {version}")
        address = "http://127.0.0.1:9090"

        def scraped() -> bool:
            targets = httpx.get(f"{address}/api/v1/targets", trust_env=False).json()["data"]["activeTargets"]
            return [target["health"] for target in targets] == ["up"]

        until(scraped, 30, "prometheus reads the gateway's metrics with the key")
        until(lambda: check_board(server.get("/metrics").text, address)[1] > 10, 30, "the board's queries have answers")
        asked, answered = check_board(server.get("/metrics").text, address)
        steps.tell(f"the board: {asked} queries are valid, ask for metrics that exist, and {answered} have an answer")
        seconds = run.stop()
        steps.tell(f"run-cpu: stopped in {seconds:.1f} s of {services['run-cpu']['stop_grace_period']}")
        run.start()
        after = talk(server, COMPLAINT)
        if after < version:
            raise SystemExit(f"the run began again: it serves version {after}, and served {version} before its stop")
        steps.tell(f"run-cpu: goes on with version {after}")
        run.stop()
        watcher.stop()
        steps.tell("all stopped")


def main() -> None:
    """Build and run."""
    parser = argparse.ArgumentParser(prog="python -m tests.images", description=(__doc__ or "").partition(":")[0])
    parser.add_argument("--work", type=Path, default=Path("/var/tmp/openclaw_images"), help="folder for roots and logs")
    parser.add_argument("--built", action="store_true", help="take the root that an earlier call built")
    options = parser.parse_args()
    if absent := missing():
        sys.exit(f"{' and '.join(absent)} are missing; type: apt-get install debootstrap bubblewrap")
    if os.geteuid() != 0:
        sys.exit("debootstrap needs root; type: sudo .venv/bin/python -m tests.images")
    options.work.mkdir(parents=True, exist_ok=True)
    steps = Steps()
    if options.built:
        image = Root(options.work / "cpu")
        for name, value in read_stages(REPOSITORY)["cpu"].instructions:
            if name in ("USER", "WORKDIR", "ENV"):
                follow(image, name, value, options.work / "cpu.log")
    else:
        image = build("cpu", options.work, steps)
    compose(image, options.work, steps)


if __name__ == "__main__":
    main()
