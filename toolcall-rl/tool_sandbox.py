"""``PythonSandbox`` and ``ToolRegistry``: the tools of ``TOOLS_CONFIG`` outside of an episode, for programs of your own.

Guarantee: code runs in a sandbox that is proved to hold (`agentrl.sandbox`); there is no fallback without one, and no list of forbidden words.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

from agentrl.exceptions import InvalidError
from agentrl.processes import Processes, ProcessLedger
from agentrl.protocol import JsonObject
from agentrl.sandbox.bubblewrap import Bubblewrap
from agentrl.sandbox.interface import Sandbox
from agentrl.tasks.toolcall.config import BUILTIN, ToolConfig, read_config
from agentrl.tasks.toolcall.prompts import format_tool_descriptions
from agentrl.tasks.toolcall.toolbox import Toolbox
from agentrl.tasks.toolcall.tools.code import SECONDS, CodeInterpreter
from agentrl.tasks.toolcall.tools.interface import Room, World

__all__ = ["PythonSandbox", "ToolRegistry", "format_tool_descriptions"]

CODE = "code_interpreter"


class ToolRegistry:
    """The tools of a configuration; an async context manager, in which `execute_tool` works."""

    def __init__(self, config: Path | ToolConfig | None = None, allowed_urls: str = "") -> None:
        """Read the tools.

        Args:
            config: a ``TOOLS_CONFIG`` file, or what one says; None for ``code_interpreter`` alone.
            allowed_urls: beginnings of URLs that tools may reach, separated by spaces.

        Raises:
            ConfigError: the configuration cannot be used.
        """
        if isinstance(config, Path):
            config = read_config(config, allowed_urls)
        self._config = config or ToolConfig({CODE: BUILTIN[CODE]})
        self._provider = Bubblewrap()

    async def __aenter__(self) -> Self:
        """Connect to the servers.

        Raises:
            InfraError: one does not start, or sandboxes do not hold.
        """
        self._folder = TemporaryDirectory()
        self._ledger = ProcessLedger(Path(self._folder.name) / "processes.sqlite")
        self._processes = Processes(self._ledger)
        self._toolbox = Toolbox(self._config, self._config.builtin, self._processes.pool)
        self._world = World({}, {}, self._start)
        try:
            await self._toolbox.prepare()
            await self._toolbox.open(self._world)
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        """Leave the servers and stop the sandboxes."""
        await self._toolbox.close()
        for sandbox in self._world.rooms.values():
            await sandbox.stop()
        await self._processes.end()
        self._ledger.close()
        self._folder.cleanup()

    def get_tool_specs(self) -> list[JsonObject]:
        """Return the tools in OpenAI's format."""
        return self._toolbox.described

    async def execute_tool(self, tool_name: str, arguments: Mapping[str, Any]) -> str:
        """Return what a tool answered; what makes no sense, and a tool's own error, is a text that begins with ``Error:``.

        Raises:
            InfraError: a sandbox or server failed.
        """
        try:
            return await self._toolbox.call(tool_name, dict(arguments), self._world)
        except InvalidError as error:
            return f"Error: {error.message}"

    async def _start(self, room: Room) -> Sandbox:
        return await self._provider.start(self._toolbox.spec(room), self._processes)


class PythonSandbox(ToolRegistry):
    """``code_interpreter`` alone."""

    def __init__(self, timeout: float = SECONDS, stateful: bool = False) -> None:
        """Prepare.

        Args:
            timeout: seconds of a call.
            stateful: whether variables live on between calls.
        """
        super().__init__(ToolConfig({CODE: CodeInterpreter(seconds=timeout, stateful=stateful)}))

    async def execute_code(self, code: str) -> str:
        """Return what a program printed; see `agentrl.tasks.toolcall.tools.code`."""
        return await self.execute_tool(CODE, {"code": code})
