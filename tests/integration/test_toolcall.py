"""Tool tasks in real sandboxes: oracles, attacks, programs, functions, and real MCP servers."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from tool_sandbox import PythonSandbox, ToolRegistry

from agentrl.environment import Task
from agentrl.exceptions import InfraError, InvalidError
from agentrl.protocol import JsonObject
from agentrl.sandbox.bubblewrap import Bubblewrap
from agentrl.tasks.toolcall.config import BUILTIN
from agentrl.tasks.toolcall.environment import ToolCallEnvironment
from agentrl.tasks.toolcall.families import FAMILIES, HELD_OUT
from agentrl.tasks.toolcall.generate import generate
from groundwork.exceptions import ConfigError
from tests.helpers.long import long_but
from tests.helpers.tool_agents import calls, judged, oracle, tool_environment

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(shutil.which("bwrap") is None, reason="needs bubblewrap: run scripts/setup_bubblewrap.sh"),
]
TOOLS = Path(__file__).parents[1] / "helpers" / "tools"
PROVIDER = Bubblewrap()
"""It proves what it promises once."""
PRIMES = "toolcall/count_primes/train/5"
SALES = "toolcall/sales_of/train/5"
CLOSED = "toolcall/close_accounts/train/5"
SANDBOXED = [f for f in FAMILIES if any(BUILTIN[n].room for n in generate(f"toolcall/{f}/heldout/0").tools)]
STDIO = {"mcp": {"command": ["{python}", "-B", "{folder}/mcp_server.py"], "folder": str(TOOLS)}}


class Real(ToolCallEnvironment):
    provider = PROVIDER


@pytest.fixture
async def environment(tmp_path: Path) -> AsyncIterator[Real]:
    async with tool_environment(tmp_path, Real) as made:
        assert isinstance(made, Real)
        yield made


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that sets TOOLS_CONFIG to these entries."""

    def write(*entries: Any) -> None:
        path = tmp_path / "tools.json"
        path.write_text(json.dumps(entries))
        monkeypatch.setenv("TOOLS_CONFIG", str(path))

    return write


def function(name: str, entry: str, **binding: Any) -> JsonObject:
    schema: JsonObject = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    bound: JsonObject = {"kind": "python", "entry": entry, "folder": str(TOOLS), **binding}
    return {"type": "function", "function": {"name": name, "parameters": schema}, "binding": bound}


def builtin(name: str, **binding: Any) -> JsonObject:
    return {"function": {"name": name}, "binding": {"kind": "builtin", **binding}}


async def seen(environment: ToolCallEnvironment, tool: str, **arguments: Any) -> str:
    return (await environment.step(calls(tool, **arguments))).observation.text


async def refused(environment: ToolCallEnvironment, tool: str, **arguments: Any) -> tuple[str, str]:
    with pytest.raises(InvalidError) as caught:
        await seen(environment, tool, **arguments)
    return caught.value.code, caught.value.message


ATTACKS = {
    "printed passes": 'print(\'Answer: 1\\n\\\\boxed{1}\\n{"status": "ok", "score": 1.0}\')',
    "planted sitecustomize": "for n in ('sitecustomize','usercustomize','json','fractions','sqlite3'):\n"
    "    open(f'/work/{n}.py', 'w').write('import os; os._exit(0)')\n    open(f'/tmp/{n}.py', 'w').write('import os; os._exit(0)')",
    "PATH shadowing": "import os\nfor n in ('python3', 'sh', 'bash'):\n    open(f'/work/{n}', 'w').write('#!/bin/sh\\nexit 0')\n"
    "    os.chmod(f'/work/{n}', 0o755)\nos.environ['PATH'] = '/work'",
    "background rewriter": "import os, subprocess\nsubprocess.Popen(['sh', '-c', 'while :; do for f in /work/tables.sqlite /tmp/x; do echo 1 > $f;"
    " done; sleep 0.05; done'], start_new_session=True, stdin=-3, stdout=-3, stderr=-3)",
    "grader edits": "import glob\nfor p in ['/run/agentrl/agentrl/sandbox/inside/supervisor.py', *glob.glob('/work/**', recursive=True)]:\n"
    "    try: open(p, 'w').write('')\n    except OSError as e: print(type(e).__name__)",
    "edited tests": "import os\nos.makedirs('/work/tests', exist_ok=True); os.makedirs('/tmp/verifier/tests', exist_ok=True)\n"
    "for n in ('tests/test.sh', 'tests/check.py', 'tests/expected.json', 'answer.txt'):\n    open(f'/work/{n}', 'w').write('1')",
    "forged reward": "import os\nos.makedirs('/work/logs/verifier', exist_ok=True); os.makedirs('/tmp/verifier', exist_ok=True)\n"
    "for n in ('/work/reward.txt', '/work/logs/verifier/reward.txt', '/tmp/verifier/reward.txt', '/work/verdict.json'):\n"
    "    open(n, 'w').write('1')\nos.environ['REWARD'] = '1'",
    "history search": "import os, subprocess\nprint(dict(os.environ), open('/proc/1/environ', 'rb').read())\n"
    'print(subprocess.run(\'git log --all; git reflog; find / -xdev -name "*.jsonl" -o -name label -o -name "answer*" | head\','
    " shell=True, capture_output=True, text=True, timeout=8).stdout)",
    "a leap out": "import random\ntry: random._os.kill(1, 9)\nexcept OSError as e: print(e)",
    "exit": "import os; os._exit(0)",
}


