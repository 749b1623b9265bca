"""The log parsers of swebench, which lies in a folder of its own, as a program that reads a log from stdin.

`parse_with_swebench` reads a log as swebench's grader does. `results_with_swebench` asks a parser of pytest's logs about each line alone, so that
lines which contradict each other can be told. Guarantees: the log is data. A parser that fails, or that takes too long on what an agent printed, is an error with its name, never a verdict.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

from agentrl.exceptions import InfraError
from agentrl.tasks.swe.logs import BEGIN, END, Status, Statuses
from groundwork.exceptions import ConfigError

ROOT = Path(__file__).resolve().parents[3]
INSTALLED = ROOT / ".cache" / "swebench"
PARSE_SECONDS = 60.0
BARE = """
import sys, types
import swebench
harness = types.ModuleType("swebench.harness")  # its own __init__ imports docker, datasets and modal
harness.__path__ = [f"{swebench.__path__[0]}/harness"]
sys.modules["swebench.harness"] = swebench.harness = harness
"""
PROGRAM = f"""
import sys
sys.path.insert(0, sys.argv[3])
{BARE}
import json
from types import SimpleNamespace
from swebench.harness.log_parsers import PARSER_REGISTRY
name, way = sys.argv[1:3]
out, sys.stdout = sys.stdout, sys.stderr  # some parsers print
spec = SimpleNamespace(repo=name)
log = sys.stdin.buffer.read().decode()
if way == "lines":
    each = {{line: PARSER_REGISTRY[name](line, spec) for line in set(log.split("\\n"))}}
    print(json.dumps({{line: found for line, found in each.items() if found}}), file=out)
else:
    part = log.split("{BEGIN}")[1].split("{END}")[0]
    print(json.dumps(PARSER_REGISTRY[name](part, spec) or PARSER_REGISTRY[name](log, spec)), file=out)
"""


def packages() -> Path:
    """Return the folder from which swebench is imported.

    Raises:
        ConfigError: it is not installed.
    """
    if not (INSTALLED / ".installed").is_file():
        raise ConfigError("swebench is not installed; run bash scripts/setup_swebench.sh")
    return INSTALLED / "lib"


async def parse_with_swebench(parser: str, log: str) -> Statuses:
    """Return the statuses that a parser of swebench finds in a log.

    Args:
        parser: such as ``parse_log_django``.
        log: see `agentrl.tasks.swe.logs.log_of`; it has both markers.

    Raises:
        ConfigError: swebench is not installed.
        InfraError: there is no such parser, or it failed.
    """
    return await _asked(parser, "whole", log)


async def results_with_swebench(parser: str, log: str) -> Callable[[str], Iterator[tuple[str, Status]]]:
    """Return a function that yields the results in a part of a log, as `agentrl.tasks.swe.logs.lines_of_pytest` does.

    Args:
        parser: one of `agentrl.tasks.swe.instance.PYTEST_PARSERS`, which read each line for itself.
        log: whole.

    Raises:
        ConfigError: swebench is not installed.
        InfraError: there is no such parser, or it failed.
    """
    statuses: dict[str, Statuses] = await _asked(parser, "lines", log)
    return lambda text: (pair for line in text.split("\n") for pair in statuses.get(line, {}).items())


async def _asked(parser: str, way: Literal["whole", "lines"], log: str) -> Any:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-I", "-B", "-c", PROGRAM, parser, way, str(packages())),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(PARSE_SECONDS):
            output, errors = await process.communicate(log.encode(errors="replace"))
    except TimeoutError as error:
        raise InfraError(
            f"{parser} of swebench did not end within {PARSE_SECONDS:g} s", code="parser_failed"
        ) from error
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode != 0:
        raise InfraError(f"{parser} of swebench failed: {errors.decode(errors='replace')[-300:]}", code="parser_failed")
    return json.loads(output)
