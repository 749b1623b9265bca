"""A tool that is a Python function of a file of yours; it runs in the episode's ``tools`` sandbox, one process per call.

Guarantees: the function sees its folder read-only, and nothing else of the host. Only what it returns is shown, not what it prints.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from agentrl.exceptions import InvalidError
from agentrl.protocol import JsonObject
from agentrl.tasks.toolcall.tools.interface import Room, World, clipped

MAX_RESULT = 8192
FAILED = 9
# The result leaves by a descriptor that the function does not know as stdout.
PROGRAM = r"""
import importlib, json, os, sys
result = os.dup(1)
null = os.open(os.devnull, os.O_WRONLY)
os.dup2(null, 1)
os.dup2(null, 2)
request = json.load(sys.stdin)
sys.path.insert(0, request["folder"])
try:
    value = getattr(importlib.import_module(request["module"]), request["function"])(**request["arguments"])
    text, status = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False), 0
except Exception as error:
    text, status = "%s: %s" % (type(error).__name__, error), 9
with open(result, "w") as out:
    out.write(text)
sys.exit(status)
"""


@dataclass(frozen=True)
class PythonTool:
    """A function.

    Attributes:
        folder: of the host, with its module.
        inside: where the sandbox has the folder.
        module: its name.
        function: its name.
        seconds: time limit of a call.
    """

    name: str
    description: str
    parameters: JsonObject
    folder: Path
    inside: str
    module: str
    function: str
    seconds: float
    room: Room = "tools"

    async def call(self, arguments: JsonObject, world: World) -> str:
        """See `agentrl.tasks.toolcall.tools.interface.Tool`."""
        sandbox = await world.sandbox("tools")
        request = {"folder": self.inside, "module": self.module, "function": self.function, "arguments": arguments}
        result = await sandbox.execute(
            ["python3", "-I", "-B", "-c", PROGRAM], timeout_s=self.seconds, stdin=json.dumps(request).encode()
        )
        text = result.output.decode(errors="replace")
        if result.timed_out:
            raise InvalidError(f"{self.name} took more than {self.seconds:g} s", code="tool_timeout")
        if result.exit_code == FAILED:
            raise InvalidError(clipped(text, MAX_RESULT), code="tool_error")
        if result.exit_code != 0:
            raise InvalidError(f"{self.name} ended with status {result.exit_code}", code="tool_error")
        return clipped(text, MAX_RESULT)
