"""A person uses the window in a real Chromium by keyboard alone: log in, look at every view, say what they think, log out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from PIL import Image
from prometheus_client import CollectorRegistry

from lab.testkit.engine import mock_engine, serve
from lab.testkit.tiny_random import build_tokenizer
from lab.window_pictures import HEIGHT, SCHEMES, WIDTH, take
from lab.window_pictures import VIEWS as PICTURED
from openclaw.config.runtime import RuntimeConfig
from openclaw.gateway.app import create_app
from openclaw.gateway.chat import ChatService
from openclaw.gateway.window_events import PageEvents
from openclaw.ledger.store import Ledger
from openclaw.owners import stored_id
from openclaw.runtime.earlier import EarlierProcess
from openclaw.runtime.window import WindowProcess
from slime.contract.engine import StandInEngine
from tests.helpers import stand_in_earlier
from tests.helpers.keyboard import Keyboard
from tests.helpers.made_runs import MadeRun
from tests.security import chromium

playwright = pytest.importorskip("playwright.async_api", reason="install the gui extra")
KEYS = "ann:ann-key-123456\nben:ben-key-123456\nroot (admin):root-key-123456\n"
MOST_TOKENS = 99
VIEWS = (
    "Is it healthy?",
    "Conversations",
    "Lessons and adapter",
    "Who waits?",
    "The machine",
    "Tokens",
    "Talk to it",
    "Is it learning?",
)


@dataclass(kw_only=True)
class Desk(Keyboard):
    """A browser's page, and what is behind it."""

    url: str
    ledger: Ledger
    engine: StandInEngine
    pages: PageEvents


Opener = Callable[..., Awaitable[Desk]]


@pytest.fixture
async def opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Opener]:
    """A function that opens a browser, with its options, on the window of a run of ann's and ben's.

    A stand-in without a model answers for earlier versions.
    """
    monkeypatch.setattr("openclaw.runtime.earlier.PROGRAM", stand_in_earlier.__name__)
    program = chromium.find()
    if program is None:
        pytest.skip(chromium.MISSING)
    run = MadeRun(tmp_path / "run").healthy(3)
    for person in ("ann", "ben"):
        words = [{"role": "user", "content": f"I am {person}. What is 2 + 3?"}]
        run.talk(-1, session_id=stored_id(person, "talk"), messages=words)
    folder = run.close()
    (tmp_path / "keys").write_text(KEYS)
    (tmp_path / "keys").chmod(0o600)
    async with AsyncExitStack() as exits:
        tokenizer = build_tokenizer()
        reply = [*tokenizer.encode("Hello you.", add_special_tokens=False), tokenizer.eos_token_id]
        engine = await exits.enter_async_context(mock_engine(lambda _: reply))
        config = RuntimeConfig(
            policy_url=engine.url,
            tokenizer="tiny",
            ledger=str(folder / "ledger.sqlite"),
            run_dir=str(folder),
            context_length=2048,
            engine_wait_seconds=2.0,
            api_keys_file=str(tmp_path / "keys"),
        )
        ledger = Ledger(config.ledger or "")
        exits.callback(ledger.close)
        earlier = EarlierProcess(config)
        service = ChatService(config, tokenizer, ledger, CollectorRegistry(), earlier=earlier)
        app = create_app(service, CollectorRegistry(), views=WindowProcess(config))
        url = await exits.enter_async_context(serve(app))
        browsers = await exits.enter_async_context(playwright.async_playwright())
        browser = await browsers.chromium.launch(executable_path=program, args=list(chromium.FLAGS))
        exits.push_async_callback(browser.close)

        async def open_page(**options: object) -> Desk:
            context = await browser.new_context(**options)
            page = await context.new_page()
            assert app.pages is not None
            desk = Desk(page, url=url, ledger=ledger, engine=engine, pages=app.pages)
            await page.goto(url)
            return desk

        yield open_page


async def log_in(desk: Desk, key: str = "ann-key-123456") -> None:
    await desk.log_in(key)


