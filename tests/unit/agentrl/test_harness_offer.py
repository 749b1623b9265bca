"""A pool offers the agent programs that its operator lists, and says before it listens what does not fit."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentrl import pool
from agentrl.environment import Environment
from agentrl.harness.environment import HarnessEnvironment
from agentrl.harness.interface import GATEWAY_URL
from agentrl.harness.offer import NAMES, load_harness, offer_harnesses
from agentrl.tasks.shell.environment import ShellEnvironment
from groundwork.exceptions import ConfigError
from tests.helpers.scripted_harness import ScriptedHarness

SCRIPTED = "tests.helpers.scripted_harness.ScriptedHarness"
MISSING = "tests.helpers.scripted_harness.Missing"
RUNNING = "agentrl.harness.environment.HarnessEnvironment"
SHELL = "agentrl.tasks.shell.environment.ShellEnvironment"


class Other(ScriptedHarness):
    def __init__(self) -> None:
        super().__init__(name="other")


class Broken:
    name = "broken"


class NotMade:
    def __init__(self, needed: int) -> None:
        self.needed = needed


HERE = __name__


def kinds(*bases: type[Environment]) -> list[type[Environment]]:
    """Return classes of a test's own, so that nothing of it stays."""
    return [type("Tried", (base,), {}) for base in bases]


def test_what_is_listed_is_offered_and_nothing_else() -> None:
    running, plain = kinds(HarnessEnvironment, ShellEnvironment)
    offer_harnesses([running, plain], [SCRIPTED, f"{HERE}.Other", SCRIPTED], "http://10.0.0.1:31000/")
    assert issubclass(running, HarnessEnvironment)
    assert sorted(running.harnesses) == ["other", "scripted"]
    assert running.gateway_url == "http://10.0.0.1:31000/"
    assert not hasattr(plain, "harnesses")
    assert HarnessEnvironment.harnesses == {}
    assert HarnessEnvironment.gateway_url == GATEWAY_URL


def test_environments_without_agent_programs_are_left_alone() -> None:
    offer_harnesses(kinds(ShellEnvironment), [], "no address")


@pytest.mark.parametrize(
    ("bases", "names", "url", "wrong"),
    [
        ([ShellEnvironment], [SCRIPTED], GATEWAY_URL, f"no environment runs agent programs; add --env {RUNNING}"),
        ([HarnessEnvironment], [], GATEWAY_URL, "say which with --harness"),
        ([HarnessEnvironment], [MISSING], GATEWAY_URL, "run scripts/setup_it.sh"),
        ([HarnessEnvironment], ["nothing"], GATEWAY_URL, "or MODULE.CLASS of your own"),
        ([HarnessEnvironment], ["nowhere.Class"], GATEWAY_URL, "No module named 'nowhere'"),
        ([HarnessEnvironment], [f"{HERE}.Nothing"], GATEWAY_URL, "no attribute 'Nothing'"),
        ([HarnessEnvironment], [f"{HERE}.Broken"], GATEWAY_URL, "what agentrl.harness.interface.Harness asks for"),
        ([HarnessEnvironment], [f"{HERE}.HERE"], GATEWAY_URL, "what agentrl.harness.interface.Harness asks for"),
        ([HarnessEnvironment], [f"{HERE}.NotMade"], GATEWAY_URL, "needed"),
        ([HarnessEnvironment], [SCRIPTED, MISSING], GATEWAY_URL, "another program is named 'scripted'"),
        *(
            ([HarnessEnvironment], [SCRIPTED], url, "is not an address of a gateway")
            for url in ("", "127.0.0.1:30000", "ftp://x", "http://x/v1", "http://a:b@x", "http://x?a=b", "http://x:a")
        ),
    ],
)
def test_what_does_not_fit_is_named(bases: list[type[Environment]], names: list[str], url: str, wrong: str) -> None:
    with pytest.raises(ConfigError, match=wrong.replace(".", r"\.")):
        offer_harnesses(kinds(*bases), names, url)


@pytest.mark.parametrize("name", NAMES)
def test_the_project_s_own_programs_load(name: str) -> None:
    assert load_harness(name).name == name


@pytest.mark.parametrize(
    ("words", "wrong"),
    [
        (["--env", RUNNING], "HarnessEnvironment runs agent programs; say which with --harness"),
        (["--env", RUNNING, "--harness", MISSING], "run scripts/setup_it.sh"),
        (["--env", SHELL, "--harness", SCRIPTED], "no environment runs agent programs"),
        (["--env", RUNNING, "--harness", SCRIPTED, "--gateway-url", "x"], "--gateway-url x is not an address"),
        (["--env", RUNNING, "--harness", SCRIPTED, "--sandbox", "e2b"], "choose bubblewrap, docker or podman"),
    ],
)
def test_the_pool_s_command_says_so_before_it_listens(
    words: list[str], wrong: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "listen", None)
    assert pool.main([*words, "--slots", "1", "--ledger", str(tmp_path / "pool.sqlite")]) == 2
    said = capsys.readouterr()
    assert wrong in said.err
    assert said.err.count("\n") == 1
