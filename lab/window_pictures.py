"""Takes the pictures of the window that the tutorial shows: ``python -m lab.window_pictures --to assets/window``.

It opens the views of a running server in Chromium, light and dark, and the newest turn that a step has trained. ``OPENCLAW_API_KEY``
is the key, if the server has some. It sends nothing but requests for pages.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

import httpx
from playwright.async_api import Error, async_playwright

from agentrl.tasks.gui.browser.walled import NAMES

WIDTH, HEIGHT = 1080, 720
VIEWS = ("learning", "conversations", "machine")
SCHEMES = ("light", "dark")
PAGES = 10
"""Of the newest conversations, among which a trained turn is looked for."""


def addresses(url: str, headers: Mapping[str, str]) -> dict[str, str]:
    """Return the address of each picture's page, by the picture's name.

    Args:
        url: of the server.
        headers: of the requests.

    Raises:
        LookupError: no turn of the newest conversations is in a step yet.
        httpx.HTTPError: the server does not show them.
    """
    with httpx.Client(base_url=url, headers=headers, timeout=60, trust_env=False) as client:

        def twin(view: str, **words: str) -> dict:
            return client.get(f"/window/json/{view}", params=words).raise_for_status().json()

        words: dict[str, str] = {}
        for _ in range(PAGES):
            page = twin("conversations", **words)
            for conversation in page["conversations"]:
                if not conversation["samples"]["trained"]:
                    continue
                for turn in twin("conversation", id=conversation["session"])["turns"]:
                    if any(sample["state"] == "trained" for sample in twin("turn", id=turn["id"])["samples"]):
                        return {view: f"{url}/window/{view}" for view in VIEWS} | {
                            "turn": f"{url}/window/turn?id={turn['id']}"
                        }
            if page["next"] is None:
                break
            words = {"before": str(page["next"])}
    raise LookupError("no turn of the newest conversations is in a step yet; try again after the next update")


async def take(url: str, folder: Path, headers: Mapping[str, str], browser: str | None) -> list[Path]:
    """Write the pictures into a folder, and return their files.

    Args:
        url: of the server.
        folder: is made if it is not there.
        headers: of the requests for pages.
        browser: the program; None: the one that Playwright has installed.

    Raises:
        LookupError: no turn is in a step yet.
        httpx.HTTPError: the server does not show its turns.
        playwright.async_api.Error: a page cannot be opened.
    """
    pages = await asyncio.to_thread(addresses, url, headers)
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    async with async_playwright() as programs:
        chromium = await programs.chromium.launch(executable_path=browser, args=["--no-sandbox"])
        for scheme in SCHEMES:
            context = await chromium.new_context(
                color_scheme=scheme, viewport={"width": WIDTH, "height": HEIGHT}, extra_http_headers=dict(headers)
            )
            page = await context.new_page()
            for name, address in pages.items():
                await page.goto(address)
                written.append(folder / f"{name}_{scheme}.png")
                await page.screenshot(path=written[-1])
        await chromium.close()
    return written


def main() -> int:
    """Run the command line and return its exit status."""
    parser = argparse.ArgumentParser(prog="python -m lab.window_pictures", description=__doc__)
    parser.add_argument("--url", default="http://127.0.0.1:30000", help="of the server (default: %(default)s)")
    parser.add_argument("--to", type=Path, required=True, metavar="FOLDER", help="where the pictures go")
    options = parser.parse_args()
    key = os.environ.get("OPENCLAW_API_KEY")
    headers = {"authorization": f"Bearer {key}"} if key else {}
    browser = next((path for path in map(shutil.which, NAMES) if path), None)
    try:
        for path in asyncio.run(take(options.url.rstrip("/"), options.to, headers, browser)):
            print(path)
    except (LookupError, httpx.HTTPError, Error) as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
