"""A server of our own for the time of an evaluation, and the weights of a run as a checkpoint.

Guarantee: the server and everything it started end with the block, and with this process.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from evaluation.case import EvalError
from groundwork.process import ChildProcess, spawn
from openclaw.runtime.where import ARGUMENTS_NAME

START_SECONDS = 900.0
STOP_SECONDS = 30.0
CONVERT = Path(__file__).resolve().parents[2] / "slime" / "tools" / "convert_fsdp_to_hf.py"


@asynccontextmanager
async def served(model_path: str, options: Sequence[str], log: Path) -> AsyncIterator[str]:
    """Serve a checkpoint on a free port of this machine; give the URL of its API.

    Args:
        model_path: checkpoint folder.
        options: of ``python -m openclaw.server``.
        log: file for what it prints.

    Raises:
        EvalError: it does not start.
    """
    from groundwork.network import find_available_port

    port = find_available_port()
    command = [sys.executable, "-m", "openclaw.server", "--model-path", model_path, "--port", str(port), *options]
    child = spawn(command, log_path=log, name="server")
    try:
        await _ready(child, f"http://127.0.0.1:{port}")
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        await asyncio.shield(asyncio.to_thread(child.stop, STOP_SECONDS))


async def _ready(child: ChildProcess, url: str) -> None:
    """Return when the server answers."""
    import httpx

    deadline = time.monotonic() + START_SECONDS
    async with httpx.AsyncClient(timeout=2.0, trust_env=False) as client:
        while time.monotonic() < deadline:
            if not child.alive():
                raise EvalError(f"the server ended with exit code {child.returncode}:\n{child.log_tail(12)}")
            with contextlib.suppress(httpx.TransportError):
                if (await client.get(f"{url}/healthz")).is_success:
                    return
            await asyncio.sleep(0.5)
    raise EvalError(f"the server did not answer within {START_SECONDS:.0f} s; see {child.log_path}")


def checkpoint_of(run: Path) -> tuple[Path, Path]:
    """Return the newest checkpoint of a run, and the one that the run began with.

    Raises:
        EvalError: the folder is not of a run that saved a checkpoint.
    """
    try:
        arguments = json.loads((run / ARGUMENTS_NAME).read_text())
        save, origin = arguments["save"], arguments["hf_checkpoint"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise EvalError(
            f"--run {run}: no {ARGUMENTS_NAME} of a run there ({error}); name the folder of a run"
        ) from error
    if not save:
        raise EvalError(f"--run {run}: the run saves no checkpoints; it needs --save")
    from slime.checkpoints.checkpoint_folder import find  # imports torch, for which no other evaluation waits

    try:
        place = find(Path(save))
    except (FileNotFoundError, ValueError) as error:
        raise EvalError(f"--run {run}: {error}") from error
    if place is None:
        raise EvalError(f"--run {run}: {save} holds no checkpoint yet")
    return place, Path(origin)


def export(checkpoint: Path, origin: Path, output: Path) -> None:
    """Write the weights of a checkpoint to a folder.

    Args:
        checkpoint: of a run.
        origin: the checkpoint that the run began with.
        output: folder to write.

    Raises:
        EvalError: it is not of the FSDP back end.
    """
    words = ["--input-dir", checkpoint, "--origin-hf-dir", origin, "--output-dir", output]
    ended = subprocess.run([sys.executable, CONVERT, *words], capture_output=True, text=True, check=False)
    if ended.returncode:
        said = (ended.stderr or ended.stdout).strip().splitlines()[-1:]
        raise EvalError(
            f"{checkpoint} is not converted: {' '.join(said)}; convert it with a program of slime/tools, and name the result with "
            "--model-path"
        )
