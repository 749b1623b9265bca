"""The window at the gateway: who gets in and how, what a cookie opens, pages of other origins, and what a form changes."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sqlite3
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import orjson
import pytest
from prometheus_client import CollectorRegistry

from lab.testkit.engine import serve
from lab.testkit.ledger_records import make_turn
from openclaw.config.bounds import FORM_FIELDS, WINDOW_PAGES
from openclaw.engine.client import TokenChunk
from openclaw.gateway.app import create_app
from openclaw.gateway.auth import Keyring
from openclaw.gateway.earlier import Wanted
from openclaw.gateway.errors import ApiError
from openclaw.gateway.log_in import HOURS, LogIns
from openclaw.gateway.window_events import PageEvents
from openclaw.gateway.window_views import Asked, ChangeError, UnknownViewError
from openclaw.owners import stored_id
from openclaw.runtime.window import WindowProcess
from tests.unit.gateway.conftest import Stack, Starter
from tests.unit.gateway.test_lessons import KEYS, as_key

BROWSER = {"accept": "text/html,application/xhtml+xml,*/*;q=0.8", "sec-fetch-site": "none"}
OWN = {"sec-fetch-site": "same-origin"}
CHAT = "/v1/chat/completions"
HELLO = {"messages": [{"role": "user", "content": "My PIN is 7294"}]}


class Echo:
    """Views that show who looks, and keep no process."""

    def __init__(self) -> None:
        self.asked: list[Asked] = []
        self.changes: list[str] = []
        self.revision = "1"
        self.fails = False
        self.busy = False

    async def revisions(self, open_pages: Sequence[Asked]) -> list[str | None]:
        if self.fails:
            raise ApiError(503, "the window cannot be shown now")
        if self.busy:
            raise ApiError(503, "too many pages are loaded at once", code="window_busy")
        return [self.revision if page.owner == "alice" else "of others" for page in open_pages]

    async def show(self, asked: Asked) -> bytes:
        if asked.view == "nothing":
            raise UnknownViewError("there is <b>nothing</b>")
        self.asked.append(asked)
        return b"{}" if asked.form == "json" else f"{asked.name} looks at {asked.owner}".encode()

    async def roll_back(self, version: str) -> None:
        if version != "1":
            raise ChangeError(f"no checkpoint of version {version}")
        self.changes.append(version)

    async def accept(self) -> None:
        self.changes.append("accept")

    async def close(self) -> None:
        """Hold nothing."""


@dataclass
class Site:
    """A server with a window."""

    stack: Stack
    url: str
    views: Echo
    keys: Path
    exits: AsyncExitStack
    pages: PageEvents

    async def browser(self) -> httpx.AsyncClient:
        """Return a browser, with a jar of cookies of its own."""
        client = httpx.AsyncClient(base_url=self.url, trust_env=False, headers=BROWSER)
        return await self.exits.enter_async_context(client)

    async def logged_in(self, name: str) -> httpx.AsyncClient:
        """Return the browser of somebody who has logged in."""
        browser = await self.browser()
        answer = await browser.post("/window/log_in", data={"key": key_of(name)}, headers=OWN)
        assert answer.status_code == 303, answer.text
        return browser


def key_of(name: str) -> str:
    return as_key(name)["Authorization"].removeprefix("Bearer ")


@pytest.fixture
async def exits() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as exits:
        yield exits


async def served(exits: AsyncExitStack, stack: Stack, views: Any) -> str:
    return (await served_pages(exits, stack, views))[0]


async def served_pages(exits: AsyncExitStack, stack: Stack, views: Any) -> tuple[str, PageEvents]:
    app = create_app(stack.service, CollectorRegistry(), views=views)
    assert app.pages is not None
    app.pages._round_seconds = 0.01
    return await exits.enter_async_context(serve(app)), app.pages


@pytest.fixture
async def site(start: Starter, tmp_path: Path, exits: AsyncExitStack) -> Site:
    keys = tmp_path / "keys"
    keys.write_text(KEYS)
    keys.chmod(0o600)
    stack: Stack = await start(api_keys_file=str(keys), allowed_origins="http://front.example")
    views = Echo()
    url, pages = await served_pages(exits, stack, views)
    return Site(stack, url, views, keys, exits, pages)


@pytest.fixture
async def open_site(start: Starter, tmp_path: Path, exits: AsyncExitStack) -> Site:
    """A server without keys."""
    stack: Stack = await start()
    views = Echo()
    url, pages = await served_pages(exits, stack, views)
    return Site(stack, url, views, tmp_path, exits, pages)


def record(stack: Stack, owner: str, turn_id: str) -> None:
    stack.ledger.turns.record(make_turn(turn_id, session_id=stored_id(owner, "s")))


async def test_a_browser_is_sent_to_the_window_and_asked_for_a_key(site: Site) -> None:
    browser = await site.browser()
    answer = await browser.get("/", follow_redirects=True)
    assert (answer.status_code, urlsplit(str(answer.url)).path) == (401, "/window/")
    assert 'action="/window/log_in"' in answer.text
    assert ":focus-visible" in (await browser.get("/window/style.css")).text
    script = await browser.get("/window/window.js")
    assert (script.headers["content-type"].split(";")[0], "use strict" in script.text) == ("text/javascript", True)
    assert site.views.asked == []
    told = await browser.get("/", headers={"accept": "application/json"})
    assert told.json()["needs_key"] is True
    twin = await browser.get("/window/json/learning", headers={"accept": "*/*"})
    assert (twin.status_code, twin.json()["error"]["code"]) == (401, "invalid_api_key")


async def test_a_key_opens_the_window_until_one_logs_out(site: Site) -> None:
    browser = await site.browser()
    answer = await browser.post("/window/log_in", data={"key": key_of("alice")}, headers=OWN)
    cookie = answer.headers["set-cookie"]
    for part in ("HttpOnly", "SameSite=strict", "Path=/window/", f"Max-Age={HOURS * 3600}"):
        assert part in cookie
    assert key_of("alice") not in cookie
    assert "Secure" not in cookie
    page = await browser.get("/window/", follow_redirects=True)
    assert (page.status_code, page.text) == (200, "alice looks at alice")
    assert (await browser.get("/window/json/learning")).json() == {}
    kept = dict(browser.cookies)
    assert (await browser.post("/window/log_out", headers=OWN)).status_code == 303
    assert not browser.cookies
    assert (await browser.get("/window/learning", cookies=kept)).status_code == 401


async def test_the_cookie_is_for_tls_alone_also_behind_a_proxy(site: Site) -> None:
    origin = {"origin": site.url.replace("http://", "https://")}
    answer = await (await site.browser()).post("/window/log_in", data={"key": key_of("alice")}, headers=origin)
    assert (answer.status_code, "; Secure" in answer.headers["set-cookie"]) == (303, True)


async def test_an_admin_sees_all_and_a_child_its_own(site: Site) -> None:
    for name, owner in (("root (admin)", None), ("alice/phone", "alice/phone"), ("bob", "bob")):
        await (await site.logged_in(name)).get("/window/learning?after=3")
        asked = site.views.asked[-1]
        assert (asked.owner, asked.words, asked.logged_in) == (owner, {"after": "3"}, True)
        assert asked.person == (owner or "root").partition("/")[0]


async def test_programs_send_their_key(site: Site) -> None:
    async with httpx.AsyncClient(base_url=site.url, trust_env=False, headers=as_key("bob")) as client:
        assert (await client.get("/window/json/learning")).status_code == 200
    assert site.views.asked[0].name == "bob"


@pytest.mark.parametrize("key", ["", "wrong", "bob-key-123456", "é" * 9, "sk-episode-x"])
async def test_a_wrong_key_shows_nothing(site: Site, key: str) -> None:
    browser = await site.browser()
    answer = await browser.post("/window/log_in", data={"key": key}, headers=OWN)
    assert (answer.status_code, "set-cookie" in answer.headers) == (401, False)
    assert "This server has no such key." in answer.text
    assert (await browser.get("/window/learning", cookies={"openclaw_window_30000": "x"})).status_code == 401
    assert site.views.asked == []
    for method in ("GET", "HEAD"):
        again = await browser.request(method, "/window/log_in")
        assert (again.status_code, again.headers["location"]) == (303, "/window/"), "the page is loaded again"


async def test_a_form_has_few_fields(site: Site) -> None:
    browser = await site.logged_in("alice")
    form = {f"field-{n}": "x" for n in range(FORM_FIELDS.most + 1)}
    answer = await browser.post("/window/feedback", data=form, headers=OWN)
    assert (answer.status_code, answer.headers["x-limit"]) == (400, "form_fields")


async def test_the_key_of_an_episode_opens_nothing(site: Site) -> None:
    async with httpx.AsyncClient(base_url=site.url, trust_env=False) as client:
        made = await client.post("/v1/episodes", json={"task": "t", "ttl_s": 60.0}, headers=as_key("alice"))
        key = made.json()["api_key"]
        answer = await client.post("/window/log_in", data={"key": key}, headers=OWN)
        assert (answer.status_code, "set-cookie" in answer.headers) == (403, False)
        answer = await client.get("/window/learning", headers={"x-api-key": key})
        assert answer.json()["error"]["code"] == "episode_key"


async def test_the_cookie_opens_no_route_of_the_api(site: Site) -> None:
    browser = await site.logged_in("root (admin)")
    cookies = "; ".join(f"{name}={value}" for name, value in browser.cookies.items())
    headers = {**OWN, "cookie": cookies}
    assert (await browser.get("/window/learning", headers=headers)).status_code == 200
    for method, path in (
        ("POST", CHAT),
        ("GET", "/v1/models"),
        ("GET", "/v1/lessons"),
        ("DELETE", "/v1/me"),
        ("GET", "/metrics"),
    ):
        answer = await browser.request(method, path, json=HELLO if method == "POST" else None, headers=headers)
        assert answer.status_code == 401, path


async def test_a_session_ends_with_its_time_and_with_its_key(site: Site) -> None:
    now = [0.0]
    keyring = Keyring(None, str(site.keys))
    log_ins = LogIns(keyring, 1, clock=lambda: now[0])

    def cookie(name: str) -> dict[str, str]:
        response = httpx_response()
        log_ins.begin(key_of(name), response, secure=True)
        assert "Secure" in response.headers["set-cookie"]
        return {"cookie": response.headers["set-cookie"].partition(";")[0]}

    alice, bob = cookie("alice"), cookie("bob")
    assert log_ins.client(alice).name == "alice"
    site.keys.write_text(KEYS.replace("bob-key", "new-key"))
    keyring.reload()
    with pytest.raises(Exception, match="unknown key"):
        log_ins.client(bob)
    now[0] = HOURS * 3600
    with pytest.raises(Exception, match="unknown key"):
        log_ins.client(alice)


def httpx_response() -> Any:
    from starlette.responses import Response

    return Response()


async def test_the_oldest_session_of_a_key_makes_room(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("openclaw.gateway.log_in.MOST_SESSIONS", 2)
    browsers = [await site.logged_in(name) for name in ("alice", "bob", "bob", "bob", "alice")]
    statuses = [(await each.get("/window/learning")).status_code for each in browsers]
    assert statuses == [200, 401, 200, 200, 200], "nobody ends the session of another key"


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": "http://front.example"},
        {"origin": "null"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"origin": "http://127.0.0.1:1"},
    ],
)
async def test_pages_of_other_origins_get_nothing(site: Site, open_site: Site, headers: dict[str, str]) -> None:
    for each, browser in ((site, await site.logged_in("alice")), (open_site, await open_site.browser())):
        turn = f"turn-{each is site}"
        record(each.stack, "alice", turn)
        for method, path, data in (
            ("GET", "/window/learning", None),
            ("GET", "/window/json/learning", None),
            ("POST", "/window/feedback", {"response_id": turn, "thumbs": "down"}),
            ("POST", "/window/log_in", {"key": key_of("alice")}),
            ("POST", "/window/log_out", {}),
        ):
            answer = await browser.request(method, path, data=data, headers=headers)
            assert answer.status_code == 403, (method, path)
            assert "access-control-allow-credentials" not in answer.headers
        assert each.views.asked == []
        assert each.stack.ledger.feedback.of(turn) == []


async def test_a_form_has_to_prove_where_it_comes_from(site: Site, open_site: Site) -> None:
    for each, browser in ((site, await site.logged_in("alice")), (open_site, await open_site.browser())):
        turn = f"turn-{each is site}"
        record(each.stack, "alice" if each is site else "", turn)
        form = {"response_id": turn, "thumbs": "up"}
        for headers, status in (
            ({"sec-fetch-site": ""}, 403),
            (BROWSER, 403),
            ({"origin": each.url}, 303),
            (OWN, 303),
        ):
            del browser.headers["sec-fetch-site"]
            sent = {name: value for name, value in headers.items() if value}
            assert (await browser.post("/window/feedback", data=form, headers=sent)).status_code == status, headers
            browser.headers["sec-fetch-site"] = "none"


async def test_without_keys_nobody_logs_in_and_foreign_hosts_get_nothing(open_site: Site) -> None:
    browser = await open_site.browser()
    page = await browser.get("/", follow_redirects=True)
    assert (page.status_code, page.text) == (200, "local looks at None")
    assert open_site.views.asked[0].logged_in is False
    answer = await browser.get("/window/learning", headers={"host": "evil.example"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "host_not_allowed")
    answer = await browser.post("/window/log_in", data={"key": "any"}, headers=OWN)
    assert (answer.status_code, "set-cookie" in answer.headers) == (303, False)


async def test_a_thumb_goes_the_way_of_all_feedback(site: Site) -> None:
    record(site.stack, "alice", "turn-a")
    record(site.stack, "bob", "turn-b")
    browser = await site.logged_in("alice")
    for form in ({"thumbs": "down"}, {"text": "no lists\r\nplease"}, {"edit": "It is 5."}):
        answer = await browser.post("/window/feedback", data={"response_id": "turn-a", **form}, headers=OWN)
        where = urlsplit(answer.headers["location"])
        assert (answer.status_code, where.path) == (303, "/window/turn")
        assert parse_qs(where.query) == {"id": ["turn-a"], "said": ["counts"]}
    given = site.stack.ledger.feedback.of("turn-a")
    assert [(each.thumbs, each.text, each.edit) for each in given] == [
        ("down", None, None),
        (None, "no lists\nplease", None),
        (None, None, "It is 5."),
    ]
    assert {each.source for each in given} == {"alice"}
    for turn in ("turn-b", "turn-unknown"):
        answer = await browser.post("/window/feedback", data={"response_id": turn, "thumbs": "up"}, headers=OWN)
        assert (answer.status_code, "no finished reply" in answer.text) == (404, True)
    assert site.stack.ledger.feedback.of("turn-b") == []


async def test_a_form_that_no_page_sends_is_refused(site: Site) -> None:
    browser = await site.logged_in("alice")
    for form, status in (
        ({"response_id": "x"}, 400),
        ({"response_id": "x", "thumbs": "sideways"}, 400),
        ({"response_id": "x", "thumbs": "up", "admin": "1"}, 400),
        ({f"f{number}": "x" for number in range(50)}, 400),
        ({"response_id": "x", "text": "x" * 300_000}, 413),
    ):
        assert (await browser.post("/window/feedback", data=form, headers=OWN)).status_code == status, form
    assert (await browser.post("/window/feedback", json={"response_id": "x"}, headers=OWN)).status_code == 415
    for path in ("/window/log_in", "/window/feedback"):
        answer = await browser.post(path, content=endless(), headers={**OWN, "content-type": FORM})
        assert answer.status_code == 413, "a form without a length"


FORM = "application/x-www-form-urlencoded"


async def endless() -> AsyncIterator[bytes]:
    yield b"key=x"


async def test_what_is_not_there_is_a_page_that_says_so(site: Site) -> None:
    browser = await site.logged_in("alice")
    page = await browser.get("/window/nothing")
    assert (page.status_code, "there is &lt;b&gt;nothing&lt;/b&gt;" in page.text) == (404, True)
    twin = await browser.get("/window/json/nothing")
    assert (twin.status_code, twin.json()["error"]["message"]) == (404, "there is <b>nothing</b>")


async def test_every_answer_is_locked_down(site: Site) -> None:
    browser = await site.logged_in("alice")
    for path in ("/window/learning", "/window/json/learning", "/window/style.css", "/window/nothing", "/window/"):
        headers = (await browser.get(path)).headers
        policy = headers["content-security-policy"]
        own = "style-src 'self'; script-src 'self'; connect-src 'self'; form-action 'self'"
        assert policy.startswith(f"default-src 'none'; {own}")
        assert "frame-ancestors 'none'" in policy
        assert (headers["cache-control"], headers["x-content-type-options"]) == ("no-store", "nosniff")


async def test_a_server_without_a_window_has_none(stack: Stack) -> None:
    async with httpx.AsyncClient(base_url=stack.url, trust_env=False, headers=BROWSER) as browser:
        assert (await browser.get("/window/learning")).status_code == 404
        assert "openclaw-rl chat" in (await browser.get("/")).text


async def test_a_process_of_its_own_shows_a_real_ledger_and_comes_back(start: Starter, exits: AsyncExitStack) -> None:
    stack: Stack = await start()
    record(stack, "", "turn-a")
    views = WindowProcess(stack.service.config)
    url = await served(exits, stack, views)
    async with httpx.AsyncClient(base_url=url, trust_env=False, headers=BROWSER, timeout=60) as browser:
        assert views.process.pid is None, "who never looks pays nothing"
        page = await browser.get("/", follow_redirects=True)
        assert "Is it learning?" in page.text
        [style] = re.findall(r'<link rel="stylesheet" href="([^"]+)"', page.text)
        assert ":focus-visible" in (await browser.get(style)).text
        listed = (await browser.get("/window/json/conversations")).json()["conversations"]
        assert [each["session"] for each in listed] == ["s"]
        assert (await browser.get("/window/turn?id=nobody")).status_code == 404
        first = views.process.pid
        assert first is not None
        assert views.process.child is not None
        await asyncio.to_thread(views.process.child.kill)
        assert (await browser.get("/window/conversations")).status_code == 200
        assert views.process.pid != first


async def test_the_process_ends_when_nobody_looks(start: Starter) -> None:
    stack: Stack = await start()
    views = WindowProcess(stack.service.config, idle_seconds=0.2)
    await views.show(Asked("conversations", {}, "json", "", "", "", logged_in=False))
    child = views.process.child
    assert child is not None
    assert await asyncio.to_thread(child.wait, 60.0) is not None
    assert views.process.pid is None
    await views.close()


async def test_a_process_that_hangs_is_replaced_and_holds_few_looks(
    start: Starter, exits: AsyncExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    stack: Stack = await start()
    views = WindowProcess(stack.service.config)
    url = await served(exits, stack, views)
    async with httpx.AsyncClient(base_url=url, trust_env=False, headers=BROWSER, timeout=60) as browser:
        assert (await browser.get("/window/learning")).status_code == 200
        assert views.process.pid is not None
        os.kill(views.process.pid, signal.SIGSTOP)
        monkeypatch.setattr("openclaw.runtime.window.PATIENCE_SECONDS", 1.0)
        monkeypatch.setattr("openclaw.runtime.window.MOST_LOOKS", 1)
        looks = asyncio.as_completed([browser.get("/window/learning") for _ in range(2)])
        pages = [await page for page in looks]
        assert [page.status_code for page in pages] == [503, 503]
        assert "too many pages" in pages[0].text, "the second look is refused at once"
        assert "load the page again" in pages[1].text
        monkeypatch.setattr("openclaw.runtime.window.PATIENCE_SECONDS", 60.0)
        assert (await browser.get("/window/learning")).status_code == 200


async def test_a_view_that_fails_is_a_page_that_says_so(start: Starter, exits: AsyncExitStack) -> None:
    stack: Stack = await start()
    url = await served(exits, stack, WindowProcess(stack.service.config))
    async with httpx.AsyncClient(base_url=url, trust_env=False, headers=BROWSER, timeout=60) as browser:
        with closing(sqlite3.connect(stack.service.config.ledger or "")) as other:
            other.execute("ALTER TABLE turns RENAME TO elsewhere")
            page, twin = [await browser.get(f"/window/{view}") for view in ("conversations", "json/conversations")]
            other.execute("ALTER TABLE elsewhere RENAME TO turns")
        assert (page.status_code, "this page cannot be made" in page.text) == (500, True)
        assert page.headers["content-type"].startswith("text/html")
        assert (twin.status_code, twin.json()["error"]["type"]) == (500, "server_error")
        assert (await browser.get("/window/conversations")).status_code == 200


async def changed(browser: httpx.AsyncClient, path: str, **fields: str) -> tuple[int, str]:
    """Return the status of a form, and what the next page says."""
    answer = await browser.post(f"/window/{path}", data=fields, headers=OWN)
    said = parse_qs(urlsplit(answer.headers.get("location", "")).query).get("said", [""])[0]
    return answer.status_code, said


async def test_lessons_are_changed_by_their_person(site: Site) -> None:
    alice, bob = await site.logged_in("alice"), await site.logged_in("bob")
    of = site.stack.ledger.lessons.of
    assert await changed(alice, "lessons", do="add", text=" Keep answers short. ") == (303, "saved")
    [lesson] = of("alice")
    assert (lesson.text, of("bob")) == ("Keep answers short.", [])
    for fields, holds in (
        ({"do": "pin"}, lambda now: now.pinned),
        ({"do": "unpin"}, lambda now: not now.pinned),
        ({"do": "off"}, lambda now: now.reason == "off"),
        ({"do": "on"}, lambda now: now.is_served),
        ({"do": "edit", "text": "Write plain prose."}, lambda now: now.text == "Write plain prose."),
    ):
        assert (await changed(bob, "lessons", id=lesson.id, **fields))[0] == 404
        assert await changed(alice, "lessons", id=lesson.id, **fields) == (303, "saved")
        assert holds(of("alice")[0]), fields
    assert await changed(alice, "lessons", do="mode", lessons="confirm") == (303, "saved")
    assert site.stack.ledger.lessons.mode("alice", "off") == "confirm"
    for fields in ({"do": "x", "id": lesson.id}, {"do": "mode", "lessons": "x"}, {"do": "add", "text": "http://a.b"}):
        assert (await changed(alice, "lessons", **fields))[0] == 400
    assert await changed(alice, "lessons", do="remove", id=lesson.id) == (303, "removed")
    assert of("alice") == []


async def test_only_an_admin_decides_about_weights_that_all_share(site: Site) -> None:
    alice, root = await site.logged_in("alice"), await site.logged_in("root (admin)")
    for fields in ({"do": "rollback", "to": "1"}, {"do": "accept"}):
        assert (await changed(alice, "weights", **fields))[0] == 403
    assert site.views.changes == []
    assert await changed(root, "weights", do="rollback", to="1") == (303, "asked")
    assert await changed(root, "weights", do="accept") == (303, "accepted")
    assert (await changed(root, "weights", do="rollback", to="9"))[0] == 409
    assert site.views.changes == ["1", "accept"]


async def test_what_is_forgotten_is_ones_own(site: Site) -> None:
    for owner in ("alice", "bob"):
        record(site.stack, owner, f"turn-{owner}")
        site.stack.ledger.turns.record(make_turn(f"other-{owner}", session_id=stored_id(owner, "other")))
    alice = await site.logged_in("alice")

    def turns() -> set[str]:
        return {turn.id for turn in site.stack.turns()}

    assert (await changed(alice, "forget_conversation", id="@bob:s"))[0] == 404
    assert (await changed(alice, "forget_conversation", id="@alice:s"))[0] == 303
    assert turns() == {"other-alice", "turn-bob", "other-bob"}
    assert (await changed(alice, "forget"))[0] == 400
    assert "other-alice" in turns()
    assert await changed(alice, "forget", sure="yes") == (303, "forgotten")
    assert turns() == {"turn-bob", "other-bob"}
    child = await site.logged_in("alice/phone")
    assert (await changed(child, "forget", sure="yes"))[0] == 403


async def test_without_adapters_of_their_own_people_get_none(site: Site) -> None:
    alice = await site.logged_in("alice")
    assert (await changed(alice, "adapter", do="rollback", to="1"))[0] == 404
    assert (await alice.get("/window/export")).status_code == 404


async def test_one_talks_in_the_window_as_with_any_client(site: Site) -> None:
    browser = await site.logged_in("alice")
    name = "window-0123456789ab"
    site.stack.say("It is 5.", "Gladly: five.")
    for text in ("What is 2 + 3?", "In words\r\nplease"):
        answer = await browser.post("/window/say", data={"id": name, "text": text}, headers=OWN)
        assert (answer.status_code, answer.headers["location"]) == (303, f"/window/chat?id={name}"), answer.text
    first, second = site.stack.turns()
    assert first.session_id == second.session_id == f"@alice:{name}"
    assert [message["content"] for message in second.messages] == ["What is 2 + 3?", "It is 5.", "In words\nplease"]
    assert first.next_state == [{"role": "user", "content": "In words\nplease"}]
    assert (second.kind, second.response_message["content"]) == ("main", "Gladly: five.")
    form = {"response_id": second.id, "thumbs": "up", "id": name}
    answer = await browser.post("/window/feedback", data=form, headers=OWN)
    assert answer.headers["location"] == f"/window/chat?id={name}&said=counts"
    bob = await site.logged_in("bob")
    site.stack.say("Hello.")
    await bob.post("/window/say", data={"id": name, "text": "Hi"}, headers=OWN)
    assert len(site.stack.turns()[-1].messages) == 1, "a name of alice's is bob's own conversation"


@asynccontextmanager
async def following(browser: httpx.AsyncClient, revision: str = "1") -> AsyncIterator[AsyncIterator[str]]:
    """Open the events of a page and give the revisions that it hears of."""
    words = {"view": "mine", "revision": revision}
    async with browser.stream("GET", "/window/events", params=words, headers=EVENTS) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        lines = answer.aiter_lines()
        assert (await anext(lines)).startswith(":"), "it is connected at once"

        async def revisions() -> AsyncIterator[str]:
            async for line in lines:
                if line.startswith("data: "):
                    yield orjson.loads(line.removeprefix("data: "))["revision"]

        yield revisions()


EVENTS = {**OWN, "accept": "text/event-stream"}


async def over(revisions: AsyncIterator[str]) -> None:
    async with asyncio.timeout(10):
        assert [revision async for revision in revisions] == []


async def test_a_page_hears_of_its_own_changes_until_it_is_closed(site: Site) -> None:
    alice, bob = await site.logged_in("alice"), await site.logged_in("bob")
    async with following(alice) as heard, following(bob, "of others") as elsewhere:
        site.views.revision = "2"
        assert await anext(heard) == "2"
        site.views.revision = "3"
        assert await anext(heard) == "3"
        waits = asyncio.ensure_future(anext(elsewhere))
        await asyncio.sleep(0.1)
        assert not waits.done(), "what alice does is none of bob's business"
        waits.cancel()
        await asyncio.gather(waits, return_exceptions=True)
        async with following(await site.logged_in("alice"), "1") as missed:
            assert await anext(missed) == "3", "what changed while nobody listened"
    async with asyncio.timeout(10):
        while len(site.pages):
            await asyncio.sleep(0.01)
        while site.pages._watch is not None:
            await asyncio.sleep(0.01)


async def test_events_end_with_the_log_in_the_key_the_views_and_the_server(site: Site) -> None:
    browser = await site.logged_in("alice")
    async with following(browser) as heard:
        await (await site.logged_in("alice")).post("/window/log_out", headers=OWN)
        await asyncio.sleep(0.05)
        assert len(site.pages) == 1, "another browser of the same person"
        await browser.post("/window/log_out", headers=OWN)
        await over(heard)
    browser = await site.logged_in("alice")
    async with following(browser) as heard:
        site.views.fails = True
        await over(heard)
    site.views.fails = False
    async with following(browser) as heard:
        site.views.busy, site.views.revision = True, "2"
        await asyncio.sleep(0.05)
        assert len(site.pages) == 1, "views that are busy end no page"
        site.views.busy = False
        assert await anext(heard) == "2"
    site.views.revision = "1"
    async with following(browser) as heard:
        site.keys.write_text("bob:" + key_of("bob") + "\n")
        await over(heard)
    browser = await site.logged_in("bob")
    async with following(browser, "of others") as heard:
        site.pages.stop()
        await over(heard)


async def test_an_open_page_asks_for_the_key_from_its_own_address(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    addresses: list[str] = []
    client_of = LogIns.client

    def client(log_ins: LogIns, headers: Any, address: str = "") -> Any:
        addresses.append(address)
        return client_of(log_ins, headers, address)

    monkeypatch.setattr(LogIns, "client", client)
    async with following(await site.logged_in("alice")):
        while len(addresses) < 4:
            await asyncio.sleep(0.01)
    assert set(addresses) == {"127.0.0.1"}


async def test_events_are_for_who_may_see_the_page_alone(site: Site) -> None:
    words = {"view": "mine"}
    answer = await (await site.browser()).get("/window/events", params=words, headers=EVENTS)
    assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_api_key")
    browser = await site.logged_in("alice")
    for headers in ({"origin": "http://evil.example"}, {"sec-fetch-site": "cross-site"}, FRONT):
        answer = await browser.get("/window/events", params=words, headers={**EVENTS, **headers})
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "origin_not_allowed")
    assert len(site.pages) == 0


FRONT = {"origin": "http://front.example", "sec-fetch-site": "cross-site"}


async def test_a_key_keeps_few_pages_up_to_date(site: Site) -> None:
    alice, bob = await site.logged_in("alice"), await site.logged_in("bob")
    async with AsyncExitStack() as pages:
        for _ in range(WINDOW_PAGES.most):
            await pages.enter_async_context(following(alice))
        answer = await alice.get("/window/events", params={"view": "mine"}, headers=EVENTS)
        assert (answer.status_code, answer.headers["x-limit"]) == (429, "window_pages")
        await pages.enter_async_context(following(bob, "of others"))


async def test_a_real_page_hears_what_the_ledger_gets(start: Starter, exits: AsyncExitStack) -> None:
    stack: Stack = await start()
    url, _ = await served_pages(exits, stack, WindowProcess(stack.service.config))
    async with httpx.AsyncClient(base_url=url, trust_env=False, headers=BROWSER, timeout=60) as browser:
        page = (await browser.get("/window/mine")).text
        [revision] = re.findall(r'data-revision="(\w+)"', page)
        async with following(browser, revision) as heard:
            stack.ledger.lessons.add("", "Keep answers short.")
            [now] = re.findall(r'data-revision="(\w+)"', (await browser.get("/window/mine")).text)
            async with asyncio.timeout(30):
                assert await anext(heard) == now != revision


async def test_the_script_gets_the_reply_as_it_is_written(site: Site) -> None:
    browser = await site.logged_in("alice")
    form = {"id": "window-0123456789ab", "text": "What is 2 + 3?"}
    headers = {**OWN, "accept": "text/event-stream"}
    site.stack.say("It is 5.")
    async with browser.stream("POST", "/window/say", data=form, headers=headers) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert "script-src 'self'" in answer.headers["content-security-policy"]
        lines = [line.removeprefix("data: ") async for line in answer.aiter_lines() if line.startswith("data: ")]
    assert lines[-1] == "[DONE]"
    chunks = [orjson.loads(line) for line in lines[:-1]]
    words = "".join(choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"])
    [turn] = site.stack.turns()
    assert (words, turn.response_message["content"]) == ("It is 5.", "It is 5.")
    assert (turn.session_id, {chunk["id"] for chunk in chunks}) == ("@alice:window-0123456789ab", {turn.id})
    answer = await browser.post("/window/say", data={**form, "text": " "}, headers=headers)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "text")
    answer = await browser.post("/window/say", data={**form, "text": "x" * 20_000}, headers=headers)
    assert (answer.status_code, "maximum context" in answer.json()["error"]["message"]) == (400, True)


async def test_who_leaves_the_page_aborts_the_reply(site: Site) -> None:
    browser = await site.logged_in("alice")
    form = {"id": "window-0123456789ab", "text": "Count."}
    engine = site.stack.engine
    engine.token_gate = asyncio.Semaphore(2)
    site.stack.say("one two three four")
    headers = {**OWN, "accept": "text/event-stream"}
    async with browser.stream("POST", "/window/say", data=form, headers=headers) as answer:
        async for _ in answer.aiter_bytes():
            break
    await engine.wait_for(lambda: len(engine.aborted) == 1 and not engine.running)
    async with asyncio.timeout(10):
        while not site.stack.turns():
            await asyncio.sleep(0.01)
    assert [turn.reason for turn in site.stack.turns()] == ["aborted"]


async def test_nothing_is_asked_without_words_or_a_conversation(site: Site) -> None:
    browser = await site.logged_in("alice")
    for form in ({"text": "Hi"}, {"id": "window-0123456789ab", "text": "  "}, {"id": "@bob:s", "text": "Hi"}):
        assert (await browser.post("/window/say", data=form, headers=OWN)).status_code == 400
    assert site.stack.engine.requests == []


async def test_an_engine_that_is_away_is_told(site: Site) -> None:
    browser = await site.logged_in("alice")
    form = {"id": "window-0123456789ab", "text": "x" * 20_000}
    answer = await browser.post("/window/say", data=form, headers=OWN)
    assert (answer.status_code, 'role="alert"' in answer.text) == (400, True), "longer than the context"
    assert site.stack.turns() == []


class Versions:
    """Earlier versions that answer with their number, of which only the base is anybody's."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    async def kept(self, owner: str) -> list[str]:
        return ["2", "0"] if owner == "alice" else ["0"]

    async def generate(self, owner: str, wanted: Wanted) -> AsyncIterator[TokenChunk]:
        ids = self._tokenizer.encode(f"I am {wanted.version}.", add_special_tokens=False)
        yield TokenChunk(ids, [-0.5] * len(ids), wanted.version)
        end = self._tokenizer.eos_token_id
        yield TokenChunk([end], [-0.5], wanted.version, "stop")

    async def close(self) -> None:
        """Hold nothing."""


