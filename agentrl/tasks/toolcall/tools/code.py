"""The tool ``code_interpreter``: Python in a sandbox of its own.

By default each call is a fresh process, and only files stay. With ``stateful`` one process per episode keeps the variables. Guarantees: the code
sees no file, variable or network of the host, and neither the task's answer nor the sandbox of another tool. A call ends at its time limit with
everything that it started. Its head and its tail are what the agent sees of a long output.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from agentrl.exceptions import InvalidError
from agentrl.protocol import JsonObject
from agentrl.sandbox.interface import ExecResult, Sandbox
from agentrl.tasks.toolcall.tools.interface import Room, World, parameters

SECONDS = 10.0
MAX_SECONDS = 600.0
MAX_OUTPUT = 4096
MAX_CODE = 200_000
SOCKET = "/tmp/.notebook"
START = 'python3 -c "$1" serve "$2" </dev/null >/dev/null 2>&1 & while ! [ -S "$2" ]; do sleep 0.02; done'
"""Waits, so that the time of the first call is the program's."""
END = 'kill -9 -- "-$(cat "$1.pid")"; rm -f "$1" "$1.pid"'
END_S = 20.0
NOTEBOOK = Path(__file__).with_name("notebook.py")


@dataclass(frozen=True)
class CodeInterpreter:
    """The tool.

    Attributes:
        seconds: time limit of a call.
        stateful: whether variables live on.
        most_output: bytes of its output that the agent sees.
    """

    seconds: float = SECONDS
    stateful: bool = False
    most_output: int = MAX_OUTPUT
    name: str = "code_interpreter"
    room: Room = "code"

    @property
    def description(self) -> str:
        """For the model."""
        kept = "Variables live on between calls." if self.stateful else "Each call is a new process; files stay."
        return f"Run Python code for at most {self.seconds:g} s, and see what it prints. {kept}"

    @property
    def parameters(self) -> JsonObject:
        """Schema of the arguments."""
        return parameters({"code": ("string", "the Python code; print what you want to see")})

    async def call(self, arguments: JsonObject, world: World) -> str:
        """See `agentrl.tasks.toolcall.tools.interface.Tool`."""
        program = str(arguments["code"])
        if len(program) > MAX_CODE:
            raise InvalidError(f"the code has more than {MAX_CODE} characters", code="too_large")
        fresh = "code" not in world.rooms
        sandbox = await world.sandbox("code")
        if not self.stateful:
            return self._seen(await self._run(sandbox, ["python3", "-"], program))
        if fresh:
            await _start(sandbox)
        result = await self._run(sandbox, ["python3", "-c", notebook(), "run", SOCKET], program)
        if not result.timed_out:
            return self._seen(result)
        await sandbox.execute(["sh", "-c", END, "sh", SOCKET], timeout_s=END_S)
        await _start(sandbox)
        return f"{self._seen(result)}\n[all variables are lost]"

    async def _run(self, sandbox: Sandbox, argv: list[str], program: str) -> ExecResult:
        data = program.encode(errors="replace")
        return await sandbox.execute(argv, timeout_s=self.seconds, stdin=data, most_output=self.most_output)

    def _seen(self, result: ExecResult) -> str:
        """Return the output, and lines in brackets about what it does not show."""
        text = result.output.decode(errors="replace").removesuffix("\n")
        notes = [text] if text else []
        if result.cut_bytes:
            notes.append(f"[{result.cut_bytes} bytes in the middle are left out]")
        if result.timed_out:
            notes.append(f"[ended after {self.seconds:g} s]")
        elif result.exit_code:
            notes.append(f"[exit code {result.exit_code}]")
        return "\n".join(notes) or "[no output]"


@cache
def notebook() -> str:
    """Return the program that keeps the variables."""
    return NOTEBOOK.read_text()


async def _start(sandbox: Sandbox) -> None:
    await sandbox.execute(["sh", "-c", START, "sh", notebook(), SOCKET], timeout_s=END_S)
