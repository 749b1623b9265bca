"""The process of a vLLM engine: ``python -m slime.backends.vllm_utils.server OPTIONS -- COMMAND OF VLLM``.

It starts vLLM's server in its own process group, behind a Unix socket in a private folder, and serves the `translator` on the
engine's port. Guarantees: both end with the engine actor that started them, and the translator with vLLM. The folder, with
vLLM's sockets and the adapters' files, and the memory that vLLM's processes share are gone afterwards. `main` returns when vLLM has ended, with its status.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import psutil
import uvicorn

from groundwork.cleanup import entrust_path, start_janitor
from groundwork.process import watch_lifeline
from slime.backends.sglang_utils.server_hooks import HELD_ADAPTERS, HOLD, PEOPLE
from slime.backends.vllm_utils.command import BEHIND
from slime.backends.vllm_utils.translator import Translator, write_adapter
from slime.exceptions import EngineError

logger = logging.getLogger(__name__)

CONNECT_SECONDS = 10.0
END_SECONDS = 8.0
"""For vLLM to end by itself; less than `VLLMProcess.stop_seconds`."""
ADAPTER_CONFIG = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": 1, "lora_alpha": 1, "bias": "none"}


def zero_adapter(model: Path, targets: Sequence[str], folder: Path) -> None:
    """Write an adapter of rank 1 to ``folder`` that changes nothing; its shapes are those of the model's ``targets``."""
    import torch
    from safetensors import safe_open
    from safetensors.torch import save

    found: dict[str, Any] = {}
    for file in sorted(model.glob("*.safetensors")):
        with safe_open(file, framework="pt") as weights:
            for name in weights.keys():  # noqa: SIM118  it is not a mapping
                module = name.removesuffix(".weight")
                if module != name and module.rpartition(".")[2] in targets:
                    rows, columns = weights.get_slice(name).get_shape()
                    found[f"base_model.model.{module}.lora_A.weight"] = torch.zeros(1, columns)
                    found[f"base_model.model.{module}.lora_B.weight"] = torch.zeros(rows, 1)
    write_adapter(folder, {**ADAPTER_CONFIG, "target_modules": list(targets)}, save(found))


def start_vllm(command: Sequence[str], folder: Path) -> subprocess.Popen[bytes]:
    """Start vLLM's server behind a socket in ``folder``."""
    environment = dict(os.environ)
    environment["PYTHONPATH"] = environment.pop("SLIME_VLLM_PATH")
    environment |= {"VLLM_RPC_BASE_PATH": str(folder), "TMPDIR": str(folder)}
    return subprocess.Popen([*command, "--uds", str(folder / "vllm.sock")], env=environment, stdin=subprocess.DEVNULL)


def shared_memory(process: int) -> set[str]:
    """Return the files in ``/dev/shm`` that a process and its children have mapped."""
    family = [psutil.Process(process), *psutil.Process(process).children(recursive=True)]
    return {place.path for member in family for place in member.memory_maps() if place.path.startswith("/dev/shm/")}


async def begin(
    routes: Translator, base: Path | None, janitor: subprocess.Popen[str], vllm: subprocess.Popen[bytes], *, hold: bool
) -> None:
    """Make the engine ready, or end it; what vLLM shares between its processes is removed if it is killed."""
    try:
        await routes.reach()
        for path in shared_memory(vllm.pid):
            entrust_path(janitor, path)
        await routes.begin(base, hold=hold)
    except (EngineError, httpx.TransportError, psutil.Error, OSError):
        logger.exception("the engine does not become ready; ending it")
        vllm.terminate()


async def serve(
    options: argparse.Namespace,
    vllm: subprocess.Popen[bytes],
    folder: Path,
    janitor: subprocess.Popen[str],
    listening: socket.socket,
    *,
    hold: bool,
) -> int:
    """Serve at ``listening`` until vLLM ends or a signal comes; return vLLM's status, 0 after a signal.

    vLLM is ended however this ends.
    """
    end = asyncio.create_task(asyncio.to_thread(vllm.wait))
    transport = httpx.AsyncHTTPTransport(uds=str(folder / "vllm.sock"), limits=httpx.Limits(max_connections=None))
    timeout = httpx.Timeout(None, connect=CONNECT_SECONDS)
    try:
        base = None
        if options.adapters:
            base = folder / "zeros"
            zero_adapter(Path(options.model), options.adapters, base)
        async with httpx.AsyncClient(transport=transport, base_url="http://vllm", timeout=timeout) as client:
            people = (Path(options.people), options.held_adapters) if options.people else None
            routes = Translator(
                client, folder, model=options.model, ranks=options.ranks, adapters=bool(base), people=people
            )
            config = uvicorn.Config(routes.app(), log_level="warning", ws="none", timeout_graceful_shutdown=1)
            server = uvicorn.Server(config)
            beginning = asyncio.create_task(begin(routes, base, janitor, vllm, hold=hold))
            serving = asyncio.create_task(server.serve(sockets=[listening]))
            await asyncio.wait((serving, end), return_when=asyncio.FIRST_COMPLETED)
            beginning.cancel()
            if not end.done():
                serving.result()
                return 0
            logger.error("vLLM ended with status %d", end.result())
            server.should_exit = True
            with contextlib.suppress(asyncio.CancelledError):
                await serving
            return end.result() or 1
    finally:
        if not end.done():
            vllm.terminate()
            await asyncio.wait((end,), timeout=END_SECONDS)
        if not end.done():
            vllm.kill()


def main(words: Sequence[str] | None = None) -> int:
    """Run vLLM and its translator; return the exit status."""
    watch_lifeline()
    logging.basicConfig(level=logging.WARNING, format="[translator] %(levelname)s %(name)s: %(message)s")
    words = list(sys.argv[1:] if words is None else words)
    hold = HOLD in words
    if hold:
        words.remove(HOLD)
    place = words.index(BEHIND)
    parser = argparse.ArgumentParser(prog="slime.backends.vllm_utils.server")
    for option in ("--host", "--model"):
        parser.add_argument(option, required=True)
    for option in ("--port", "--ranks"):
        parser.add_argument(option, type=int, required=True)
    parser.add_argument("--adapters", nargs="+", default=[])
    parser.add_argument(PEOPLE)
    parser.add_argument(HELD_ADAPTERS, type=int)
    options = parser.parse_args(words[:place])
    # A port that is taken ends the process here, before vLLM holds memory.
    listening = uvicorn.Config("", host=options.host, port=options.port, log_level="warning").bind_socket()
    folder = Path(tempfile.mkdtemp(prefix="slime-vllm-"))
    janitor = start_janitor(folder, detached=True)
    return asyncio.run(serve(options, start_vllm(words[place + 1 :], folder), folder, janitor, listening, hold=hold))


if __name__ == "__main__":
    sys.exit(main())
