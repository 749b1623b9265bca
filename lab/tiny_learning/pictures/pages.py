"""Screenshots of MiniWoB++ for the warm start, at the model's size: rendered once in the walled browser, and kept beside the model.

`python -m lab.tiny_learning.pictures.pages` renders the pages of `PAGES` that its folder lacks. Guarantees: a picture has the
pixels that the agent loop gives the model (`groundwork.images.at_model_size`); its target is what the family's oracle clicks.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import itertools
import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy
from numpy.typing import NDArray

from agentrl.tasks.gui.dom import Element
from agentrl.tasks.gui.miniwob.episode import SCREEN
from agentrl.tasks.gui.miniwob.oracles import COLORS, ORACLES
from agentrl.tasks.gui.miniwob.pages import task_name
from agentrl.tasks.names import Split
from groundwork.images import at_model_size
from lab.tiny_learning.pictures.model import IMAGES
from lab.tiny_learning.screens import BEGIN
from lab.tiny_learning.traces import FIRST_NUMBER

FAMILIES = ("click_test_2", "click_dialog", "click_color", "focus_text")
PAGES: Mapping[Split, int] = {"train": 1100, "heldout": 100}
"""Tasks of each family that are rendered, from `FIRST_NUMBER` up."""
KINDS = [*COLORS, "button ONE", "button TWO", "close", "text"]
"""What the eyes learn to tell apart beside the clicks."""
RENDERED = Path(__file__).resolve().parents[3] / ".cache" / "tiny_learning" / "pages"
PROCESSOR = SimpleNamespace(image_processor=SimpleNamespace(**IMAGES))
Pixels = NDArray[numpy.uint8]


@dataclass(frozen=True)
class Page:
    """What is known of a task's screen.

    Attributes:
        name: of the task.
        instruction: of the task.
        point: middle of the target, in pixels of the page.
        box: of the target: left, top, width and height.
        things: kind and middle of what is on the page.
    """

    name: str
    instruction: str
    point: tuple[float, float]
    box: tuple[float, float, float, float]
    things: Sequence[tuple[str, float, float]]

    @property
    def family(self) -> str:
        """The task's family."""
        return self.name.split("/")[1]


def described(name: str, instruction: str, elements: Sequence[Element]) -> Page:
    """Return what is known of a screen.

    Raises:
        LookupError, RuntimeError: no element is the target.
    """
    ((_, target),) = ORACLES[name.split("/")[1]](instruction, elements)
    assert isinstance(target, Element)
    things = [(kind, each.x, each.y) for each in elements if (kind := kind_of(each))]
    return Page(name, instruction, (target.x, target.y), target.box, things)


def kind_of(element: Element) -> str | None:
    """Return what the eyes call an element."""
    if "titlebar-close" in element.hint:
        return "close"
    if element.tag == "input(text)":
        return "text"
    if element.tag == "button" and f"button {element.text}" in KINDS:
        return f"button {element.text}"
    if element.hint == "color":
        return next((name for name, color in COLORS.items() if element.color == color), None)
    return None


def pixels(png: bytes) -> Pixels:
    """Return a screenshot [rows, columns, 3] at the model's size."""
    from PIL import Image

    return numpy.asarray(at_model_size(Image.open(io.BytesIO(png)), PROCESSOR))


@dataclass(frozen=True)
class Screens:
    """The pages of a family and split, and their pictures [pages, rows, columns, 3]."""

    pages: Sequence[Page]
    pictures: Pixels

    def save(self, file: Path) -> None:
        """Write a file."""
        text = json.dumps([asdict(page) for page in self.pages])
        partial = file.with_suffix(".partial.npz")
        numpy.savez_compressed(partial, pages=numpy.array(text), pictures=self.pictures)
        partial.rename(file)

    @classmethod
    def load(cls, file: Path) -> Screens:
        """Read a file."""
        found: Any = numpy.load(file)
        pages = [Page(**fields) for fields in json.loads(str(found["pages"]))]
        return cls(pages, found["pictures"])


@cache
def screens_of(folder: Path, family: str, split: Split) -> Screens:
    """Return the screens of a family.

    Raises:
        FileNotFoundError: they are not rendered; says how.
    """
    file = folder / f"{family}-{split}.npz"
    if not file.exists():
        raise FileNotFoundError(f"{file} is missing; run python -m lab.tiny_learning.pictures.pages {folder}")
    return Screens.load(file)


async def render(names: Sequence[str]) -> Screens:
    """Return the screens of a family's tasks, without those whose target is not on the screen."""
    from agentrl.processes import Processes, ProcessLedger
    from agentrl.sandbox.bubblewrap import Bubblewrap
    from agentrl.sandbox.interface import Mount
    from agentrl.tasks.gui.browser.playwright_page import PlaywrightPage
    from agentrl.tasks.gui.dom import elements
    from agentrl.tasks.gui.miniwob import episode
    from agentrl.tasks.gui.miniwob.pages import INSIDE, html_folder, page_url, parse_name

    pages: list[Page] = []
    pictures: list[Pixels] = []
    with tempfile.TemporaryDirectory() as folder:
        processes = Processes(ProcessLedger(Path(folder) / "processes.sqlite"))
        page = await PlaywrightPage.open(Bubblewrap(), processes, [Mount(html_folder(), INSIDE)])
        try:
            family, seed = parse_name(names[0])
            await episode.start(page, page_url(family), seed)
            for number, name in enumerate(names, 1):
                instruction = await page.evaluate(BEGIN % json.dumps(parse_name(name)[1]))
                await page.settle()
                found = await elements(page, SCREEN, episode.HIDDEN)
                try:
                    pages.append(described(name, instruction, found))
                except (LookupError, RuntimeError):
                    continue
                pictures.append(pixels(await page.picture(SCREEN)))
                if number % 200 == 0:
                    print(f"{number} of {len(names)} pages, such as {name}", flush=True)
        finally:
            await page.close()
            await processes.end()
    return Screens(pages, numpy.stack(pictures))


def main() -> None:
    """Render what a folder lacks."""
    parser = argparse.ArgumentParser(prog="python -m lab.tiny_learning.pictures.pages", description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", default=RENDERED, help="where to (%(default)s)")
    folder: Path = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    for family, (split, count) in itertools.product(FAMILIES, PAGES.items()):
        file = folder / f"{family}-{split}.npz"
        if not file.exists():
            names = [task_name(family, split, FIRST_NUMBER + number) for number in range(count)]
            asyncio.run(render(names)).save(file)


if __name__ == "__main__":
    main()