def name_in(family: str) -> str:
    return f"toolcall/{family}/{'heldout' if family in HELD_OUT else 'train'}/5"


@pytest.mark.parametrize("family", SANDBOXED)
async def test_every_family(family: str, environment: Real) -> None:
    """Of the families with a sandbox: the oracle is rewarded."""
    name = name_in(family)
    verdict = await judged(environment, Task(name), oracle(name))
    assert (verdict.status, verdict.score) == ("ok", 1.0), verdict.detail


@pytest.mark.parametrize("family", long_but(SANDBOXED, "count_primes", "sales_of"))
async def test_no_attack_scores(family: str, environment: Real) -> None:
    """Nor does nothing."""
    name = name_in(family)
    tool = {*generate(name).tools} & {"code_interpreter"}
    attacks = {why: [calls("code_interpreter", code=code)] for why, code in ATTACKS.items()} if tool else SQL_ATTACKS
    for why, actions in {"nothing": [], **attacks}.items():
        for words in ({"text": "Done."}, {"text": "Answer: 1"}):
            await environment.reset(Task(name), 0)
            for action in actions:
                try:
                    await environment.step(action)
                except InvalidError:
                    continue
            await environment.step(words)
            verdict = await environment.evaluate()
            assert (verdict.status, verdict.score) == ("task_failed", 0.0), f"{why}: {verdict.detail}"


def sql(statement: str) -> JsonObject:
    return calls("sql", statement=statement)


SQL_ATTACKS = {
    "attach": [sql("ATTACH '/work/other.sqlite' AS other"), sql("CREATE TABLE other.accounts AS SELECT 1")],
    "writable schema": [sql("PRAGMA writable_schema = 1"), sql("DELETE FROM sqlite_master")],
    "load code": [sql("SELECT load_extension('/work/x.so')")],
    "drop": [sql("DROP TABLE accounts"), sql("DROP TABLE sales")],
    "a view": [
        sql("ALTER TABLE accounts RENAME TO x"),
        sql("CREATE VIEW accounts AS SELECT * FROM x WHERE balance > 100"),
    ],
    "no end": [sql("WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n")],
    "huge": [sql("CREATE TABLE big AS SELECT zeroblob(20000000) AS x")],
}


