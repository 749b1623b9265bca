"""Lessons in requests: where they stand, who gets them, what the ledger keeps, and the routes by which a person changes them."""

from __future__ import annotations

import random
from bisect import bisect_left
from pathlib import Path
from typing import Any

import httpx
import pytest

from chat_codec.renderer import Renderer, RenderError
from openclaw.gateway.lessons import FRESH_SECONDS
from openclaw.judge.lessons import typed_words
from openclaw.ledger.exceptions import LedgerUnavailableError
from openclaw.ledger.lessons import Lessons
from openclaw.ledger.records import Verdict
from openclaw.ledger.turns import Turns
from openclaw.lessons.lesson import MAX_SERVED
from openclaw.messages.hints import HINT_TAG, append_hint
from tests.unit.gateway.conftest import Stack, Starter

HELLO = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "What is 2 + 3?"}]
LESSON = "Keep answers short."
KEYS = "alice:alice-key-123456\nalice/phone:phone-key-123456\nbob:bob-key-1234567\nroot (admin):root-key-123456\n"


def as_key(name: str) -> dict[str, str]:
    [key] = [line.partition(":")[2] for line in KEYS.splitlines() if line.partition(":")[0] == name]
    return {"Authorization": f"Bearer {key}"}


async def ask(
    stack: Stack, http: httpx.AsyncClient, messages: Any = HELLO, headers: dict[str, str] | None = None, **body: Any
) -> httpx.Response:
    stack.say("5")
    asked = {"model": "m", "messages": messages, **body}
    return await http.post("/v1/chat/completions", json=asked, headers=headers or {})


def sent(stack: Stack) -> list[int]:
    return stack.engine.requests[-1]["input_ids"]


@pytest.fixture
async def keyed(start: Starter, tmp_path: Path) -> Stack:
    """A server with the keys of alice, of her phone and of bob; lessons are on."""
    path = tmp_path / "keys"
    path.write_text(KEYS)
    path.chmod(0o600)
    return await start(api_keys_file=str(path), lessons="auto")


async def test_a_lesson_stands_at_the_end_of_the_last_user_message(stack: Stack, http: httpx.AsyncClient) -> None:
    render = Renderer(stack.tokenizer).render
    await http.put("/v1/me", json={"lessons": "auto"})
    assert "x-openclaw-lessons" not in (await ask(stack, http)).headers
    added = (await http.post("/v1/lessons", json={"text": LESSON})).json()
    await http.post("/v1/lessons", json={"text": "Answer in German."})
    response = await ask(stack, http)
    assert response.headers["x-openclaw-lessons"] == "2"
    expected = render(append_hint(HELLO, f"{LESSON}\nAnswer in German."))
    assert sent(stack) == expected
    assert HINT_TAG in stack.tokenizer.decode(expected)
    assert response.json()["usage"]["prompt_tokens"] == len(expected)
    turn = stack.turns()[-1]
    assert turn.prompt_ids == expected
    assert turn.student_ids == render(HELLO)
    assert turn.messages == HELLO
    [kept, _] = (await http.get("/v1/lessons")).json()["data"]
    assert (kept["id"], kept["served"], kept["served_at"] is not None) == (added["id"], 1, True)
    assert stack.metric("openclaw_lessons_total", outcome="served") == 1


async def test_a_conversation_goes_on_under_lessons(stack: Stack, http: httpx.AsyncClient) -> None:
    """The next request carries the client's own messages: the turns follow each other, and the new prompt is exact."""
    await http.put("/v1/me", json={"lessons": "auto"})
    await http.post("/v1/lessons", json={"text": LESSON})
    first = (await ask(stack, http)).json()["choices"][0]["message"]
    tools = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}
    longer = [*HELLO, first, {"role": "user", "content": "And 3 + 4?"}]
    await ask(stack, http, longer, tools=[tools])
    one, two = stack.turns()
    assert one.session_id == two.session_id
    assert one.next_state == [longer[-1]]
    assert two.prompt_ids == Renderer(stack.tokenizer).render(append_hint(longer, LESSON), [tools])
    assert two.student_ids == Renderer(stack.tokenizer).render(longer, [tools])


async def test_a_streamed_reply_tells_its_lessons_and_choices_share_them(stack: Stack, http: httpx.AsyncClient) -> None:
    await http.put("/v1/me", json={"lessons": "auto"})
    await http.post("/v1/lessons", json={"text": LESSON})
    stack.say("5")
    body = {"model": "m", "messages": HELLO, "stream": True}
    async with http.stream("POST", "/v1/chat/completions", json=body) as response:
        assert response.headers["x-openclaw-lessons"] == "1"
        await response.aread()
    assert stack.turns()[-1].plain is not None