async def test_everything_can_be_done_by_keyboard(opened: Opener) -> None:
    desk = await opened()
    page = desk.page
    await log_in(desk, "wrong-key-123456")
    assert "This server has no such key." in await page.content()
    await log_in(desk)
    assert await page.title() == "Is it learning? – OpenClaw-RL"
    for view in VIEWS:
        await desk.press(view)
        assert await page.locator("h1").inner_text() == view
    await desk.press("Conversations")
    assert "I am ben" not in await page.content()
    await desk.press("I am ann. What is 2 + 3?")
    await desk.press("Turn 1")
    [(_, turn)] = desk.ledger.views.turns_of_session(stored_id("ann", "talk"), 0, 9)
    await desk.press("Bad reply")
    assert "Thank you." in await page.locator("main [role=status]").inner_text()
    await desk.tab_to("text")
    await page.keyboard.type("Please no bold.")
    await desk.press("Say it")
    given = desk.ledger.feedback.of(turn)
    assert [(each.thumbs, each.text, each.source) for each in given] == [
        ("down", None, "ann"),
        (None, "Please no bold.", "ann"),
    ]
    await desk.press("Talk to it")
    await desk.write("text", "Hello?")
    await desk.tab_to("Send")
    await page.keyboard.press("Enter")
    await page.get_by_role("button", name="Good reply, turn 1").wait_for()
    assert "Hello you." in await page.locator(".reply").inner_text()
    assert await page.evaluate("document.activeElement.id") == "text", "one goes on typing"
    await page.keyboard.type("And again?")
    await desk.tab_to("Send")
    await page.keyboard.press("Enter")
    await page.get_by_role("button", name="Good reply, turn 2").wait_for()
    assert await page.locator(".reply").count() == 2
    await desk.press("Good")
    assert "Thank you." in await page.locator("main [role=status]").inner_text()
    await desk.press("Lessons and adapter")
    await desk.tab_to("text")
    await page.keyboard.type("Keep answers short.")
    await desk.press("Add it")
    assert [lesson.text for lesson in desk.ledger.lessons.of("ann")] == ["Keep answers short."]
    await desk.press("Log out")
    assert await page.locator("#key").count() == 1
    await page.go_back()
    assert "Keep answers short." not in await page.content(), "no page is kept"
    assert {url.startswith(desk.url) for url in desk.asked} == {True}, "no request leaves the machine"
    assert [line for line in desk.told if "Content Security" in line or "Refused" in line] == []


async def test_without_scripts_one_talks_as_well(opened: Opener) -> None:
    desk = await opened(java_script_enabled=False)
    await desk.write("key", "ann-key-123456")
    async with desk.page.expect_navigation():
        await desk.page.keyboard.press("Enter")
    await desk.page.goto(f"{desk.url}/window/chat")
    await desk.write("text", "Hello?")
    async with desk.page.expect_navigation():
        await desk.page.get_by_role("button", name="Send").press("Enter")
    assert "Hello you." in await desk.page.locator(".reply").inner_text()


async def test_an_earlier_version_is_asked_and_compared_by_keyboard(opened: Opener) -> None:
    desk = await opened()
    page = desk.page
    await log_in(desk)
    await desk.press("Talk to it")
    await desk.write("text", "Who are you?")
    await page.keyboard.press("Tab")
    assert await page.evaluate("document.activeElement.id") == "version"
    await page.keyboard.press("End")
    await desk.tab_to("Send")
    await page.keyboard.press("Enter")
    await page.get_by_role("button", name="Good reply, turn 1").wait_for()
    assert "reply, version 0" in await page.locator(".reply").inner_text()
    await page.reload()
    assert await page.locator("#version").input_value() == "0", "one goes on with the same version"
    await desk.press("Good")
    assert "only replies of the version that serves" in await page.locator("main [role=status]").inner_text()
    await desk.press("Compare two versions")
    for words in ("Who are you two?", "And now?"):
        await desk.write("text", words)
        await desk.press("Send")
    columns = page.locator(".columns section")
    for place, said in enumerate(("Hello you.", "version 0")):
        assert [said in reply for reply in await columns.nth(place).locator(".reply").all_inner_texts()] == [True] * 2
    await page.get_by_role("button", name="Bad reply, turn 2 of version 0").focus()
    async with page.expect_navigation():
        await page.keyboard.press("Enter")
    assert await columns.count() == 2, "a thumb leads back to both"
    await desk.press("What it taught")
    await desk.press("Ask it")
    assert "reply, version 0" in await page.locator(".reply").inner_text()
    assert await page.locator("#version").input_value() == "0"
    for width in (360, 1080):
        await page.set_viewport_size({"width": width, "height": 700})
        await page.goto(f"{desk.url}/window/chat?compare=1")
        assert await page.evaluate("document.documentElement.scrollWidth") == width
    assert [line for line in desk.told if "Content Security" in line or "Refused" in line] == []


