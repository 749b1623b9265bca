"""A stand-in for an engine's side of a weight update: SGLang's routes over real HTTP, around a model that only takes weights.

`python -m benchmarks.weight_receiver --spec FILE --port N` serves until its standard input ends. The model has one parameter per
tensor of the specification (JSON: name to ``[shape, dtype]``). As in SGLang, a broadcast is received into fresh memory and a
custom loader is called by its path.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import load_file
from torch import Tensor

from benchmarks.machine import REPOSITORY
from groundwork.network import find_available_port
from slime.args import Arguments
from slime.arguments.placement import EngineSpec
from slime.backends.sglang_utils.external import ExternalEngine
from slime.backends.sglang_utils.server import engine_environment
from slime.utils.misc import load_function
from slime.weight_sync import LOADER
from slime.weight_sync.engine_loader import MAPPINGS
from slime.weight_sync.group import join_group
from slime.weight_sync.remote_engine import RemoteEngine
from slime.weight_sync.requests import unpack

GROUP_TIMEOUT = timedelta(seconds=60)
START_SECONDS = 120.0


class Model:
    """Parameters by name; ``load_weights`` copies into them, as an engine's does."""

    def __init__(self, spec: dict[str, Any], device: str) -> None:
        self.device = torch.device(device)
        self.parameters = {
            name: torch.zeros(shape, dtype=getattr(torch, dtype), device=device)
            for name, (shape, dtype) in spec.items()
        }

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Copy the weights in."""
        for name, value in weights:
            self.parameters[name].copy_(value)


class Receiver:
    """The routes. A call that fails answers 400; ``fault`` makes the n-th call of a route refuse, or end the process."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.version = "default"
        self.heard: list[str] = []
        self.session = False
        self.held: list[float] = []
        self.paused_at = 0.0
        self.groups: dict[str, Any] = {}
        self.fault: dict[str, Any] = {}

    def answer(self, route: str, body: dict[str, Any]) -> dict[str, Any]:
        """Do what ``route`` says."""
        if route not in ("state", "fault", "health"):
            self.heard.append(route)
            if route == self.fault.get("at"):
                self.fault["after"] -= 1
                if self.fault["after"] < 0:
                    if self.fault["kind"] == "die":
                        os.kill(os.getpid(), signal.SIGKILL)
                    raise RuntimeError(f"{route} is refused")
        found = getattr(self, f"do_{route}", None)
        return (found(**body) if found else None) or {}

    def do_state(self, values: bool = False) -> dict[str, Any]:
        """What was heard, the version, seconds of each hold, mappings made, and on demand the weights' bytes."""
        weights = {
            name: base64.b64encode(value.view(torch.uint8).cpu().numpy().tobytes()).decode()
            for name, value in (self.model.parameters if values else {}).items()
        }
        known = {"heard": self.heard, "version": self.version, "session": self.session, "held": self.held}
        return known | {"opened": MAPPINGS.opened, "weights": weights}

    def do_fault(self, **fault: Any) -> None:
        """Take a fault to come."""
        self.fault = fault

    def do_server_info(self) -> dict[str, Any]:
        """What an external engine is asked for."""
        return {"tp_size": 1, "model_path": "synthetic", "custom_weight_loader": [LOADER]}

    def do_pause_generation(self, mode: str) -> None:
        """Hold requests."""
        self.paused_at = time.perf_counter()

    def do_continue_generation(self, **rest: Any) -> None:
        """Hold them no longer."""
        self.held.append(time.perf_counter() - self.paused_at)

    def do_begin_weight_update(self) -> None:
        """Open a session."""
        if self.session:
            raise RuntimeError("a weight-update session is already open; call end_weight_update() first")
        self.session = True

    def do_end_weight_update(self) -> None:
        """Close the session."""
        if not self.session:
            raise RuntimeError("no weight-update session is open; call begin_weight_update() first")
        self.session = False

    def do_init_weights_update_group(
        self, master_address: str, master_port: int, rank_offset: int, group_name: str, **rest: Any
    ) -> None:
        """Join the trainer's group."""
        self.groups[group_name] = join_group(
            address=master_address,
            port=master_port,
            rank=rank_offset,
            world_size=rest["world_size"],
            name=group_name,
            backend=rest["backend"],
            timeout=GROUP_TIMEOUT,
        )

    def do_destroy_weights_update_group(self, group_name: str) -> None:
        """Leave it."""
        if group_name not in self.groups:
            raise RuntimeError("The group to be destroyed does not exist.")
        dist.destroy_process_group(self.groups.pop(group_name))

    def do_update_weights_from_distributed(
        self, names: list[str], dtypes: list[str], shapes: list[list[int]], group_name: str, **rest: Any
    ) -> None:
        """Receive a bucket and load it."""
        size = sum(torch.Size(s).numel() * getattr(torch, d).itemsize for s, d in zip(shapes, dtypes, strict=True))
        group = self.groups[group_name]
        # Gloo broadcasts host memory too, as SGLang's engines on a CPU have it.
        device = self.model.device if dist.get_backend(group) == "nccl" else torch.device("cpu")
        data = torch.empty(size, dtype=torch.uint8, device=device)
        dist.broadcast(data, src=0, group=group)
        self.model.load_weights(unpack(data, names, dtypes, shapes))
        self._live(rest)

    def do_update_weights_from_tensor(self, serialized_named_tensors: list[str], load_format: str, **rest: Any) -> None:
        """Call the custom loader."""
        named = pickle.loads(base64.b64decode(serialized_named_tensors[0]))
        load_function(load_format)(self.model, named)
        self._live(rest)

    def do_update_weights_from_disk(self, model_path: str, **rest: Any) -> None:
        """Load a Hugging Face folder."""
        for file in sorted(Path(model_path).glob("*.safetensors")):
            self.model.load_weights(load_file(file).items())
        self._live(rest)

    def _live(self, rest: dict[str, Any]) -> None:
        if self.model.device.type == "cuda":
            torch.cuda.synchronize(self.model.device)
        if rest.get("weight_version") is not None:
            self.version = rest["weight_version"]


