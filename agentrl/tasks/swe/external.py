"""The log parsers of swebench, which has an environment of its own, as a program that reads a log from stdin.

Guarantees: the log is data. A parser that fails, or that takes too long on what an agent printed, is an error with its name, never a verdict.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from agentrl.exceptions import ConfigError, InfraError
from agentrl.tasks.swe.logs import Statuses

ROOT = Path(__file__).resolve().parents[3]
INSTALLED = ROOT / ".cache" / "swebench"
PARSE_S = 60.0
PROGRAM = """
import json, sys
from types import SimpleNamespace
from swebench.harness.log_parsers import PARSER_REGISTRY
log = sys.stdin.read().split(">>>>> Start Test Output")[1].split(">>>>> End Test Output")[0]
print(json.dumps(PARSER_REGISTRY[sys.argv[1]](log, SimpleNamespace(repo=sys.argv[1]))))
"""


def python_of_swebench() -> Path:
    """Return the Python that can import swebench.

    Raises:
        ConfigError: it is not installed.
    """
    python = INSTALLED / "bin" / "python3"
    if not (INSTALLED / ".installed").is_file():
        raise ConfigError("swebench is not installed; run bash scripts/setup_swebench.sh")
    return python


async def parse_with_swebench(parser: str, log: str) -> Statuses:
    """Return the statuses that a parser of swebench finds in a log.

    Args:
        parser: such as ``parse_log_django``.
        log: see `agentrl.tasks.swe.logs.log_of`.

    Raises:
        ConfigError: swebench is not installed.
        InfraError: there is no such parser, or it failed.
    """
    process = await asyncio.create_subprocess_exec(
        *(python_of_swebench(), "-I", "-c", PROGRAM, parser),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(PARSE_S):
            output, errors = await process.communicate(log.encode(errors="replace"))
    except TimeoutError as error:
        raise InfraError(f"{parser} of swebench did not end within {PARSE_S:g} s", code="parser_failed") from error
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode != 0:
        raise InfraError(f"{parser} of swebench failed: {errors.decode(errors='replace')[-300:]}", code="parser_failed")
    return json.loads(output)
