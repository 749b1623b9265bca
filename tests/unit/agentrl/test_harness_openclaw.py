"""What OpenClaw is started with; the program itself runs in integration tests, and `test_harness_programs` has what all share."""

from __future__ import annotations

import json

import pytest

from agentrl.harness.openclaw import PLACE, OpenClaw, configuration
from agentrl.harness.program import MAX_REPLY
from agentrl.sandbox.interface import HOME
from tests.helpers.told_sandbox import ASSIGNMENT, KEY, TELL_CONTEXT, Told, result


async def test_a_run_is_told_the_task_and_the_model() -> None:
    sandbox = Told([TELL_CONTEXT, result('{"ok": true}')])
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


@pytest.mark.parametrize(("window", "most"), [(8000, 2000), (200_000, MAX_REPLY)])
def test_the_configuration_names_one_model_and_its_bounds(window: int, most: int) -> None:
    made = configuration(ASSIGNMENT, window)
    ((name, provider),) = made["models"]["providers"].items()
    (model,) = provider["models"]
    assert made["agents"]["defaults"]["model"] == {"primary": f"{name}/org/policy"}
    assert (provider["baseUrl"], provider["apiKey"]) == (ASSIGNMENT.base_url, KEY)
    assert (model["id"], model["contextWindow"], model["maxTokens"]) == ("org/policy", window, most)