class _Handler(BaseHTTPRequestHandler):
    receiver: Receiver
    lock = threading.Lock()
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def _reply(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"null") or {}
        try:
            with self.lock:
                status, answer = 200, self.receiver.answer(self.path.strip("/"), body)
        except (RuntimeError, LookupError, TypeError, ValueError, OSError) as error:
            status, answer = 400, {"message": f"{type(error).__name__}: {error}"}
        text = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    do_GET = do_POST = _reply

    def log_message(self, format: str, *values: Any) -> None:
        """Say nothing."""


class _Call:
    """A method as an actor handle has it: ``remote`` gives something with ``future``."""

    def __init__(self, pool: ThreadPoolExecutor, function: Any) -> None:
        self._pool, self._function = pool, function

    def remote(self, *arguments: Any, **keywords: Any) -> _Call:
        self._result: Future[Any] = self._pool.submit(self._function, *arguments, **keywords)
        return self

    def future(self) -> Future[Any]:
        return self._result


class _LocalActor:
    """An object of this process behind the interface of a Ray actor handle."""

    def __init__(self, engine: Any) -> None:
        self.engine = engine
        self._pool = ThreadPoolExecutor(4)

    def __getattr__(self, name: str) -> _Call:
        return _Call(self._pool, getattr(self.engine, name))


def local_handle(engine: Any) -> RemoteEngine:
    """Return a handle of an engine in this process; its calls run in threads."""
    return RemoteEngine(_LocalActor(engine))


def numbered(device: str) -> torch.device:
    """Return ``device``; ``cuda`` is the first GPU, because torch makes no GPU without a number the current one."""
    found = torch.device(device)
    return torch.device("cuda", 0) if found.type == "cuda" and found.index is None else found


class ReceiverProcess:
    """A running receiver and its engine handle; end it with ``stop``."""

    def __init__(self, args: Arguments, spec: dict[str, Any], folder: Path, device: str = "cpu") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / "spec.json"
        file.write_text(json.dumps(spec))
        port = find_available_port()
        command = [sys.executable, "-m", "benchmarks.weight_receiver", "--spec", str(file), "--port", str(port)]
        command += ["--device", device]
        paths = [str(REPOSITORY), str(REPOSITORY / "slime")]
        environment = engine_environment(os.environ | {"PYTHONPATH": os.pathsep.join(paths)}, cpu=device == "cpu")
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, env=environment)
        self.engine = ExternalEngine(args, EngineSpec("policy", 0, 1), f"127.0.0.1:{port}")
        self.handle = local_handle(self.engine)
        deadline = time.monotonic() + START_SECONDS
        while not self.engine.health():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError("the receiver did not start")
            time.sleep(0.05)
        self.engine.start()

    def state(self, values: bool = False) -> dict[str, Any]:
        """See :meth:`Receiver.do_state`."""
        return self.engine._checked("/state", "POST", {"values": values}).json()

    def fault(self, kind: str, at: str, after: int = 0) -> None:
        """After ``after`` more calls of the route ``at`` the next is refused (``refuse``) or ends the process (``die``)."""
        self.engine._post("/fault", kind=kind, at=at, after=after)

    def weights(self) -> dict[str, bytes]:
        """The bytes of each weight."""
        return {name: base64.b64decode(text) for name, text in self.state(values=True)["weights"].items()}

    def stop(self) -> None:
        """End the process."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(30)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.weight_receiver", description=__doc__)
    parser.add_argument("--spec", required=True, type=Path, help="JSON: tensor name to [shape, dtype]")
    parser.add_argument("--port", required=True, type=int, help="where to listen, on 127.0.0.1")
    parser.add_argument(
        "--device", default="cpu", help="where the parameters are: cpu, cuda or cuda:1 (default: %(default)s)"
    )
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    device = numbered(arguments.device)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    _Handler.receiver = Receiver(Model(json.loads(arguments.spec.read_text()), str(device)))
    server = ThreadingHTTPServer(("127.0.0.1", arguments.port), _Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    main()
