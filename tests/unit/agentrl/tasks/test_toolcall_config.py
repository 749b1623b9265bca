"""``TOOLS_CONFIG``: what it may say, and that a mistake is named with its entry."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agentrl.exceptions import InfraError, InvalidError
from agentrl.tasks.toolcall import secret_files
from agentrl.tasks.toolcall.config import BUILTIN, ToolConfig, read_config
from agentrl.tasks.toolcall.environment import ToolCallEnvironment, weight_of
from agentrl.tasks.toolcall.schemas import check_schema, problem_of_schema, problems_of_arguments
from agentrl.tasks.toolcall.toolbox import Toolbox
from agentrl.tasks.toolcall.tools import mcp
from agentrl.tasks.toolcall.tools.code import CodeInterpreter
from agentrl.tasks.toolcall.tools.http import HttpTool
from agentrl.tasks.toolcall.tools.interface import World, clipped
from agentrl.tasks.toolcall.tools.mcp import McpConnection
from agentrl.tasks.toolcall.tools.python import PythonTool
from groundwork.exceptions import ConfigError

Write = Callable[[Any], Path]
OPEN = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
CODE = {"function": {"name": "code_interpreter"}, "binding": {"kind": "builtin"}}


@pytest.fixture
def write(tmp_path: Path) -> Write:
    (tmp_path / "mine.py").write_text("def weather(city):\n    return city\n")

    def to_file(content: Any) -> Path:
        path = tmp_path / "tools.json"
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return path

    return to_file


def python(**binding: Any) -> dict[str, Any]:
    bound = {"kind": "python", "entry": "mine:weather", **binding}
    return {
        "type": "function",
        "function": {"name": "weather", "description": "Sky.", "parameters": OPEN},
        "binding": bound,
    }


def http(**binding: Any) -> dict[str, Any]:
    bound = {"kind": "http", "url": "http://tools.test/weather", **binding}
    return {"function": {"name": "look", "parameters": OPEN}, "binding": bound}


def referring(place: str) -> dict[str, Any]:
    schema = {"type": "object", "properties": {"city": {"$ref": place}}, "$defs": {"name": {"const": "Rome"}}}
    return {**python(), "function": {"name": "a", "parameters": schema}}


async def test_a_schema_reads_no_file_of_the_host(write: Write, tmp_path: Path) -> None:
    """Neither when it is accepted nor when arguments are checked, also if a server's schema was not checked before."""
    (tmp_path / "key.json").write_text('{"const": "open-sesame"}')
    outside = referring((tmp_path / "key.json").as_uri())["function"]["parameters"]
    with pytest.raises(ConfigError, match="refer to"):
        check_schema("it", outside)
    [problem] = problems_of_arguments(outside, {"city": "x"})
    assert "refers to file:" in problem
    read_config(write([referring("#/$defs/name")]))
    inside = referring("#/$defs/name")["function"]["parameters"]
    assert problems_of_arguments(inside, {"city": "x"}) == ["city: 'Rome' was expected"]


@pytest.mark.parametrize("keyword", ["default", "const", "enum", "examples"])
def test_data_in_a_schema_is_no_reference(keyword: str, write: Write) -> None:
    data: Any = {"$ref": "see manual", "$dynamicRef": "#nowhere", "properties": {"a": {"$ref": "nowhere"}}}
    value = [data] if keyword in ("enum", "examples") else data
    schema = {
        "type": "object",
        "properties": {"x": {keyword: value}, "default": {"$ref": "#/$defs/a"}},
        "$defs": {"a": {}},
    }
    read_config(write([{**python(), "function": {"name": "a", "parameters": schema}}]))


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"default": {"$ref": "nowhere"}}},
        {"properties": {"a": {"items": {"anyOf": [{"not": {"$ref": "#/$defs/missing"}}]}}}},
        {"patternProperties": {"^a": {"$ref": "other.json"}}},
        {"definitions": {"a": {"properties": {"b": {"$ref": "http://x/y"}}}}},
        {"$defs": {"a": {"if": {"$dynamicRef": "nowhere"}}}},
        {"dependentSchemas": {"a": {"unevaluatedProperties": {"$ref": "nowhere"}}}},
    ],
)
def test_a_reference_to_nowhere_is_found_at_every_place_of_a_schema(schema: dict[str, Any]) -> None:
    assert "refer to" in (problem_of_schema({"type": "object", **schema}) or "")


@pytest.mark.parametrize("text", ["[" * 100_000, '{"tools": ' * 5000, '[{"function": ' + "[" * 20_000])
def test_a_file_of_brackets_is_refused_in_a_line(text: str, write: Write) -> None:
    with pytest.raises(ConfigError, match=r"nests its values too deep|is not JSON"):
        read_config(write(text))


def test_a_schema_of_many_levels_is_refused_in_a_line() -> None:
    deep: dict[str, Any] = {}
    for _ in range(3000):
        deep = {"properties": {"a": deep}}
    with pytest.raises(ConfigError, match="write a schema of fewer levels"):
        check_schema("it", {"type": "object", **deep})