@pytest.fixture
async def past(start: Starter, tmp_path: Path, exits: AsyncExitStack, tokenizer: Any) -> Site:
    """A server with a window and earlier versions."""
    keys = tmp_path / "keys"
    keys.write_text(KEYS)
    keys.chmod(0o600)
    stack: Stack = await start(api_keys_file=str(keys), earlier=Versions(tokenizer))
    views = Echo()
    url, pages = await served_pages(exits, stack, views)
    return Site(stack, url, views, keys, exits, pages)


LEFT, RIGHT = "window-0123456789ab", "window-ba9876543210"


async def test_one_talks_to_an_earlier_version(past: Site) -> None:
    browser = await past.logged_in("alice")
    form = {"id": LEFT, "text": "Who are you?", "version": "2"}
    answer = await browser.post("/window/say", data=form, headers=OWN)
    assert (answer.status_code, answer.headers["location"]) == (303, f"/window/chat?id={LEFT}&version=2")
    [turn] = past.stack.turns()
    assert (turn.response_message["content"], turn.reason) == ("I am 2.", "earlier_version")
    form = {"response_id": turn.id, "thumbs": "up", "id": LEFT, "version": "2"}
    answer = await browser.post("/window/feedback", data=form, headers=OWN)
    assert answer.headers["location"] == f"/window/chat?id={LEFT}&version=2&said=earlier_version"
    bob = await past.logged_in("bob")
    answer = await bob.post("/window/say", data={"id": LEFT, "text": "And you?", "version": "2"}, headers=OWN)
    assert (answer.status_code, "there is no version" in answer.text) == (404, True), "it is alice's"


