"""Pages of MiniWoB++ as text, for the traces of the screen agent: stored once, because a browser takes long.

`python -m lab.tiny_learning.screens` renders them in the walled browser and writes the file again. Guarantees: what is stored is
what the environment shows (the tests compare both), and each stored click was judged to solve its task.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from agentrl.tasks.gui.miniwob.pages import task_name
from agentrl.tasks.names import Split
from lab.tiny_learning.traces import FIRST_NUMBER

FILE = Path(__file__).with_name("screens.json.gz")
PAGES: Mapping[str, Mapping[Split, int]] = {
    "click_tab": {"train": 250, "heldout": 40},
    "click_widget": {"train": 500, "heldout": 60},
    "click_test_2": {"train": 10, "heldout": 10},
    "focus_text_2": {"train": 30, "heldout": 15},
}
"""Tasks of each family and split that are looked at, from `FIRST_NUMBER` up; the pages of some families differ little as text."""
BEGIN = """(() => {
  document.activeElement.blur();
  Math.seedrandom(%s);
  core.startEpisodeReal();
  core.hideDisplay();
  return core.getUtterance();
})()"""
"""Starts another task in a page that has one, which is faster than to open it again."""


@dataclass(frozen=True)
class StoredScreen:
    """A task's page.

    Attributes:
        instruction: of the task.
        element: number of the element whose click solves it.
        text: of the page.
        solved: text of the page after this click.
    """

    instruction: str
    element: int
    text: str
    solved: str


def screen_of(task: str) -> StoredScreen:
    """Return the page of a stored task."""
    return _stored()[task]


@cache
def names_of(family: str, split: str) -> list[str]:
    """Return the names of the stored tasks, such as ``miniwob/click_tab/train/1000``."""
    return [name for name in _stored() if name.startswith(f"miniwob/{family}/{split}/")]


@cache
def _stored() -> dict[str, StoredScreen]:
    found: dict[str, list[Any]] = json.loads(gzip.decompress(FILE.read_bytes()))
    return {name: StoredScreen(*fields) for name, fields in found.items()}


async def render(names: Sequence[str]) -> dict[str, StoredScreen]:
    """Return the pages of a family's tasks, without those that have to be scrolled or whose element is covered."""
    from agentrl.processes import Processes, ProcessLedger
    from agentrl.sandbox.bubblewrap import Bubblewrap
    from agentrl.sandbox.interface import Mount
    from agentrl.tasks.gui.actions import Action
    from agentrl.tasks.gui.browser.playwright_page import PlaywrightPage
    from agentrl.tasks.gui.computer import BrowserComputer
    from agentrl.tasks.gui.dom import Element
    from agentrl.tasks.gui.miniwob import episode
    from agentrl.tasks.gui.miniwob.oracles import ORACLES
    from agentrl.tasks.gui.miniwob.pages import INSIDE, html_folder, page_url, parse_name

    found: dict[str, StoredScreen] = {}
    with tempfile.TemporaryDirectory() as folder:
        processes = Processes(ProcessLedger(Path(folder) / "processes.sqlite"))
        page = await PlaywrightPage.open(Bubblewrap(), processes, [Mount(html_folder(), INSIDE)])
        try:
            computer = BrowserComputer(page, episode.SCREEN, episode.HIDDEN)
            family, seed = parse_name(names[0])
            url = page_url(family)
            await episode.start(page, url, seed)
            for name in names:
                _, seed = parse_name(name)
                instruction = await page.evaluate(BEGIN % json.dumps(seed))
                text = (await computer.look(png=False, text=True)).text
                try:
                    ((_, target),) = ORACLES[family](instruction, computer.elements)
                except (LookupError, RuntimeError):  # the element is below the screen
                    continue
                assert isinstance(target, Element)
                number = computer.elements.index(target) + 1
                await computer.act(Action("left_click", element=number), None, None)
                solved = (await computer.look(png=False, text=True)).text
                if (await episode.read(page, url)).verdict().score == 1:
                    found[name] = StoredScreen(instruction, number, text, solved)
        finally:
            await page.close()
            await processes.end()
    print(f"{len(found)} of {len(names)} pages, such as {names[0]}", flush=True)
    return found


async def render_all() -> dict[str, StoredScreen]:
    """Return the pages of `PAGES`."""
    names = [
        [task_name(family, split, FIRST_NUMBER + number) for split, count in counts.items() for number in range(count)]
        for family, counts in PAGES.items()
    ]
    return {name: screen for found in await asyncio.gather(*map(render, names)) for name, screen in found.items()}


def main() -> None:
    """Render all pages and write the file."""
    pages = {name: astuple(screen) for name, screen in asyncio.run(render_all()).items()}
    FILE.write_bytes(gzip.compress(json.dumps(pages, separators=(",", ":")).encode(), 9, mtime=0))
    print(f"{FILE}: {FILE.stat().st_size} bytes")


if __name__ == "__main__":
    main()