def test_every_kind_is_read(write: Write, tmp_path: Path) -> None:
    servers = [
        {"mcp": {"command": ["{python}", "{folder}/s.py"], "folder": ".", "allow": ["a"]}},
        {"mcp": {"url": "http://tools.test/mcp"}},
    ]
    stateful = {**CODE, "binding": {"kind": "builtin", "timeout_s": 3, "stateful": True}}
    config = read_config(write({"tools": [stateful, python(), http(method="GET"), *servers]}), "http://tools.test/")
    code, weather, look = config.builtin["code_interpreter"], config.own["weather"], config.own["look"]
    assert isinstance(code, CodeInterpreter)
    assert (code.seconds, code.stateful) == (3, True)
    assert isinstance(weather, PythonTool)
    assert (weather.folder, weather.inside, weather.module, weather.function) == (
        tmp_path,
        "/opt/tools/0",
        "mine",
        "weather",
    )
    assert isinstance(look, HttpTool)
    assert [server.command[:1] for server in config.servers] == [(sys.executable,), ()]
    assert config.servers[0].command[1] == "/opt/tools/0/s.py"
    assert config.mounts[0].host == tmp_path
    assert weight_of(config, []).memory_mib > weight_of(ToolConfig(), ["calculator"]).memory_mib


def test_secrets_beside_the_tools_are_covered(write: Write, tmp_path: Path) -> None:
    """Also one that appears after the configuration was read."""
    config = read_config(write([python()]))
    (tmp_path / "deep").mkdir()
    for name in (".env", "deep/.env.local", "prod.env", "environment.py"):
        (tmp_path / name).write_text("KEY=sesame")
    (tmp_path / "linked.env").symlink_to("mine.py")
    spec = Toolbox(config, [], "pool").spec("tools")
    covered = {mount.inside for mount in spec.mounts if mount.host == Path("/dev/null")}
    assert covered == {f"/opt/tools/0/{name}" for name in (".env", "deep/.env.local", "prod.env")}
    assert spec.mounts[0].host == tmp_path, "a cover lies over what is mounted before it"