async def test_a_reply_appears_while_it_is_written(opened: Opener) -> None:
    desk = await opened()
    page, engine = desk.page, desk.engine
    await log_in(desk)
    await desk.press("Talk to it")
    gate = engine.token_gate = asyncio.Semaphore(2)
    await desk.write("text", "Hello?")
    await desk.tab_to("Send")
    await page.keyboard.press("Enter")
    reply = page.locator(".reply")
    await playwright.expect(reply).to_contain_text("He")
    assert await reply.get_attribute("aria-busy") == "true"
    assert await page.get_by_role("button", name="Good reply").count() == 0, "thumbs come at the end"
    assert await page.evaluate("document.activeElement.id") == "text"
    await page.keyboard.type("And then")
    engine.token_gate = None
    for _ in range(MOST_TOKENS):
        gate.release()
    await page.get_by_role("button", name="Good reply, turn 1").wait_for()
    assert await reply.inner_text() == "reply, version 1\nHello you."
    assert await page.locator("#text").input_value() == "And then", "what was typed meanwhile stays"
    gate = engine.token_gate = asyncio.Semaphore(2)
    await desk.tab_to("Send")
    await page.keyboard.press("Enter")
    await playwright.expect(page.locator(".reply").last).to_contain_text("He")
    engine.fail_with, engine.break_after = [503] * MOST_TOKENS, 3
    for _ in range(MOST_TOKENS):
        gate.release()
    alert = page.get_by_role("alert")
    await alert.wait_for()
    assert "engine" in await alert.inner_text()


async def test_who_leaves_the_page_aborts_the_reply(opened: Opener) -> None:
    desk = await opened()
    await log_in(desk)
    await desk.press("Talk to it")
    desk.engine.token_gate = asyncio.Semaphore(2)
    await desk.write("text", "Hello?")
    await desk.tab_to("Send")
    await desk.page.keyboard.press("Enter")
    await playwright.expect(desk.page.locator(".reply")).to_contain_text("He")
    await desk.press("Conversations")
    await desk.engine.wait_for(lambda: len(desk.engine.aborted) == 1 and not desk.engine.running)


async def test_an_open_page_is_as_the_run_is(opened: Opener) -> None:
    desk = await opened(viewport={"width": 700, "height": 300})
    page = desk.page
    await log_in(desk)
    await desk.press("Lessons and adapter")
    live = page.locator("#live")
    await playwright.expect(live).to_have_text("live")
    await desk.tab_to("text")
    await page.keyboard.type("Half a wi")
    first = desk.ledger.lessons.add("ann", "Keep answers short.")
    await playwright.expect(page.locator(".lesson")).to_have_text("Keep answers short.")
    assert await page.locator("#new").input_value() == "Half a wi", "what is being typed stays"
    assert await page.evaluate("document.activeElement.id") == "new"
    await page.keyboard.type("sh")
    await desk.tab_to("Edit or delete")
    await page.keyboard.press("Enter")
    await desk.tab_to("text")
    await page.keyboard.press("End")
    await page.keyboard.type(" Very.")
    await page.locator(".cards details textarea").evaluate("each => each.mark = 'same'")
    before = await page.evaluate("document.activeElement.getBoundingClientRect().top")
    for number in range(4):
        desk.ledger.lessons.add("ann", f"Wish number {number}.")
    await playwright.expect(page.locator(".lesson")).to_have_count(5)
    focused = "document.activeElement"
    assert await page.evaluate(f"[{focused}.mark, {focused}.value]") == ["same", "Keep answers short. Very."]
    assert await page.evaluate(f"{focused}.closest('details').open"), "what was opened stays open"
    assert abs(await page.evaluate(f"{focused}.getBoundingClientRect().top") - before) < 2, "nothing jumps"
    assert await page.locator("#new").input_value() == "Half a wish"
    desk.ledger.lessons.remove("ann", first.id)
    await playwright.expect(page.locator(".cards")).to_contain_text("Wish number 3.")
    assert await page.evaluate(f"{focused}.value") == "Keep answers short. Very.", "a form in use is not taken away"


BECOMES = """([old, next]) => {
    const nodes = () => [...main.querySelectorAll("*")];
    main.innerHTML = old;
    for (const each of main.querySelectorAll("details")) each.open = true;
    main.querySelector("[data-name=say] textarea").focus();
    main.querySelector("[data-name=say] textarea").value = "Half a word";
    main.querySelector("select").selectedIndex = 1;
    const before = new Set(nodes());
    const fresh = document.createElement("main");
    fresh.innerHTML = next;
    become(main, fresh);
    return {
        kept: nodes().filter((each) => before.has(each)).length,
        tags: [...main.children].map((each) => each.tagName.toLowerCase()).join(" "),
        opened: [...main.querySelectorAll("details")].map((each) => each.open),
        typed: document.activeElement.value,
        chosen: [...main.querySelector("select").options].map((each) => each.value + (each.selected ? "*" : "")),
    };
}"""
NOTE, BODY = (
    "<p class=problem>Training is paused.</p>",
    "<h2>One</h2><details><summary>More</summary></details><p>Two</p>",
)
SAY = (
    "<form action=/window/say data-name=say><input type=hidden name=id value={id}><textarea name=text></textarea>"
    "<select name=version>{options}</select></form><p>End</p>"
)


