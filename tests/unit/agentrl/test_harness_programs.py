"""What all agent programs share: they are offered if they are installed, told the task and the model, and end or are ended."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

from agentrl.exceptions import InfraError
from agentrl.harness import program
from agentrl.harness.offer import NAMES, load_harness
from agentrl.harness.program import MAX_REPLY, Program
from agentrl.sandbox.interface import ExecResult, Mount
from groundwork.exceptions import ConfigError
from tests.helpers.told_sandbox import ASSIGNMENT, KEY, TELL_CONTEXT, Told, result

ASKING = tuple(name for name in NAMES if name != "mini-swe-agent")
"""Those that are told how long the model's context is."""


def loaded(name: str) -> Program:
    found = load_harness(name)
    assert isinstance(found, Program)
    return found


async def started(name: str, ended: ExecResult | None = None) -> Told:
    """Run a program; return the sandbox with what it was told."""
    sandbox = Told([*([TELL_CONTEXT] if name in ASKING else []), ended or result("Done.")])
    assert (await loaded(name).run(sandbox, ASSIGNMENT)).output == (ended or result("Done.")).output
    return sandbox


@pytest.mark.parametrize("name", NAMES)
def test_it_is_offered_only_if_it_is_installed(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = loaded(name)
    script, *words = found.setup
    check = tmp_path / script
    check.parent.mkdir()
    monkeypatch.setattr(program, "ROOT", tmp_path)
    for status in (1, 0):
        check.write_text(f'#!/bin/bash\n[ "$*" = "{" ".join(["--check", *words])}" ] && exit {status}\nexit 7\n')
        check.chmod(0o755)
        if status:
            with pytest.raises(ConfigError, match=f"{name} is not installed; run bash {script}"):
                found.mounts()
    assert found.mounts() == [Mount(found.installed, found.inside)]
    check.unlink()
    assert found.mounts(), "a later run starts no process to look again"


@pytest.mark.parametrize("name", NAMES)
def test_its_script_knows_it(name: str) -> None:
    script, *words = loaded(name).setup
    usage = (program.ROOT / script).read_text()
    assert all(f"  {word} " in usage for word in words)


@pytest.mark.parametrize("name", NAMES)
async def test_it_is_told_the_task_and_the_model(name: str) -> None:
    sandbox = await started(name)
    argv, limit, env = sandbox.commands[-1]
    assert 0 < limit <= ASSIGNMENT.timeout_s
    assert argv[0].startswith(f"{loaded(name).inside}/")
    assert KEY not in "".join(argv)
    files = {path: data.decode() for path, (data, _) in sandbox.files.items()}
    assert all(path.startswith("/tmp/") for path in files)
    assert {mode for _, mode in sandbox.files.values()} <= {0o600}
    said = "\n".join([*argv, *env.values(), *files.values()])
    instruction = ASSIGNMENT.instruction
    assert instruction in said or json.dumps(instruction) in said
    for told in (ASSIGNMENT.base_url.removesuffix("/v1"), KEY, ASSIGNMENT.model):
        assert told in said


@pytest.mark.parametrize("name", ["claude-code", "codex", "opencode", "openclaw"])
async def test_it_is_told_how_long_the_context_is(name: str) -> None:
    sandbox = await started(name)
    asking = sandbox.commands[0]
    assert asking[2] == {"URL": ASSIGNMENT.base_url, "KEY": KEY}
    said = "\n".join([*sandbox.commands[-1][2].values(), *(data.decode() for data, _ in sandbox.files.values())])
    assert "20000" in said


async def test_codex_reads_its_settings() -> None:
    sandbox = await started("codex")
    ((data, _),) = sandbox.files.values()
    settings = tomllib.loads(data.decode())
    assert settings["model_providers"]["episode"]["base_url"] == ASSIGNMENT.base_url
    assert settings["model_auto_compact_token_limit"] == 15_000
    assert not settings["analytics"]["enabled"]


async def test_the_time_limit_is_the_sandbox_s(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter((100.0, 120.0))
    monkeypatch.setattr(program, "monotonic", lambda: next(times))
    sandbox = await started("openclaw", result("…", None))
    assert sandbox.commands[-1][1] == 30.0


@pytest.mark.parametrize(("window", "most"), [(8000, 2000), (200_000, MAX_REPLY)])
def test_a_reply_leaves_room_for_the_prompt(window: int, most: int) -> None:
    assert program.longest_reply(window) == most


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        ([result("python3: no such file", 127)], "does not tell its context .*no such file"),
        ([result("", None)], "does not tell its context"),
        ([result("status 401: no such key", 1)], "does not tell its context .*: status 401: no such key"),
        ([result("20000\n", -9)], "does not tell its context"),
        ([result("undefined\n")], "does not tell its context .*: undefined"),
        ([result("20000"), result("bad interpreter", 126)], "opencode does not start .*bad interpreter"),
        ([result("20000"), result("#\n# Failed to reserve virtual memory for CodeRange\n", -5)], "control group"),
    ],
)
async def test_what_is_no_fault_of_the_agent(answers: list[ExecResult], message: str) -> None:
    with pytest.raises(InfraError, match=message):
        await loaded("opencode").run(Told(answers), ASSIGNMENT)


async def test_an_error_tells_no_key() -> None:
    with pytest.raises(InfraError) as caught:
        await loaded("openclaw").run(Told([result(f"refused {KEY}", 1)]), ASSIGNMENT)
    assert KEY not in str(caught.value)
    assert "refused [api key]" in str(caught.value)


@pytest.mark.parametrize(
    ("code", "output"),
    [(1, "Failed to reserve virtual memory"), (134, ""), (-5, "Failed to reserve a table"), (-9, "")],
)
async def test_a_program_that_fails_is_left_to_the_verifier(code: int, output: str) -> None:
    assert (await loaded("openclaw").run(Told([result("20000"), result(output, code)]), ASSIGNMENT)).exit_code == code