@pytest.mark.parametrize(
    ("headers", "told"),
    [
        ({"X-Turn-Type": "side"}, 0),
        ({"X-Turn-Type": "side", "X-OpenClaw-Lessons": "on"}, 1),
        ({"X-OpenClaw-Lessons": "off"}, 0),
        ({"X-OpenClaw-Lessons": "On"}, 1),
        ({}, 1),
    ],
)
async def test_side_turns_carry_lessons_only_if_asked(
    stack: Stack, http: httpx.AsyncClient, headers: dict[str, str], told: int
) -> None:
    await http.put("/v1/me", json={"lessons": "auto"})
    await http.post("/v1/lessons", json={"text": LESSON})
    response = await ask(stack, http, headers=headers)
    assert int(response.headers.get("x-openclaw-lessons", 0)) == told
    assert (sent(stack) == Renderer(stack.tokenizer).render(HELLO)) == (told == 0)


async def test_an_unknown_wish_is_refused(stack: Stack, http: httpx.AsyncClient) -> None:
    response = await ask(stack, http, headers={"X-OpenClaw-Lessons": "maybe"})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "X-OpenClaw-Lessons"


@pytest.mark.parametrize("mode", ["off", "confirm"])
async def test_the_mode_decides(start: Starter, mode: str) -> None:
    stack: Stack = await start(lessons=mode)
    async with httpx.AsyncClient(base_url=stack.url, trust_env=False) as http:
        assert (await http.get("/v1/me")).json()["lessons"] == mode
        await http.post("/v1/lessons", json={"text": LESSON})
        told = (await ask(stack, http)).headers.get("x-openclaw-lessons")
        assert told == (None if mode == "off" else "1"), "an owner's own lesson needs no confirmation"
        await http.put("/v1/me", json={"lessons": "off"})
        assert "x-openclaw-lessons" not in (await ask(stack, http, headers={"X-OpenClaw-Lessons": "on"})).headers


async def test_no_person_gets_another_persons_lessons(keyed: Stack) -> None:
    async with httpx.AsyncClient(base_url=keyed.url, trust_env=False) as http:
        made = (await http.post("/v1/lessons", json={"text": LESSON}, headers=as_key("alice"))).json()
        for name, told in (("alice", "1"), ("alice/phone", "1"), ("bob", None)):
            response = await ask(keyed, http, headers=as_key(name))
            assert response.headers.get("x-openclaw-lessons") == told, name
        listed = (await http.get("/v1/lessons", headers=as_key("bob"))).json()
        assert listed["data"] == []
        path = f"/v1/lessons/{made['id']}"
        for response in (
            await http.patch(path, json={"text": "Be rude."}, headers=as_key("bob")),
            await http.delete(path, headers=as_key("bob")),
            await http.delete("/v1/lessons/lesson-unknown", headers=as_key("bob")),
        ):
            assert (response.status_code, response.json()["error"]["code"]) == (404, "lesson_not_found")
        assert (await http.delete("/v1/lessons", headers=as_key("bob"))).json()["deleted"] == 0
        assert (await http.get("/v1/lessons", headers=as_key("alice/phone"))).json()["data"][0]["text"] == LESSON


async def test_an_admins_comment_is_no_word_of_the_person(keyed: Stack) -> None:
    async with httpx.AsyncClient(base_url=keyed.url, trust_env=False) as http:
        reply = (await ask(keyed, http, headers=as_key("alice/phone"))).json()["id"]
        said = {"root (admin)": 200, "bob": 404, "alice": 200, "alice/phone": 200}
        for name, status in said.items():
            body = {"response_id": reply, "text": f"Words of {name}."}
            assert (await http.post("/v1/feedback", json=body, headers=as_key(name))).status_code == status
    [turn] = keyed.turns()
    words = typed_words(turn, Verdict(score=1), keyed.ledger.feedback.of(turn.id))
    assert words == "Words of alice.\n\nWords of alice/phone."