def test_a_folder_that_is_no_folder_of_tools_is_refused(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(secret_files, "MAX_FILES", 1)
    (tmp_path / "other.py").touch()
    with pytest.raises(ConfigError, match="move the tools to a folder of their own"):
        read_config(write([python()]))


def test_the_example_of_the_folder_is_read(repository: Path) -> None:
    assert {*read_config(repository / "toolcall-rl" / "tools_config.json").builtin} < {*BUILTIN}


@pytest.mark.parametrize(
    ("entries", "says"),
    [
        ("{", "is not JSON"),
        ({}, "has no tools"),
        ([], "has no tools"),
        ([3], r"tools\[0\]"),
        ([{}], r"tools\[0\]: .*a function and a binding, or mcp"),
        ([CODE, CODE], r"tools\[1\] \(code_interpreter\): there are two tools"),
        (
            [{"function": {"name": "shell"}, "binding": {"kind": "builtin"}}],
            r"\(shell\): there is no such built-in tool",
        ),
        ([{**CODE, "binding": {"kind": "magic"}}], r"\(code_interpreter\): .*magic"),
        ([{**CODE, "binding": {"kind": "builtin", "timeout": 3}}], "timeout"),
        ([{**CODE, "binding": {"kind": "builtin", "timeout_s": -3}}], "timeout_s"),
        (
            [{"function": {"name": "calculator"}, "binding": {"kind": "builtin", "stateful": True}}],
            "are of code_interpreter",
        ),
        (
            [
                {
                    "function": {"name": "calculator", "parameters": {"type": "object", "properties": {"x": {}}}},
                    "binding": {"kind": "builtin"},
                }
            ],
            "its parameters are expression",
        ),
        ([{**python(), "function": {"name": "a b"}}], "function.name"),
        ([{**python(), "function": {"name": "a", "parameters": {"type": "array"}}}], '"type": "object"'),
        ([{**python(), "function": {"name": "a", "parameters": {"type": "objekt"}}}], "are not a JSON schema"),
        ([referring("file:///etc/tool.json")], r"\(a\): its parameters refer to 'file:///etc/tool.json'"),
        ([referring("http://127.0.0.1:1/x")], "refer to 'http://127.0.0.1:1/x'; write a reference to a place in them"),
        ([referring("#/$defs/none")], "refer to '#/\\$defs/none'"),
        ([python(entry="mine.weather")], "entry"),
        ([python(entry="other:weather")], r"\(weather\): .* has no module other"),
        ([python(folder="none")], "there is no folder"),
        ([http()], r"\(look\): http://tools.test/weather is not allowed; .*TOOLCALL_ALLOWED_URLS"),
        ([http(url="file:///etc/passwd")], "url"),
        ([http(url="http://open.test.evil/x")], "not allowed"),
        ([{"mcp": {}}], "either a command or a url"),
        ([{"mcp": {"command": ["x"], "url": "http://x"}}], "either a command or a url"),
        ([{"mcp": {"command": ["{folder}/x"]}}], "give the folder"),
        ([{"mcp": {"url": "http://x/mcp"}}], "not allowed"),
        ([{"mcp": {"command": ["x"]}, "function": {"name": "a"}}], "the server says what it offers"),
    ],
)
def test_a_mistake_is_named(entries: Any, says: str, write: Write) -> None:
    with pytest.raises(ConfigError, match=says):
        read_config(write(entries), "http://open.test http://tools.testing")


def test_a_pool_offers_what_its_tools_can_solve(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOOLS_CONFIG", str(write([CODE])))
    families = {task.id.split("/")[1] for task in ToolCallEnvironment.tasks()}
    assert families == {"count_primes", "power_mod", "digit_sum", "common_divisor"}
    monkeypatch.setenv("TOOLS_CONFIG", "/none.json")
    with pytest.raises(ConfigError, match=r"TOOLS_CONFIG=/none\.json cannot be read"):
        list(ToolCallEnvironment.tasks())


async def test_a_web_service(unused_world: World) -> None:
    """A real server: what it answers, its errors, and redirects that are not followed."""
    import asyncio

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        line = head.split(b"\r\n")[0].decode()
        if "moved" in line:
            writer.write(b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n")
        else:
            size = next(
                (
                    int(each.split(b":")[1])
                    for each in head.split(b"\r\n")
                    if each.lower().startswith(b"content-length")
                ),
                0,
            )
            body = f"{line} {(await reader.readexactly(size)).decode()}".encode()
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    tool = HttpTool("look", "", {}, f"{url}/w", "POST", 5.0)
    assert await tool.call({"city": "Rome"}, unused_world) == 'POST /w HTTP/1.1 {"city":"Rome"}'
    got = HttpTool("look", "", {}, f"{url}/w", "GET", 5.0)
    assert "GET /w?city=Rome&n=2 " in await got.call({"city": "Rome", "n": 2}, unused_world)
    kept = HttpTool("look", "", {}, f"{url}/w?key=k", "GET", 5.0)
    assert "GET /w?key=k&city=Rome " in await kept.call({"city": "Rome"}, unused_world)
    with pytest.raises(InvalidError, match="status 302"):
        await HttpTool("look", "", {}, f"{url}/moved", "GET", 5.0).call({}, unused_world)
    server.close()
    await server.wait_closed()
    with pytest.raises(InvalidError, match="does not answer: ConnectError"):
        await tool.call({"city": "Rome"}, unused_world)


def listing(monkeypatch: pytest.MonkeyPatch, page: Callable[[int], Sequence[str]], last: int | None) -> McpConnection:
    """Return a connection to a server whose page N has these tools, up to page ``last``."""
    pages = count()

    async def asked(*_: Any, **named: Any) -> Any:
        number = next(pages)
        tools = [SimpleNamespace(name=name, description="", input_schema={}) for name in page(number)]
        return SimpleNamespace(tools=tools, next_cursor=None if number == last else "more")

    connection = McpConnection("s", 1.0)
    monkeypatch.setattr(connection, "_asked", asked)
    return connection


@pytest.mark.parametrize(
    ("page", "last", "says"),
    [
        (lambda number: ["same"], None, "without an end: 50 pages have 1 of them"),
        (lambda number: [f"t{number}"], None, "without an end: 50 pages have 50 of them"),
        (lambda number: [], None, "without an end: 50 pages have 0 of them"),
        (lambda number: [f"t{each}" for each in range(201)], 0, "more than 200 tools"),
        (lambda number: [f"t{number}.{each}" for each in range(100)], 2, "more than 200 tools"),
    ],
)
async def test_a_list_of_tools_is_bounded(
    page: Callable[[int], Sequence[str]], last: int | None, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match=says):
        await listing(monkeypatch, page, last).tools(None, None)


async def test_a_list_within_the_bounds_is_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also with an empty page in the middle."""
    pages = [["a", "b"], [], ["c"]]
    found = await listing(monkeypatch, lambda number: pages[number], 2).tools(None, None)
    assert [tool.name for tool in found] == ["a", "b", "c"]


async def test_a_list_that_takes_too_long_is_an_error_of_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each page comes in time; all of them together do not."""
    monkeypatch.setattr(mcp, "LISTING_SECONDS", 0.05)

    async def asked(*_: Any, **named: Any) -> Any:
        await asyncio.Event().wait()

    connection = McpConnection("s", 60.0)
    monkeypatch.setattr(connection, "_asked", asked)
    with pytest.raises(InfraError, match="does not list its tools in time"):
        await connection.tools(None, None)


@pytest.fixture
def unused_world() -> World:
    async def start(room: Any) -> Any:
        raise AssertionError(room)

    return World({}, {}, start)


def test_a_long_text_keeps_its_ends() -> None:
    assert clipped("a" * 10, 10) == "a" * 10
    assert clipped("a" * 5 + "x" * 100 + "b" * 5, 10) == "aaaaa\n[100 characters are left out]\nbbbbb"
