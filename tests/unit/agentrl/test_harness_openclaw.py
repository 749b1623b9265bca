"""What OpenClaw is started with, and which failures are the infrastructure's; the program itself runs in integration tests."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from agentrl.exceptions import InfraError
from agentrl.harness import openclaw
from agentrl.harness.interface import Assignment
from agentrl.harness.offer import load_harness
from agentrl.harness.openclaw import MAX_REPLY, PLACE, OpenClaw, configuration
from agentrl.sandbox.interface import HOME, ExecResult, Mount
from groundwork.exceptions import ConfigError

KEY = "sk-episode-0123456789"
ASSIGNMENT = Assignment("Write “hello”.", "http://127.0.0.1:30000/v1", KEY, "org/policy", 50.0)


def result(output: str, exit_code: int | None = 0) -> ExecResult:
    """Return what a program did."""
    return ExecResult(exit_code, output.encode(), 0, exit_code is None, 1.0)


@dataclass
class Told:
    """A sandbox that answers each command with the next result, and writes down what it is told."""

    answers: list[ExecResult]
    files: dict[str, tuple[bytes, int]] = field(default_factory=dict)
    commands: list[tuple[Sequence[str], float, Mapping[str, str]]] = field(default_factory=list)

    async def execute(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
        cwd: str = HOME,
        most_output: int = 65_536,
    ) -> ExecResult:
        """Return the next result."""
        self.commands.append((argv, timeout_s, env or {}))
        return self.answers.pop(0)

    async def write_file(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        """Note a file."""
        self.files[path] = (data, mode)

    async def read_file(self, path: str, *, most_bytes: int = 1 << 20) -> bytes:
        """Return a noted file."""
        return self.files[path][0]

    async def stop(self) -> None:
        """Do nothing."""


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Pretend that OpenClaw is installed."""
    folder = tmp_path / "node_modules"
    for name in (openclaw.NODE, openclaw.OPENCLAW):
        (folder / name).parent.mkdir(parents=True)
        (folder / name).touch()
    monkeypatch.setattr(openclaw, "PACKAGES", folder)
    return folder


def test_its_packages_are_mounted(packages: Path) -> None:
    assert OpenClaw().mounts() == [Mount(packages, "/opt/openclaw/node_modules")]


@pytest.mark.parametrize("missing", [openclaw.NODE, openclaw.OPENCLAW])
def test_without_packages_it_says_how_to_get_them(packages: Path, missing: str) -> None:
    (packages / missing).unlink()
    with pytest.raises(ConfigError, match=rf"no .*{missing}; run bash scripts/setup_node.sh openclaw"):
        OpenClaw().mounts()


def test_a_pool_offers_it_by_name() -> None:
    assert isinstance(load_harness("openclaw"), OpenClaw)


async def test_a_run_is_told_the_task_and_the_model() -> None:
    sandbox = Told([result("20000\n"), result('{"ok": true}')])
    assert (await OpenClaw().run(sandbox, ASSIGNMENT)).output == b'{"ok": true}'
    (_, _, asking), (argv, limit, env) = sandbox.commands
    assert asking == {"URL": ASSIGNMENT.base_url, "KEY": KEY}
    assert 0 < limit <= ASSIGNMENT.timeout_s
    assert KEY not in f"{argv}{env}"
    assert argv[argv.index("--cwd") + 1] == HOME
    config, task = argv[argv.index("--config") + 1], argv[argv.index("--message-file") + 1]
    assert sandbox.files[config] == (json.dumps(configuration(ASSIGNMENT, 20000)).encode(), 0o600)
    assert sandbox.files[task][0].decode() == ASSIGNMENT.instruction
    assert all(path.startswith(f"{PLACE}/") for path in sandbox.files)
    assert PLACE.startswith("/tmp/")


async def test_the_time_limit_is_the_sandbox_s(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter((100.0, 120.0))
    monkeypatch.setattr(openclaw, "monotonic", lambda: next(times))
    sandbox = Told([result("20000"), result("…", None)])
    assert (await OpenClaw().run(sandbox, ASSIGNMENT)).timed_out
    argv, limit, _ = sandbox.commands[1]
    assert limit == 30.0
    assert argv[argv.index("--timeout") + 1] == "0"


@pytest.mark.parametrize(("window", "most"), [(8000, 2000), (200_000, MAX_REPLY)])
def test_the_configuration_names_one_model_and_its_bounds(window: int, most: int) -> None:
    made = configuration(ASSIGNMENT, window)
    ((name, provider),) = made["models"]["providers"].items()
    (model,) = provider["models"]
    assert made["agents"]["defaults"]["model"] == {"primary": f"{name}/org/policy"}
    assert (provider["baseUrl"], provider["apiKey"]) == (ASSIGNMENT.base_url, KEY)
    assert (model["id"], model["contextWindow"], model["maxTokens"]) == ("org/policy", window, most)


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        ([result("node: libstdc++.so.6: cannot open", 127)], "Node does not start .*libstdc"),
        ([result("", None)], "does not tell its context"),
        ([result("status 401: no such key", 1)], "does not tell its context .*: status 401: no such key"),
        ([result("20000\n", -9)], "does not tell its context"),
        ([result("undefined\n")], "does not tell its context .*: undefined"),
        ([result("20000"), result("bad interpreter", 126)], "Node does not start .*bad interpreter"),
        ([result("20000"), result("#\n# Failed to reserve virtual memory for CodeRange\n", -5)], "control group"),
    ],
)
async def test_what_is_no_fault_of_the_agent(answers: list[ExecResult], message: str) -> None:
    with pytest.raises(InfraError, match=message):
        await OpenClaw().run(Told(answers), ASSIGNMENT)


async def test_an_error_tells_no_key() -> None:
    with pytest.raises(InfraError) as caught:
        await OpenClaw().run(Told([result(f"refused {KEY}", 1)]), ASSIGNMENT)
    assert KEY not in str(caught.value)
    assert "refused [api key]" in str(caught.value)


@pytest.mark.parametrize(
    ("code", "output"),
    [(1, "Failed to reserve virtual memory"), (134, ""), (-5, "Failed to reserve a table"), (-9, "")],
)
async def test_a_program_that_fails_is_left_to_the_verifier(code: int, output: str) -> None:
    assert (await OpenClaw().run(Told([result("20000"), result(output, code)]), ASSIGNMENT)).exit_code == code