async def test_the_agent_of_an_episode_reaches_no_lesson(keyed: Stack) -> None:
    async with httpx.AsyncClient(base_url=keyed.url, trust_env=False) as http:
        await http.post("/v1/lessons", json={"text": LESSON}, headers=as_key("alice"))
        episode = (await http.post("/v1/episodes", json={"task": "t", "ttl_s": 600}, headers=as_key("alice"))).json()
        agent = {"Authorization": f"Bearer {episode['api_key']}"}
        for method, path in (("GET", "/v1/lessons"), ("POST", "/v1/lessons"), ("GET", "/v1/me"), ("PUT", "/v1/me")):
            body = None if method == "GET" else {"text": LESSON}
            response = await http.request(method, path, json=body, headers=agent)
            assert (response.status_code, response.json()["error"]["code"]) == (403, "episode_key")
        assert "x-openclaw-lessons" not in (await ask(keyed, http, headers=agent)).headers
        asked = await ask(keyed, http, headers=agent | {"X-OpenClaw-Lessons": "on"})
        assert asked.headers["x-openclaw-lessons"] == "1"
        plain, told = keyed.turns()
        assert (plain.reason, told.reason) == ("episode", "under_lesson")


async def test_a_reply_that_fits_only_without_lessons_is_served_plain(start: Starter) -> None:
    stack: Stack = await start(lessons="auto")
    plain = len(Renderer(stack.tokenizer).render(HELLO))
    async with httpx.AsyncClient(base_url=stack.url, trust_env=False) as http:
        await http.post("/v1/lessons", json={"text": LESSON})
        response = await ask(stack, http, max_tokens=2048 - plain - 1)
        assert response.status_code == 200
        assert "x-openclaw-lessons" not in response.headers
        assert sent(stack) == Renderer(stack.tokenizer).render(HELLO)
        assert stack.turns()[-1].plain is None
        assert stack.metric("openclaw_lessons_total", outcome="overflow") == 1


@pytest.mark.parametrize("more", [0, 1, 10**6])
async def test_who_asks_for_as_much_as_fits_gets_lessons(start: Starter, more: int) -> None:
    """OpenClaw without maxTokens asks for more than fits; the reply gets what the lessons leave."""
    stack: Stack = await start(lessons="auto")
    render = Renderer(stack.tokenizer).render
    async with httpx.AsyncClient(base_url=stack.url, trust_env=False) as http:
        await http.post("/v1/lessons", json={"text": LESSON})
        response = await ask(stack, http, max_tokens=2048 - len(render(HELLO)) + more)
        assert response.headers["x-openclaw-lessons"] == "1"
        told = render(append_hint(HELLO, LESSON))
        assert sent(stack) == told
        assert stack.engine.requests[-1]["sampling_params"]["max_new_tokens"] == 2048 - len(told)


@pytest.mark.parametrize("asked", [{}, {"max_tokens": 10**6}])
async def test_lessons_take_at_most_half_of_the_room(start: Starter, asked: dict[str, int]) -> None:
    stack: Stack = await start(lessons="auto")
    render = Renderer(stack.tokenizer).render

    def prompt(words: int) -> list[dict[str, str]]:
        return [{"role": "user", "content": "no " * words}]

    def told(words: int) -> int:
        return len(render(append_hint(prompt(words), LESSON)))

    longest = bisect_left(range(2048), 2048, key=told) - 1
    assert told(longest) < 2048 <= told(longest + 1)
    async with httpx.AsyncClient(base_url=stack.url, trust_env=False) as http:
        await http.post("/v1/lessons", json={"text": LESSON})
        response = await ask(stack, http, prompt(longest), **asked)
        assert response.status_code == 200
        assert "x-openclaw-lessons" not in response.headers
        assert stack.metric("openclaw_lessons_total", outcome="overflow") == 1