async def test_two_versions_are_asked_side_by_side(past: Site) -> None:
    browser = await past.logged_in("alice")
    past.stack.say("I serve.", "Still.", "Yes.")
    places = {"id": LEFT, "beside": RIGHT, "other": "0"}
    for text in ("Who are you?", "Really?"):
        answer = await browser.post("/window/say", data=places | {"text": text}, headers=OWN)
        assert answer.headers["location"] == f"/window/chat?id={LEFT}&beside={RIGHT}&other=0"
    said = {name: [] for name in (LEFT, RIGHT)}
    for turn in past.stack.turns():
        said[turn.session_id.removeprefix("@alice:")].append((turn.response_message["content"], turn.state))
    assert said[LEFT] == [("I serve.", "pending"), ("Still.", "waiting")], "this one learns as ever"
    assert said[RIGHT] == [("I am 0.", "excluded")] * 2
    for odd in ({"beside": "else"}, {"beside": "@bob:s"}):
        answer = await browser.post("/window/say", data=places | {"text": "Hm"} | odd, headers=OWN)
        assert answer.status_code == 400


async def test_half_a_comparison_says_which_version_did_not_answer(past: Site) -> None:
    browser = await past.logged_in("alice")
    past.stack.say("I serve.")
    places = {"id": LEFT, "beside": RIGHT, "text": "Who are you?"}
    answer = await browser.post("/window/say", data=places | {"other": "9"}, headers=OWN)
    where = urlsplit(answer.headers["location"])
    assert (answer.status_code, parse_qs(where.query)["said"]) == (303, ["second_silent"])
    answer = await browser.post("/window/say", data=places | {"version": "9", "other": "0"}, headers=OWN)
    assert parse_qs(urlsplit(answer.headers["location"]).query)["said"] == ["first_silent"]
    assert [turn.response_message["content"] for turn in past.stack.turns()] == ["I serve.", "I am 0."]
    answer = await browser.post("/window/say", data=places | {"version": "9", "other": "8"}, headers=OWN)
    assert (answer.status_code, "there is no version" in answer.text) == (404, True), "neither answered"


