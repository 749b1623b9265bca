"""Runs a Python function that a model wrote, in the bubblewrap sandbox of `agentrl`, and never elsewhere.

Guarantees: the program has no network, no file of this machine, bounded memory, processes, time and output
(`agentrl.sandbox`). It never sees an expected result: the sandbox holds the inputs only, and this process compares. So
what a program prints, patches or writes cannot make it pass. A sandbox serves one program. Without a sandbox that proves its
promises, `CodeBox.open` raises and nothing runs.
"""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentrl.exceptions import InfraError, InvalidError
from agentrl.processes import Processes, ProcessLedger
from agentrl.sandbox.bubblewrap import PYTHON, Bubblewrap
from agentrl.sandbox.interface import HOME, ExecResult, Limits, Provider, Sandbox, SandboxSpec
from evaluation.case import SuiteError
from groundwork.exceptions import ConfigError

SECONDS = 10.0
LIMITS = Limits(memory_mib=256, cpus=1.0, processes=32, disk_mib=32, open_files=64)
RESULTS = f"{HOME}/results.json"
MAX_RESULTS = 1 << 18
MAX_CODE = 100_000
ATTEMPTS = 2
"""A sandbox that is lost is tried once more: its machine may have been short of memory."""
DRIVER = """
import json, sys
given, place = json.load(sys.stdin), sys.argv[1]
space = {"__name__": "solution"}
results = []
try:
    exec(compile(given["code"], "solution.py", "exec"), space)
except SyntaxError as error:
    results = {"syntax_error": str(error)}
except BaseException as error:
    results = {"raised": type(error).__name__ + ": " + str(error)}
else:
    function = space.get(given["name"])
    if not callable(function):
        results = {"no_function": "there is no function " + given["name"]}
    else:
        for values in given["inputs"]:
            try:
                results.append([json.loads(json.dumps(function(*values)))])
            except BaseException as error:
                results = {"raised": type(error).__name__ + ": " + str(error)}
                break
with open(place, "w") as file:
    json.dump(results, file)
"""
SAID = ("syntax_error", "raised", "no_function")


@dataclass(frozen=True, slots=True)
class Ran:
    """What a program did: one result per input, or the reason why there is none, with a detail for a person."""

    results: Sequence[Any] = ()
    reason: str = ""
    detail: str = ""


class CodeBox:
    """Starts a sandbox for each program, and ends it after some seconds; use `open` and `close` around it."""

    def __init__(self, provider: Provider | None = None, seconds: float = SECONDS) -> None:
        self.seconds = seconds
        self.provider = provider or Bubblewrap()
        self._stack = AsyncExitStack()
        self._places = asyncio.Semaphore(max(1, os.cpu_count() or 1))
        self._processes: Processes | None = None

    @property
    def processes(self) -> Processes:
        """The owner of everything that runs, for other users of the provider."""
        if self._processes is None:
            raise RuntimeError("open the box first")
        return self._processes

    async def open(self) -> None:
        """Prove the sandbox on this machine.

        Raises:
            SuiteError: there is no sandbox, or it does not hold; says what to install.
        """
        folder = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="eval-"))
        try:
            await self.provider.check()
            ledger = ProcessLedger(Path(folder) / "processes.sqlite")
        except (InfraError, ConfigError) as error:
            await self._stack.aclose()
            raise SuiteError(f"code that a model wrote runs only in a sandbox, and here is none: {error}") from error
        self._stack.callback(ledger.close)
        self._processes = Processes(ledger)
        self._stack.push_async_callback(self._processes.end)

    async def close(self) -> None:
        """End everything that still runs."""
        await self._stack.aclose()

    async def run(self, code: str, name: str, inputs: Sequence[Sequence[Any]]) -> Ran:
        """Call the function ``name`` of a program on each list of arguments.

        Raises:
            SuiteError: no sandbox starts.
        """
        if len(code) > MAX_CODE:
            return Ran(reason="too_long", detail=f"the program has {len(code)} characters")
        given = json.dumps({"code": code, "name": name, "inputs": inputs})
        async with self._places:
            for attempt in range(ATTEMPTS):
                sandbox = await self._start()
                try:
                    return await _attempt(sandbox, given, len(inputs), self.seconds)
                except InfraError as error:
                    if attempt + 1 == ATTEMPTS:
                        return Ran(reason="sandbox_lost", detail=str(error))
                finally:
                    await sandbox.stop()
        raise AssertionError("unreachable")

    async def _start(self) -> Sandbox:
        try:
            return await self.provider.start(SandboxSpec(limits=LIMITS), self.processes)
        except InfraError as error:
            raise SuiteError(f"the sandbox does not start: {error}") from error


async def _attempt(sandbox: Sandbox, given: str, count: int, seconds: float) -> Ran:
    """Run the program once.

    Raises:
        InfraError: the sandbox was lost.
    """
    ended = await sandbox.execute(
        [PYTHON, "-I", "-c", DRIVER, RESULTS],
        timeout_s=seconds,
        stdin=given.encode(errors="replace"),
        most_output=2_000,
    )
    if ended.timed_out:
        return Ran(reason="timed_out", detail=f"it did not end within {seconds:g} s")
    try:
        document = json.loads(await sandbox.read_file(RESULTS, most_bytes=MAX_RESULTS))
    except (InvalidError, ValueError, RecursionError):
        return Ran(reason="no_result", detail=_ending(ended))
    if isinstance(document, dict):
        said = next(((name, str(document[name])) for name in SAID if name in document), ("no_result", _ending(ended)))
        return Ran(reason=said[0], detail=said[1][:500])
    if (
        not isinstance(document, list)
        or len(document) != count
        or not all(isinstance(item, list) and len(item) == 1 for item in document)
    ):
        return Ran(reason="no_result", detail="it wrote another file over the results")
    return Ran(results=[item[0] for item in document])


def _ending(ended: ExecResult) -> str:
    text = ended.output.decode(errors="replace").strip()[-300:]
    return f"it ended with status {ended.exit_code}: {text}"


def same(expected: Any, found: Any) -> bool:
    """Return whether two JSON values are equal and of equal types: True is not 1, and 1.0 is not 1."""
    if type(expected) is not type(found):
        return False
    if isinstance(expected, dict):
        return expected.keys() == found.keys() and all(same(value, found[name]) for name, value in expected.items())
    if isinstance(expected, list):
        return len(expected) == len(found) and all(map(same, expected, found))
    return expected == found