async def test_a_template_that_refuses_the_lessons_serves_the_plain_prompt(
    stack: Stack, http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    await http.put("/v1/me", json={"lessons": "auto"})
    await http.post("/v1/lessons", json={"text": LESSON})
    render = Renderer.render

    def refuse(self: Renderer, messages: Any, *args: Any) -> list[int]:
        if LESSON in str(messages):
            raise RenderError("no such place")
        return render(self, messages, *args)

    monkeypatch.setattr(Renderer, "render", refuse)
    response = await ask(stack, http)
    assert response.status_code == 200
    assert "x-openclaw-lessons" not in response.headers
    assert stack.metric("openclaw_lessons_total", outcome="refused") == 1


async def test_no_first_token_waits_for_the_prompt_without_lessons(
    stack: Stack, http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    await http.put("/v1/me", json={"lessons": "auto"})
    await http.post("/v1/lessons", json={"text": LESSON})
    render, asked_before = Renderer.render, dict[bool, int]()

    def watched(self: Renderer, messages: Any, *args: Any) -> list[int]:
        asked_before[LESSON in str(messages)] = len(stack.engine.requests)
        return render(self, messages, *args)

    monkeypatch.setattr(Renderer, "render", watched)
    assert (await ask(stack, http)).headers["x-openclaw-lessons"] == "1"
    assert asked_before == {True: 0, False: 1}
    assert stack.turns()[-1].student_ids == Renderer(stack.tokenizer).render(HELLO)


async def test_a_prompt_that_cannot_be_found_without_lessons_leaves_no_turn(
    stack: Stack, http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    await http.put("/v1/me", json={"lessons": "auto"})
    await http.post("/v1/lessons", json={"text": LESSON})
    render = Renderer.render

    def refuse(self: Renderer, messages: Any, *args: Any) -> list[int]:
        if LESSON not in str(messages):
            raise RenderError("too short")
        return render(self, messages, *args)

    with monkeypatch.context() as broken:
        broken.setattr(Renderer, "render", refuse)
        assert (await ask(stack, http)).status_code == 500
    assert stack.turns() == []
    assert (await ask(stack, http)).status_code == 200
    assert len(stack.turns()) == 1


async def test_a_ledger_that_is_away_takes_only_the_lessons(
    stack: Stack, http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(self: Lessons, person: str, default: str) -> str:
        raise LedgerUnavailableError("locked")

    monkeypatch.setattr(Lessons, "mode", away)
    assert (await ask(stack, http)).status_code == 200
    assert stack.metric("openclaw_lessons_total", outcome="ledger") == 1


async def test_a_lesson_is_edited_pinned_switched_off_and_deleted(stack: Stack, http: httpx.AsyncClient) -> None:
    await http.put("/v1/me", json={"lessons": "auto"})
    made = (await http.post("/v1/lessons", json={"text": LESSON})).json()
    path = f"/v1/lessons/{made['id']}"
    assert "person" not in made
    changed = (await http.patch(path, json={"text": "Answer in German.", "pinned": True})).json()
    assert (changed["text"], changed["pinned"], changed["touched"]) == ("Answer in German.", True, True)
    await ask(stack, http)
    assert "Answer in German." in stack.tokenizer.decode(sent(stack))
    assert (await http.patch(path, json={"on": False})).json()["state"] == "resting"
    assert "x-openclaw-lessons" not in (await ask(stack, http)).headers
    assert (await http.patch(path, json={"on": True})).json()["state"] == "trial"
    assert (await http.delete(path)).json() == {"id": made["id"], "object": "lesson", "deleted": True, "erased": True}
    assert stack.turns()[0].prompt_ids == stack.turns()[0].student_ids
    assert (await http.get("/v1/lessons")).json() == {"object": "list", "lessons": "auto", "data": []}


async def test_edited_words_leave_the_disk(stack: Stack, http: httpx.AsyncClient) -> None:
    await http.put("/v1/me", json={"lessons": "auto"})
    made = (await http.post("/v1/lessons", json={"text": "Keep zebras striped."})).json()
    await ask(stack, http)
    path = f"/v1/lessons/{made['id']}"
    assert "erased" not in (await http.patch(path, json={"pinned": True})).json()
    assert (await http.patch(path, json={"text": LESSON})).json()["erased"] is True
    ledger = stack.ledger.database.path
    everything = b"".join(each.read_bytes() for each in ledger.parent.glob(f"{ledger.name}*"))
    assert b"zebras" not in everything


async def test_a_reply_under_way_while_its_lesson_is_edited_is_no_evidence(
    stack: Stack, http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    await http.put("/v1/me", json={"lessons": "auto"})
    made = (await http.post("/v1/lessons", json={"text": LESSON})).json()
    insert = Turns.insert

    def edited(self: Turns, connection: Any, turn: Any) -> None:
        monkeypatch.undo()
        stack.ledger.lessons.edit("", made["id"], text="Answer in German.")
        insert(self, connection, turn)

    monkeypatch.setattr(Turns, "insert", edited)
    assert (await ask(stack, http)).headers["x-openclaw-lessons"] == "1"
    [turn] = stack.turns()
    assert turn.prompt_ids == turn.student_ids == Renderer(stack.tokenizer).render(HELLO)
    [lesson] = (await http.get("/v1/lessons")).json()["data"]
    assert (lesson["text"], lesson["served"]) == ("Answer in German.", 0)


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", "/v1/lessons", {"text": "See https://evil.example/."}, 400),
        ("POST", "/v1/lessons", {"text": ""}, 400),
        ("POST", "/v1/lessons", {"text": "x" * 300}, 400),
        ("POST", "/v1/lessons", {"text": LESSON, "state": "active"}, 400),
        ("POST", "/v1/lessons", {"text": "x" * 20000}, 413),
        ("PATCH", "/v1/lessons/lesson-1", {}, 400),
        ("PATCH", "/v1/lessons/lesson-1", {"on": True}, 404),
        ("PUT", "/v1/me", {"lessons": "always"}, 400),
        ("PUT", "/v1/me", {}, 400),
    ],
)
async def test_bad_requests_say_what_to_send(
    stack: Stack, http: httpx.AsyncClient, method: str, path: str, body: dict[str, Any], status: int
) -> None:
    response = await http.request(method, path, json=body)
    assert (response.status_code, response.json()["error"]["message"] != "") == (status, True)


@pytest.mark.parametrize("most", [MAX_SERVED, 2])
async def test_at_most_a_few_lessons_are_carried(start: Starter, most: int) -> None:
    stack = await start(most_lessons=most)
    async with httpx.AsyncClient(base_url=stack.url, trust_env=False) as http:
        await http.put("/v1/me", json={"lessons": "auto"})
        for word in ["alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta"]:
            stack.clock[0] += 1.0
            await http.post("/v1/lessons", json={"text": f"Say {word}."})
        response = await ask(stack, http)
    assert response.headers["x-openclaw-lessons"] == str(most)
    assert stack.tokenizer.decode(sent(stack)).count("Say ") == most
    assert "Say theta." in stack.tokenizer.decode(sent(stack)).split("Say eta.")[1], "the newest is last"


async def test_another_process_changes_lessons(stack: Stack, http: httpx.AsyncClient) -> None:
    """The command writes to the ledger; the gateway believes its memory for seconds only."""
    now = [0.0]
    stack.service.lessons._monotonic = lambda: now[0]
    await http.put("/v1/me", json={"lessons": "auto"})
    assert "x-openclaw-lessons" not in (await ask(stack, http)).headers
    stack.ledger.lessons.add("", LESSON)
    assert "x-openclaw-lessons" not in (await ask(stack, http)).headers
    now[0] += FRESH_SECONDS
    assert (await ask(stack, http)).headers["x-openclaw-lessons"] == "1"


async def test_generated_requests_leak_no_lesson(keyed: Stack) -> None:
    """Whoever asks, with whatever headers, session ids and histories of others: a prompt has its own person's lessons or none."""
    rng = random.Random(36)
    secrets = {"alice": "Say walnut at the end.", "bob": "Say papaya at the end."}
    async with httpx.AsyncClient(base_url=keyed.url, trust_env=False) as http:
        for name, text in secrets.items():
            assert (await http.post("/v1/lessons", json={"text": text}, headers=as_key(name))).status_code == 200
        histories: list[list[dict[str, Any]]] = [HELLO]
        told = 0
        for number in range(150):
            name = rng.choice(["alice", "alice/phone", "bob"])
            headers = as_key(name)
            for header, values in {
                "X-Session-Id": ["hers", "@alice:hers", "@bob:hers", f"s{number}"],
                "X-OpenClaw-Lessons": ["on", "off"],
                "X-Turn-Type": ["main", "side"],
                "X-OpenClaw-Person": ["alice", "bob"],
            }.items():
                if rng.random() < 0.5:
                    headers[header] = rng.choice(values)
            messages = [*rng.choice(histories), {"role": "user", "content": f"Question {rng.randrange(9)}?"}]
            answer = await ask(keyed, http, messages, headers, n=1, user=rng.choice(["alice", "bob"]))
            histories.append([*messages, answer.json()["choices"][0]["message"]])
            prompt = keyed.tokenizer.decode(sent(keyed))
            person = name.partition("/")[0]
            [other] = secrets.keys() - {person}
            assert secrets[other] not in prompt, (name, headers)
            assert (secrets[person] in prompt) == ("x-openclaw-lessons" in answer.headers)
            told += secrets[person] in prompt
        assert told > 40
        for name in secrets:
            listed = (await http.get("/v1/lessons", headers=as_key(name))).json()["data"]
            assert [each["text"] for each in listed] == [secrets[name]]
