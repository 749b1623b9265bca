"""Environments of screen tasks in tests, and agents that act in them."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

import pytest

from agentrl.environment import Environment
from agentrl.exceptions import InfraError
from agentrl.protocol import JsonObject
from agentrl.tasks.gui.browser.walled import find_chromium
from agentrl.tasks.gui.desktop.screen import missing
from tests.helpers.sandboxes import processes_that_end

Made = TypeVar("Made", bound=Environment)


def _missing() -> str | None:
    """Return what a walled browser lacks on this machine."""
    if shutil.which("bwrap") is None:
        return "needs bubblewrap: run scripts/setup_bubblewrap.sh"
    try:
        find_chromium()
    except InfraError as error:
        return error.message
    return None if shutil.which("chromedriver") else "needs chromedriver: run scripts/setup_chromium.sh"


def _no_desktop() -> str | None:
    """Return what a desktop lacks on this machine."""
    if shutil.which("bwrap") is None:
        return "needs bubblewrap: run scripts/setup_bubblewrap.sh"
    return missing()


needs_desktop = pytest.mark.skipif(_no_desktop() is not None, reason=_no_desktop() or "")
needs_browser = pytest.mark.skipif(_missing() is not None, reason=_missing() or "")


@asynccontextmanager
async def gui_environment(folder: Path, kind: type[Made]) -> AsyncIterator[Made]:
    """Make an environment; with the block it ends, and leaves no process."""
    with ThreadPoolExecutor(2) as threads:
        async with processes_that_end(folder) as processes:
            environment = kind(processes)
            environment.lend_threads(threads)
            try:
                yield environment
            finally:
                await environment.close()


def use(action: str, **arguments: object) -> JsonObject:
    """Return a call of ``computer_use``."""
    return {"tool": "computer_use", "arguments": {"action": action, **arguments}}  # type: ignore[dict-item]