async def test_what_vanishes_from_an_open_page_leaves_the_rest_as_it_is(opened: Opener) -> None:
    desk = await opened()
    page = desk.page
    await log_in(desk)
    await page.locator("#live").wait_for(state="attached")
    options = "".join(f"<option value={version}>{version}</option>" for version in "10")
    say, other = SAY.format(id="a", options=options), SAY.format(id="b", options="<option>2</option>" + options)
    shown = await page.evaluate(BECOMES, [NOTE + BODY + say, BODY + say])
    tags = "h2 details p form p"
    assert (shown["kept"], shown["tags"], shown["opened"], shown["typed"]) == (11, tags, [True], "Half a word")
    shown = await page.evaluate(BECOMES, [BODY + say, "<div>New</div>" + BODY + NOTE + other])
    assert shown["tags"] == "div h2 details p p form p", "a form in use is not there twice, whatever it would send"
    assert (shown["opened"], shown["typed"], shown["chosen"]) == ([True], "Half a word", ["2", "1", "0*"])


async def test_an_open_page_says_when_the_server_is_away(opened: Opener) -> None:
    desk = await opened()
    page = desk.page
    await log_in(desk)
    await desk.press("Conversations")
    live = page.locator("#live")
    await playwright.expect(live).to_have_text("live")
    await page.context.set_offline(True)
    await page.route("**/window/events*", lambda route: route.abort())
    await page.evaluate("connection.abort(); void stayLive()")
    await playwright.expect(live).to_contain_text("The server is away. Next try in")
    asked = len(desk.asked)
    await page.unroute("**/window/events*")
    await page.context.set_offline(False)
    await playwright.expect(live).to_have_text("live")
    assert len(desk.asked) - asked < 5
    hidden = "Object.defineProperty(document, 'hidden', {value: %s, configurable: true});"
    tell = "document.dispatchEvent(new Event('visibilitychange'))"
    await page.evaluate(hidden % "true" + tell)
    await asyncio.wait_for(until(lambda: len(desk.pages) == 0), 10)
    await page.evaluate(hidden % "false" + tell)
    await asyncio.wait_for(until(lambda: len(desk.pages) == 1), 10)
    await page.request.post(f"{desk.url}/window/log_out", headers={"origin": desk.url})
    await playwright.expect(live).to_have_text("You are logged out. Load this page again to log in.")


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.02)


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_every_view_fits_a_phone_and_can_be_read(opened: Opener, scheme: str) -> None:
    desk = await opened(viewport={"width": 360, "height": 700}, color_scheme=scheme)
    await log_in(desk)
    colours = set()
    for view in VIEWS:
        await desk.press(view)
        assert await desk.page.evaluate("document.documentElement.scrollWidth") == 360, view
        ink, paper = await desk.page.evaluate(
            "[getComputedStyle(document.body).color, getComputedStyle(document.body).backgroundColor]"
        )
        colours.add((ink, paper))
    [(ink, paper)] = colours
    assert (sum(_numbers(ink)) < sum(_numbers(paper))) == (scheme == "light")


async def test_the_tutorials_pictures_are_taken(opened: Opener, tmp_path: Path) -> None:
    desk = await opened()
    headers = {"authorization": "Bearer root-key-123456"}
    with pytest.raises(LookupError, match="no turn of the newest conversations is in a step yet"):
        await take(desk.url, tmp_path / "none", {"authorization": "Bearer ben-key-123456"}, chromium.find())
    written = await take(desk.url, tmp_path / "pictures", headers, chromium.find())
    assert sorted(path.name for path in written) == sorted(
        f"{name}_{scheme}.png" for name in (*PICTURED, "turn") for scheme in SCHEMES
    )
    sizes = {Image.open(path).size for path in written}
    assert sizes == {(WIDTH, HEIGHT)}
    assert len({path.read_bytes() for path in written}) == len(written), "no two show the same"


def _numbers(colour: str) -> list[int]:
    return [int(part) for part in colour[colour.index("(") + 1 : -1].split(",")[:3]]