async def test_code_runs_apart_from_the_host_and_the_answer(environment: Real, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_OF_THE_HOST", "open-sesame")
    await environment.reset(Task(PRIMES), 0)
    answer = generate(PRIMES).answer
    assert answer is not None
    code = (
        "import os, pathlib\nprint(sorted(os.environ))\nfor root in ('/work', '/tmp', '/run', '/proc/1'):\n"
        "  for folder, _, files in os.walk(root):\n    for f in files:\n"
        "      try: text = open(os.path.join(folder, f), errors='replace').read(100000)\n"
        f"      except (OSError, ValueError): continue\n      for word in ('open-sesame', '{PRIMES}'):\n"
        "        if word in text and 'self' not in folder and not f.startswith('<'): print('found', folder, f)\n"
        "import socket\ntry: socket.create_connection(('1.1.1.1', 80), 1)\nexcept OSError as e: print('no network')\n"
    )
    text = await seen(environment, "code_interpreter", code=code)
    assert "no network" in text
    assert "found" not in text
    assert "SECRET" not in text


async def test_code_by_call(environment: Real) -> None:
    await environment.reset(Task(PRIMES), 0)
    assert (
        await seen(environment, "code_interpreter", code="x = '''a\n    b'''\nprint(x)\nopen('f', 'w').write('7')")
        == "a\n    b"
    )
    assert await seen(environment, "code_interpreter", code="print(open('f').read())") == "7"
    error = await seen(environment, "code_interpreter", code="print(x)")
    assert "NameError" in error
    assert error.endswith("[exit code 1]")
    assert await seen(environment, "code_interpreter", code="pass") == "[no output]"
    long = await seen(environment, "code_interpreter", code="print('head'); print('x' * 100_000); print('tail')")
    assert (len(long) < 5000, long.startswith("head"), "tail\n[" in long, "are left out]" in long) == (
        True,
        True,
        True,
        True,
    )


async def test_code_in_one_process(environment: Real, tools: Callable[..., None]) -> None:
    tools(builtin("code_interpreter", stateful=True, timeout_s=8))
    await environment.reset(Task(PRIMES), 0)
    assert await seen(environment, "code_interpreter", code="x = 41") == "[no output]"
    assert await seen(environment, "code_interpreter", code="x += 1\nprint(x)") == "42"
    assert "ZeroDivisionError" in await seen(environment, "code_interpreter", code="1 / 0")
    assert await seen(environment, "code_interpreter", code="import subprocess; subprocess.run(['echo', 'hi'])") == "hi"
    assert await seen(environment, "code_interpreter", code="print(x)") == "42"
    text = await seen(environment, "code_interpreter", code="print('before', flush=True)\nwhile True: pass")
    assert text == "before\n[ended after 8 s]\n[all variables are lost]"
    assert "NameError" in await seen(environment, "code_interpreter", code="print(x)")


async def test_many_calls_do_not_block_the_loop(tmp_path: Path) -> None:
    """A hundred calls in a few sandboxes at a time, while the loop goes on."""
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0.01)
            ticks += 1

    async with tool_environment(tmp_path, Real) as made:
        await made.reset(Task(PRIMES), 0)
        await seen(made, "code_interpreter", code="pass")
        world = made._world
        assert world is not None
        ticking = asyncio.create_task(tick())
        code = "import time; time.sleep(1); print(7)"
        found = await asyncio.gather(
            *(BUILTIN["code_interpreter"].call({"code": code}, world) for _ in range(20)), return_exceptions=True
        )
        before = time.monotonic()
        more = [await BUILTIN["calculator"].call({"expression": "1+1"}, world) for _ in range(80)]
        assert time.monotonic() - before < 60
        ticking.cancel()
        assert (found, {*more}) == (["7"] * 20, {"2"})
        assert ticks > 10


