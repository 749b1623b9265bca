"""The log parsers of swebench, which lies in a folder of its own, as a program that reads a log from stdin.

Guarantees: the log is data. A parser that fails, or that takes too long on what an agent printed, is an error with its name, never a verdict.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from agentrl.exceptions import ConfigError, InfraError
from agentrl.tasks.swe.logs import Statuses

ROOT = Path(__file__).resolve().parents[3]
INSTALLED = ROOT / ".cache" / "swebench"
PARSE_S = 60.0
BARE = """
import sys, types
import swebench
harness = types.ModuleType("swebench.harness")  # its own __init__ imports docker, datasets and modal
harness.__path__ = [f"{swebench.__path__[0]}/harness"]
sys.modules["swebench.harness"] = swebench.harness = harness
"""
PROGRAM = f"""
import sys
sys.path.insert(0, sys.argv[2])
{BARE}
import json
from types import SimpleNamespace
from swebench.harness.log_parsers import PARSER_REGISTRY
log = sys.stdin.read().split(">>>>> Start Test Output")[1].split(">>>>> End Test Output")[0]
print(json.dumps(PARSER_REGISTRY[sys.argv[1]](log, SimpleNamespace(repo=sys.argv[1]))))
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
        log: see `agentrl.tasks.swe.logs.log_of`.

    Raises:
        ConfigError: swebench is not installed.
        InfraError: there is no such parser, or it failed.
    """
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-I", "-B", "-c", PROGRAM, parser, str(packages())),
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
