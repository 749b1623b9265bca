"""``TOOLS_CONFIG``: which tools an agent may have, and what carries their calls out.

The file is a JSON list of entries, or an object with the list as ``tools``. An entry is a function in OpenAI's format with a ``binding``, or an
``mcp`` server with all its tools. Guarantee: a configuration that is returned can be used, as far as that is known without starting anything; a
`ConfigError` names the entry and says what to write.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from agentrl.protocol import JsonObject
from agentrl.sandbox.interface import Mount
from agentrl.tasks.toolcall.schemas import check_schema
from agentrl.tasks.toolcall.secret_files import secrets_of
from agentrl.tasks.toolcall.tools.builtin import PURE, Pure
from agentrl.tasks.toolcall.tools.code import MAX_SECONDS, SECONDS, CodeInterpreter
from agentrl.tasks.toolcall.tools.http import HttpTool
from agentrl.tasks.toolcall.tools.interface import Tool
from agentrl.tasks.toolcall.tools.python import PythonTool
from agentrl.tasks.toolcall.tools.sql import Sql
from groundwork.exceptions import ConfigError

BUILTIN: Mapping[str, Tool] = MappingProxyType({**PURE, "sql": Sql(), "code_interpreter": CodeInterpreter()})
INSIDE = "/opt/tools"
PYTHON = "{python}"
FOLDER = "{folder}"
Seconds = Annotated[float, Field(gt=0, le=MAX_SECONDS)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Function(_Part):
    """A function in OpenAI's format."""

    name: Name
    description: str = ""
    parameters: dict[str, Any] = Field(default_factory=dict)
    strict: bool | None = None


class Builtin(_Part):
    """A tool that comes with the project; ``timeout_s`` and ``stateful`` are of ``code_interpreter``."""

    kind: Literal["builtin"]
    timeout_s: Seconds | None = None
    stateful: bool | None = None


