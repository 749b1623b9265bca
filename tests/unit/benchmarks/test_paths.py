"""The pages that explain a path name the modules that are really passed; the ways of an episode and of an update are traced, too."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from benchmarks import paths
from benchmarks.path_parts.recorder import EVENT_LOOP, Recorder, module_of
from openclaw.messages.text import content_text


@pytest.mark.parametrize("path", paths.EXPLAINED)
def test_the_page_of_a_path_has_the_modules_that_are_passed(path: str) -> None:
    passed, explained = {entry.module for entry in paths.trace(path)}, paths.modules_of_page(path)
    assert len(explained) == len(set(explained)), "a module is on the page twice"
    page = f"instructions/path_of_a_{path}.md"
    assert passed - set(explained) == set(), f"{page} lacks these; add what each decides"
    assert set(explained) - passed == set(), f"{page} names these, which the {path} no longer passes"


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="needs bubblewrap: run scripts/setup_bubblewrap.sh")
def test_an_episode_is_traced_from_its_task_over_pool_and_sandbox_to_its_rewards() -> None:
    ways = ["generate", "agentrl.leases.pool", "agentrl.sandbox.bubblewrap", "slime.rollout.rewards"]
    passed = [entry.module for entry in paths.trace("episode")]
    assert sorted(ways, key=passed.index) == ways


def test_an_update_is_traced_from_its_step_over_the_gate_to_weights_that_are_live() -> None:
    ways = [
        "slime.updates.decisions",
        "openclaw.gate.plugin",
        "slime.backends.trainer.probing",
        "slime.weight_sync.disk",
    ]
    passed = paths.trace("update")
    modules = [entry.module for entry in passed]
    assert sorted(ways, key=modules.index) == ways
    assert "RolloutManager.on_weights_live" in {entry.function for entry in passed}


def test_a_function_is_recorded_once_and_only_while_recording() -> None:
    recorder = Recorder()
    recorder.install()
    try:
        content_text("before")
        with recorder.recording():
            content_text("once")
            content_text("twice")
    finally:
        recorder.remove()
    [entry] = recorder.entries
    assert (entry.caller, entry.module, entry.function) == (EVENT_LOOP, "groundwork.chat_messages", "content_text")


def test_only_files_of_the_product_have_a_module(repository: Path) -> None:
    assert module_of(str(repository / "slime" / "slime" / "args" / "__init__.py")) == "slime.args"
    assert module_of(str(repository / "openclaw-combine" / "combine_loss.py")) == "combine_loss"
    assert module_of(str(repository / "tests" / "conftest.py")) is None
    assert module_of("/somewhere/else.py") is None