async def test_a_comparison_counts_the_tokens_of_both(past: Site) -> None:
    browser = await past.logged_in("alice")
    places = {"id": LEFT, "beside": RIGHT, "text": "Who are you?", "version": "2", "other": "0"}
    await browser.post("/window/say", data=places, headers=OWN)
    generated = sum(len(turn.response_ids) for turn in past.stack.turns())
    assert len(past.stack.turns()) == 2
    assert past.stack.metric("openclaw_key_tokens_total", key="alice", kind="generated") == generated


async def test_a_version_says_what_it_would_have_said(past: Site) -> None:
    browser = await past.logged_in("alice")
    record(past.stack, "alice", "turn-a")
    record(past.stack, "bob", "turn-b")
    answer = await browser.post("/window/ask_version", data={"turn": "turn-a", "version": "2"}, headers=OWN)
    where = urlsplit(answer.headers["location"])
    [name], [version] = (parse_qs(where.query)[word] for word in ("id", "version"))
    assert (answer.status_code, where.path, version) == (303, "/window/chat", "2")
    turn = past.stack.turns()[-1]
    assert (turn.session_id, turn.response_message["content"]) == (f"@alice:{name}", "I am 2.")
    assert turn.messages == past.stack.ledger.turns.get("turn-a").messages
    for other in ("turn-b", "nobody"):
        answer = await browser.post("/window/ask_version", data={"turn": other, "version": "0"}, headers=OWN)
        assert answer.status_code == 404