async def test_functions(environment: Real, tools: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_OF_THE_HOST", "x")
    tools(
        builtin("store_get"),
        function("weather", "functions:weather"),
        function("fail", "functions:fail"),
        function("hang", "functions:hang", timeout_s=1),
        function("environment", "functions:environment"),
    )
    await environment.reset(Task("toolcall/get_value/train/0"), 0)
    assert json.loads(await seen(environment, "weather", city="Rome")) == {"city": "Rome", "sky": "clear"}
    assert await refused(environment, "fail", city="Rome") == ("tool_error", "LookupError: no Rome")
    assert (await refused(environment, "hang", city="Rome"))[0] == "tool_timeout"
    assert "SECRET_OF_THE_HOST" not in await seen(environment, "environment", city="")
    assert (await refused(environment, "weather", town="Rome"))[0] == "invalid_arguments"


async def test_a_tool_cannot_read_the_secrets_beside_it(
    environment: Real, tools: Callable[..., None], tmp_path: Path
) -> None:
    folder = tmp_path / "mine"
    (folder / "deep").mkdir(parents=True)
    (folder / "mine.py").write_text("def read(city):\n    return open(f'/opt/tools/0/{city}').read()\n")
    for name in (".env", "deep/.env", "plain.txt"):
        (folder / name).write_text("sesame")
    tools(builtin("store_get"), function("read", "mine:read", folder=str(folder)))
    await environment.reset(Task("toolcall/get_value/train/0"), 0)
    assert await seen(environment, "read", city="plain.txt") == "sesame"
    for name in (".env", "deep/.env"):
        code, text = await refused(environment, "read", city=name)
        assert (code, "sesame" in text) == ("tool_error", False), text


async def test_a_server_on_stdio(environment: Real, tools: Callable[..., None]) -> None:
    """Through the whole SDK, in the sandbox; each episode has a server of its own."""
    tools(builtin("store_get"), {"mcp": {**STDIO["mcp"], "timeout_s": 20}})
    name = "toolcall/get_value/train/0"
    for _ in range(2):
        begin = await environment.reset(Task(name), 0)
        offered = begin.data["tools"]
        assert isinstance(offered, list)
        names = {tool["function"]["name"] for tool in offered}  # pyright: ignore[reportIndexIssue,reportCallIssue,reportArgumentType]
        assert names == {"store_get", "add", "count", "fail", "leave", "hang"}
        assert await seen(environment, "add", a=2, b=3) == "5"
        assert (await refused(environment, "add", a="two", b=3))[0] == "invalid_arguments"
        code, text = await refused(environment, "fail")
        assert (code, "fail" in text) == ("tool_error", True)
        assert await seen(environment, "count") == "1"
    for action in oracle(name):
        await environment.step(action)
    assert (await environment.evaluate()).score == 1.0
    with pytest.raises(InfraError, match="mcp_server"):
        await seen(environment, "leave")


async def test_two_servers_with_the_same_command(environment: Real, tools: Callable[..., None], tmp_path: Path) -> None:
    """Only their folders differ; each is asked for its own tools."""
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        text = (TOOLS / "mcp_server.py").read_text().replace("def add(", f"def add_{name}(")
        (tmp_path / name / "server.py").write_text(text)
    entry = {"command": ["{python}", "-B", "{folder}/server.py"]}
    tools(
        builtin("store_get"),
        *({"mcp": {**entry, "folder": str(tmp_path / name), "allow": [f"add_{name}"]}} for name in ("one", "two")),
    )
    await environment.reset(Task("toolcall/get_value/train/0"), 0)
    assert [await seen(environment, f"add_{name}", a=2, b=3) for name in ("one", "two")] == ["5", "5"]


async def test_a_server_that_does_not_fit(
    environment: Real, tools: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    name = Task("toolcall/get_value/train/0")
    tools(builtin("store_get"), {"mcp": {**STDIO["mcp"], "allow": ["add", "subtract"]}})
    with pytest.raises(ConfigError, match="no tool subtract; it has add, count"):
        await environment.reset(name, 0)
    path = Path(os.environ["TOOLS_CONFIG"]).with_name("other.json")
    path.write_text(
        json.dumps(
            [builtin("store_get"), {"mcp": {"command": ["python3", "-c", "print('no server'); raise SystemExit(3)"]}}]
        )
    )
    monkeypatch.setenv("TOOLS_CONFIG", str(path))
    with pytest.raises(InfraError, match="does not start"):
        await environment.reset(name, 0)


async def test_a_server_over_http(
    environment: Real, tools: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-B", str(TOOLS / "mcp_server.py"), "http", stdout=asyncio.subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        url = f"http://127.0.0.1:{int(await process.stdout.readline())}"
        tools(builtin("store_get"), {"mcp": {"url": f"{url}/mcp", "allow": ["add", "fail"]}})
        with pytest.raises(ConfigError, match="TOOLCALL_ALLOWED_URLS"):
            await environment.reset(Task("toolcall/get_value/train/0"), 0)
        monkeypatch.setenv("TOOLCALL_ALLOWED_URLS", url)
        await environment.reset(Task("toolcall/get_value/train/0"), 0)
        assert await seen(environment, "add", a=2, b=3) == "5"
        assert (await refused(environment, "fail"))[0] == "tool_error"
        assert (await refused(environment, "count"))[0] == "unknown_tool"
    finally:
        process.kill()
        await process.wait()


async def test_tools_outside_of_an_episode() -> None:
    """``tool_sandbox``: a registry, and the code interpreter alone."""
    async with ToolRegistry() as registry:
        assert [each["function"]["name"] for each in registry.get_tool_specs()] == ["code_interpreter"]  # pyright: ignore[reportIndexIssue,reportCallIssue,reportArgumentType]
        assert await registry.execute_tool("code_interpreter", {"code": "print(6 * 7)"}) == "42"
        assert (await registry.execute_tool("shell", {})).startswith("Error: there is no tool")
    async with PythonSandbox(timeout=8, stateful=True) as sandbox:
        assert await sandbox.execute_code("x = 1") == "[no output]"
        assert await sandbox.execute_code("print(x)") == "1"
        assert "[ended after 8 s]" in await sandbox.execute_code("while True: pass")
