"""The pages that explain a path name the modules that are really passed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from benchmarks import paths
from benchmarks.path_parts.recorder import EVENT_LOOP, Recorder, module_of
from openclaw.messages.text import content_text

NEEDS_BWRAP = pytest.mark.skipif(shutil.which("bwrap") is None, reason="run scripts/setup_bubblewrap.sh")


@pytest.mark.parametrize("path", ["request", "sample", pytest.param("episode", marks=NEEDS_BWRAP), "update"])
def test_the_page_of_a_path_has_the_modules_that_are_passed(path: str) -> None:
    entries, explained = paths.trace(path), paths.modules_of_page(path)
    passed = {entry.module for entry in entries}
    assert len(explained) == len(set(explained)), "a module is on the page twice"
    page = f"instructions/{paths.PAGES[path]}"
    assert passed - set(explained) == set(), f"{page} lacks these; add what each decides"
    assert set(explained) - passed == set(), f"{page} names these, which the {path} no longer passes"
    if path == "update":
        assert "RolloutManager.on_weights_live" in {entry.function for entry in entries}


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
