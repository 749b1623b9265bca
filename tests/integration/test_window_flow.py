"""A person's whole way through the window of a real run, in Chromium by keyboard alone, from the first key to being forgotten."""

from __future__ import annotations

import http.server
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, closing
from pathlib import Path

import pytest

from lab.testkit.live_run import KEYS, LiveRun, keys_file, wait_until
from openclaw.ledger.store import Ledger
from tests.helpers.keyboard import Keyboard
from tests.security import chromium

playwright = pytest.importorskip("playwright.async_api", reason="install the gui extra")
SECONDS = 600.0
MILLISECONDS = 1000 * SECONDS
SETTINGS = {
    **{"ADAPTERS": "per-owner", "USE_LORA": 1, "LEARNING_RATE": "1e-3", "BATCH_SIZE": 2, "NUM_ROLLOUT": 1000},
    **{"MAX_RESPONSE_LENGTH": 24, "OPENCLAW_HYGIENE": "malformed_call", "OPENCLAW_FUSES": "off"},
    **{"OPENCLAW_BASELINE": 0, "OPENCLAW_LESSONS": "auto", "OPENCLAW_ENGINE_WAIT_SECONDS": 240},
}
COMPLAINTS = 6
"""That are made until one has become a lesson."""
Opener = Callable[[str], Awaitable[Keyboard]]


@pytest.fixture
def run(repository: Path, tmp_path: Path) -> Iterator[LiveRun]:
    from lab.tiny_models.build import ensure_built

    keys = keys_file(tmp_path)
    run = LiveRun(repository, tmp_path / "run", ensure_built(0), "rl", OPENCLAW_API_KEYS_FILE=keys, **SETTINGS)
    try:
        wait_until(run.healthy, lambda: f"the gateway did not come up:\n{run.text()[-3000:]}", SECONDS)
        yield run
    finally:
        if run.process.poll() is None:
            run.process.kill()


@pytest.fixture
async def opened(run: LiveRun) -> AsyncIterator[Opener]:
    """A function that opens a browser of a person's own at an address."""
    program = chromium.find()
    if program is None:
        pytest.skip(chromium.MISSING)
    async with AsyncExitStack() as exits:
        browsers = await exits.enter_async_context(playwright.async_playwright())
        browser = await browsers.chromium.launch(executable_path=program, args=list(chromium.FLAGS))
        exits.push_async_callback(browser.close)

        async def open_page(address: str) -> Keyboard:
            context = await browser.new_context()
            context.set_default_timeout(MILLISECONDS)
            desk = Keyboard(await context.new_page())
            await desk.page.goto(address)
            return desk

        yield open_page


@pytest.fixture
def elsewhere() -> Iterator[str]:
    """The address of a page of another origin."""

    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()


async def say(desk: Keyboard, words: str, turn: int) -> None:
    """Say something in the chat and wait for the end of the reply; the page stays."""
    await desk.page.evaluate("document.getElementById('text').focus()")
    await desk.page.keyboard.type(words)
    await desk.page.evaluate("window.same = true")
    await desk.tab_to("Send")
    async with desk.page.expect_response("**/window/say") as answered:
        await desk.page.keyboard.press("Enter")
    assert (await (await answered.value).header_value("content-type") or "").startswith("text/event-stream")
    await desk.page.get_by_role("button", name=f"Good reply, turn {turn}").wait_for()
    assert await desk.page.evaluate("window.same"), "the reply came without a new page"


@pytest.mark.timeout(3600)
async def test_the_whole_way_by_keyboard(run: LiveRun, opened: Opener, elsewhere: str) -> None:
    url = run.base_url.removesuffix("/v1")
    expect = playwright.expect
    expect.set_options(timeout=MILLISECONDS)
    desk = await opened(url)
    page = desk.page
    await desk.log_in(KEYS["alice"])
    beside = Keyboard(await page.context.new_page())  # a second page that stays open
    await beside.page.goto(f"{url}/window/mine")
    await beside.page.evaluate("window.same = true")
    await expect(beside.page.get_by_text("Version 0 serves")).to_be_visible()

    await desk.press("Talk to it")
    await say(desk, "What is 2 plus 3?", 1)
    await desk.press("Good")
    await expect(page.locator("main [role=status]")).to_contain_text("Thank you.")
    await desk.press("What it taught")
    await expect(page.locator(".badge", has_text="by you").first).to_be_visible()
    turn = page.url
    await desk.press("Talk to it")
    await say(desk, "What is 4 plus 1?", 1)
    await desk.press("Bad")

    await expect(beside.page.get_by_text("Version 1 serves")).to_be_visible()
    assert await beside.page.evaluate("window.same"), "the update came without a new page"
    await page.goto(turn)
    await expect(page.locator(".badge", has_text="version 1")).to_be_visible()

    await desk.press("Talk to it")
    for number in range(COMPLAINTS):
        await say(desk, "Please use no lists and no bold text.", number + 1)
        try:
            await expect(beside.page.locator(".lesson").first).to_be_visible(timeout=15_000)
            break
        except AssertionError:
            continue
    await expect(beside.page.locator(".lesson").first).to_be_visible()
    assert await beside.page.evaluate("window.same"), "the lesson came without a new page"

    await desk.press("Talk to it")
    await desk.press("Compare two versions")
    await desk.write("text", "What is 3 plus 3?")
    await desk.press("Send")
    assert await page.locator("section .reply").count() == 2

    await desk.press("Lessons and adapter")
    await desk.press("Go back to the base model")
    await expect(page.locator("main [role=status]")).to_contain_text("Asked for.")
    await expect(page.locator("main")).not_to_contain_text("was asked to go back")
    await expect(page.get_by_text("Version 1 serves")).to_have_count(0)

    bob = await opened(url)
    await bob.log_in(KEYS["bob"])
    await bob.press("Conversations")
    assert "No conversation yet." in await bob.page.content()
    answer = await bob.page.goto(turn)
    assert answer is not None
    assert answer.status == 404
    stranger = await opened(elsewhere)
    for path in ("learning", "events?view=mine", "json/conversations"):
        refused = f"fetch('{url}/window/{path}', {{credentials: 'include'}}).then(() => 'read', () => 'refused')"
        assert await stranger.page.evaluate(refused) == "refused"

    await desk.press("Lessons and adapter")
    await desk.tab_to("sure")
    await page.keyboard.press("Space")
    await desk.press("Delete everything of mine")
    await expect(page.locator("main [role=status]")).to_contain_text("Everything of yours is deleted.")
    await desk.press("Conversations")
    assert "No conversation yet." in await page.content()
    with closing(Ledger(run.ledger_path)) as ledger:
        assert ledger.views.conversations("alice", 2**62, 9) == []
    for each in (desk, beside, bob):
        assert {address.startswith(url) for address in each.asked} == {True}, "no request leaves the machine"
        assert [line for line in each.told if "Content Security" in line or "Refused" in line] == []
    assert run.stop() == 0, "open pages hold no server up"