class Python(_Part):
    """A function ``MODULE:FUNCTION`` of a folder; default: the folder of the configuration."""

    kind: Literal["python"]
    entry: Annotated[str, Field(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")]
    folder: str = "."
    timeout_s: Seconds = SECONDS


class Http(_Part):
    """A web service."""

    kind: Literal["http"]
    url: Annotated[str, Field(pattern=r"^https?://")]
    method: Literal["GET", "POST"] = "POST"
    timeout_s: Seconds = SECONDS


class Mcp(_Part):
    """An MCP server: a command in the sandbox, or the URL of one that runs elsewhere."""

    command: Annotated[list[str], Field(min_length=1)] | None = None
    url: Annotated[str, Field(pattern=r"^https?://")] | None = None
    allow: Annotated[list[str], Field(min_length=1)] | None = None
    folder: str | None = None
    env: dict[str, str] = Field(default_factory=dict)
    timeout_s: Seconds = 30.0

    @model_validator(mode="after")
    def _one_way(self) -> Mcp:
        if (self.command is None) == (self.url is None):
            raise ValueError("give either a command or a url")
        if self.url is not None and (self.folder is not None or self.env):
            raise ValueError("folder and env are of a command; leave them out")
        return self


class Entry(_Part):
    """One entry of the list."""

    type: Literal["function"] = "function"
    function: Function | None = None
    binding: Annotated[Builtin | Python | Http, Field(discriminator="kind")] | None = None
    mcp: Mcp | None = None

    @model_validator(mode="after")
    def _whole(self) -> Entry:
        if self.mcp is not None and (self.function is not None or self.binding is not None):
            raise ValueError("an mcp entry has no function and no binding; the server says what it offers")
        if self.mcp is None and (self.function is None or self.binding is None):
            raise ValueError("an entry has a function and a binding, or mcp")
        return self


@dataclass(frozen=True)
class McpServer:
    """An MCP server, with the paths that its command has in the sandbox."""

    label: str
    declared: Mcp
    command: tuple[str, ...] = ()


@dataclass(frozen=True)
class ToolConfig:
    """What a configuration says.

    Attributes:
        builtin: tools that come with the project, by name; a task gets those that it needs.
        own: other tools, by name; every task gets them.
        servers: whose tools every task gets.
        mounts: what the ``tools`` sandbox may read.
    """

    builtin: Mapping[str, Tool] = field(default_factory=lambda: BUILTIN)
    own: Mapping[str, Tool] = field(default_factory=dict[str, Tool])
    servers: tuple[McpServer, ...] = ()
    mounts: tuple[Mount, ...] = ()

    @property
    def folders(self) -> list[Mount]:
        """The mounts that are folders of tools, and not of the interpreter."""
        return [mount for mount in self.mounts if mount.inside.startswith(f"{INSIDE}/")]


def read_config(path: Path, allowed_urls: str = "") -> ToolConfig:
    """Return what a file says.

    Args:
        path: of the file.
        allowed_urls: beginnings of URLs that tools may reach, separated by spaces.

    Raises:
        ConfigError: it cannot be used.
    """
    try:
        content = json.loads(path.read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"TOOLS_CONFIG={path} cannot be read: {error}; name a JSON file") from error
    except json.JSONDecodeError as error:
        raise ConfigError(f"{path} is not JSON: {error}; correct that place") from error
    except RecursionError:
        raise ConfigError(f"{path} nests its values too deep; write fewer levels") from None
    entries = content.get("tools") if isinstance(content, dict) else content
    if not isinstance(entries, list) or not entries:
        raise ConfigError(f'{path} has no tools; write a JSON list of them, or {{"tools": [...]}}')
    reader = _Reader(path, allowed_urls.split())
    for number, entry in enumerate(entries):
        reader.add(number, entry)
    return ToolConfig(reader.builtin, reader.own, tuple(reader.servers), tuple(reader.mounts))


class _Reader:
    """Collects the entries of one file."""

    def __init__(self, path: Path, urls: list[str]) -> None:
        self._path, self._urls = path, urls
        self.builtin: dict[str, Tool] = {}
        self.own: dict[str, Tool] = {}
        self.servers: list[McpServer] = []
        self.mounts: list[Mount] = []

    def add(self, number: int, found: Any) -> None:
        """Take an entry.

        Raises:
            ConfigError: names it.
        """
        name = _name_of(found)
        where = f"{self._path}: tools[{number}]{f' ({name})' if name else ''}"
        try:
            entry = Entry.model_validate(found)
        except ValidationError as error:
            raise ConfigError(f"{where}: {'; '.join(_problems(error))}") from None
        if entry.mcp is not None:
            self._server(where, entry.mcp)
            return
        assert entry.function is not None
        function = entry.function
        if function.name in self.builtin or function.name in self.own:
            raise ConfigError(f"{where}: there are two tools of this name; rename one of them")
        check_schema(where, function.parameters)
        match entry.binding:
            case Builtin() as binding:
                self.builtin[function.name] = _builtin(where, function, binding)
            case Python() as binding:
                self.own[function.name] = self._python(where, function, binding)
            case Http() as binding:
                self._check_url(where, binding.url)
                self.own[function.name] = HttpTool(
                    *(function.name, function.description, _schema(function)),
                    binding.url,
                    binding.method,
                    binding.timeout_s,
                )

    def _python(self, where: str, function: Function, binding: Python) -> PythonTool:
        module, _, name = binding.entry.partition(":")
        folder, inside = self._mounted(where, binding.folder)
        path = folder.joinpath(*module.split("."))
        if not path.with_suffix(".py").is_file() and not (path / "__init__.py").is_file():
            raise ConfigError(f"{where}: {folder} has no module {module}; correct entry or folder")
        described = (function.name, function.description, _schema(function))
        return PythonTool(*described, folder, inside, module, name, binding.timeout_s)

    def _server(self, where: str, server: Mcp) -> None:
        if server.url is not None:
            self._check_url(where, server.url)
            self.servers.append(McpServer(server.url, server))
            return
        assert server.command is not None
        words = list(server.command)
        if server.folder is None and any(FOLDER in word for word in words):
            raise ConfigError(f"{where}: the command names {FOLDER}; give the folder")
        inside = "" if server.folder is None else self._mounted(where, server.folder)[1]
        if any(PYTHON in word for word in words):
            self._mount_python()
        command = tuple(word.replace(FOLDER, inside).replace(PYTHON, sys.executable) for word in words)
        self.servers.append(McpServer(" ".join(server.command), server, command))

    def _mounted(self, where: str, folder: str) -> tuple[Path, str]:
        """Return a folder of the host, and where the sandbox has it."""
        path = (self._path.parent / folder).resolve()
        if not path.is_dir():
            raise ConfigError(f"{where}: there is no folder {path}; correct it")
        for mount in self.mounts:
            if mount.host == path:
                return path, mount.inside
        secrets_of(path)  # refuses a folder that is too large
        inside = f"{INSIDE}/{len(self.mounts)}"
        self.mounts.append(Mount(path, inside))
        return path, inside

    def _mount_python(self) -> None:
        """Show this process's interpreter and packages to the sandbox, where the host has them."""
        for path in dict.fromkeys((Path(sys.base_prefix), Path(sys.prefix))):
            mount = Mount(path, str(path))
            if not path.is_relative_to("/usr") and mount not in self.mounts:
                self.mounts.append(mount)

    def _check_url(self, where: str, url: str) -> None:
        if not any(url == allowed or url.startswith(f"{allowed.rstrip('/')}/") for allowed in self._urls):
            raise ConfigError(f"{where}: {url} is not allowed; add it to TOOLCALL_ALLOWED_URLS if tools may reach it")


def _builtin(where: str, function: Function, binding: Builtin) -> Tool:
    known = BUILTIN.get(function.name)
    if known is None:
        raise ConfigError(f"{where}: there is no such built-in tool; there are {', '.join(BUILTIN)}")
    own, given = known.parameters["properties"], function.parameters.get("properties")
    assert isinstance(own, dict)
    if given is not None and set(given) != set(own):
        raise ConfigError(f"{where}: its parameters are {', '.join(own)}; leave them out, or name these")
    if isinstance(known, CodeInterpreter):
        return replace(
            known,
            seconds=binding.timeout_s or known.seconds,
            stateful=known.stateful if binding.stateful is None else binding.stateful,
        )
    if binding.timeout_s is not None or binding.stateful is not None:
        raise ConfigError(f"{where}: timeout_s and stateful are of code_interpreter; leave them out")
    if isinstance(known, Pure) and function.description:
        return replace(known, description=function.description)
    return known


def _schema(function: Function) -> JsonObject:
    return function.parameters or {"type": "object", "properties": {}}


def _name_of(entry: Any) -> str:
    function = entry.get("function") if isinstance(entry, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    return name if isinstance(name, str) and re.fullmatch(r"[\w.-]{1,64}", name) else ""


def _problems(error: ValidationError) -> Iterator[str]:
    for item in error.errors():
        place = ".".join(str(part) for part in item["loc"])
        yield f"{place}: {item['msg']}" if place else item["msg"]
