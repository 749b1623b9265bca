"""A request names a version of the weights: who may, what it may ask, what is recorded, and the process that answers."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest

from groundwork.process import ChildProcess, spawn
from lab.testkit.waiting import eventually
from openclaw.config.runtime import RuntimeConfig
from openclaw.engine.client import TokenChunk
from openclaw.exceptions import VersionRefusedError
from openclaw.gateway.auth import Keyring
from openclaw.gateway.channel import Channel
from openclaw.gateway.earlier import EarlierVersions, Wanted, version_in
from openclaw.gateway.shared import Lead, PassedOn, Shared
from openclaw.runtime import earlier, kept_process
from openclaw.runtime.adapters import forget_adapter
from openclaw.runtime.earlier import EarlierProcess
from openclaw.runtime.where import scratch_of
from tests.helpers import stand_in_earlier
from tests.helpers.stand_in_earlier import DIES, FULL, HANGS
from tests.unit.gateway.conftest import Stack, Starter

NAME = "tiny-policy"
SILENT = "silent"
"""A version that never gives a token."""
ASKED = [{"role": "user", "content": "What is 2 + 3?"}]


class Kept:
    """Versions that answer with a text, of which one person may ask more."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self.asked: list[tuple[str, Wanted]] = []
        self.refusal: VersionRefusedError | None = None
        self.under_way = 0

    async def kept(self, owner: str) -> list[str]:
        return ["3", "0"] if owner == "" else ["0"]

    async def generate(self, owner: str, wanted: Wanted) -> AsyncGenerator[TokenChunk, None]:
        self.asked.append((owner, wanted))
        if self.refusal is not None:
            raise self.refusal
        if wanted.version == SILENT:
            self.under_way += 1
            try:
                await asyncio.Event().wait()
            finally:
                self.under_way -= 1
        ids = [
            *self._tokenizer.encode(f"Version {wanted.version}.", add_special_tokens=False),
            self._tokenizer.eos_token_id,
        ]
        for token in ids:
            last = token == self._tokenizer.eos_token_id
            yield TokenChunk([token], [-0.25], wanted.version, "stop" if last else None)

    @asynccontextmanager
    async def forgetting(self) -> AsyncIterator[None]:
        """Hold nothing."""
        yield

    async def close(self) -> None:
        """Hold nothing."""


@pytest.fixture
def kept(tokenizer: Any) -> Kept:
    return Kept(tokenizer)


@pytest.fixture
async def stack(start: Starter, kept: Kept) -> Stack:
    return await start(earlier=kept)


async def ask(http: httpx.AsyncClient, version: str | None, **changes: Any) -> httpx.Response:
    body = {"messages": ASKED, "session_id": "s", **changes}
    return await http.post("/v1/chat/completions", json=body | ({} if version is None else {"model": version}))


@pytest.mark.parametrize(
    ("model", "version"),
    [(None, None), ("m", None), ("m@3", "3"), ("m@", ""), ("x@3", None), ("m@3@4", None), ("@3", None)],
)
def test_what_names_a_version(model: str | None, version: str | None) -> None:
    assert version_in(model, "m") == version
    assert version_in("m@1@2", "m@1") == "2", "a name may have the sign itself"


async def test_a_named_version_answers_and_the_turn_is_never_trained(
    stack: Stack, http: httpx.AsyncClient, kept: Kept, tokenizer: Any
) -> None:
    answer = await ask(http, f"{NAME}@3", temperature=0.5, top_p=0.9)
    assert (answer.json()["choices"][0]["message"]["content"], answer.json()["model"]) == ("Version 3.", f"{NAME}@3")
    assert answer.headers["x-weight-version"] == "3"
    [turn] = stack.turns()
    assert (turn.state, turn.reason, turn.kind) == ("excluded", "earlier_version", "main")
    assert turn.response_logprobs == [-0.25] * len(turn.response_ids)
    assert [(span.version, span.end) for span in turn.weight_versions] == [("3", len(turn.response_ids))]
    [(owner, wanted)] = kept.asked
    assert (owner, wanted.version, wanted.ids) == ("", "3", turn.prompt_ids)
    assert (wanted.sampling["temperature"], wanted.sampling["top_p"]) == (0.5, 0.9)
    assert wanted.ends == {tokenizer.eos_token_id}
    assert stack.engine.requests == [], "no engine is asked"
    assert stack.metric("openclaw_first_token_seconds_count") == 0, "engines are not judged by it"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/messages", {"messages": ASKED, "max_tokens": 16}),
        ("/v1/responses", {"input": "What is 2 + 3?"}),
        ("/v1/completions", {"prompt": "2 + 3 ="}),
    ],
)
async def test_every_dialect_may_name_one(stack: Stack, http: httpx.AsyncClient, path: str, body: Any) -> None:
    answer = await http.post(path, json={"model": f"{NAME}@0", **body})
    assert (answer.status_code, "Version 0." in answer.text) == (200, True), answer.text
    assert [turn.reason for turn in stack.turns()] == ["earlier_version"]
    answer = await http.post(path, json={"model": f"{NAME}@1", **body})
    assert (answer.status_code, "kept are 3, 0;" in answer.text) == (404, True), answer.text


async def test_an_unknown_version_is_a_404_that_says_which_are_kept(stack: Stack, http: httpx.AsyncClient) -> None:
    answer = await ask(http, f"{NAME}@7")
    assert answer.status_code == 404
    assert answer.json()["error"] == {
        "message": "there is no version '7'; kept are 3, 0; without @ the version that serves answers",
        "type": "not_found_error",
        "param": "model",
        "code": "version_not_found",
    }
    assert stack.turns() == []


async def test_a_server_without_a_run_keeps_none(start: Starter) -> None:
    stack: Stack = await start()
    async with httpx.AsyncClient(base_url=stack.url, trust_env=False) as http:
        assert "this server keeps no earlier ones" in (await ask(http, f"{NAME}@0")).text
        assert len((await http.get("/v1/models")).json()["data"]) == 1


async def test_the_list_of_models_names_them(stack: Stack, http: httpx.AsyncClient) -> None:
    listed = (await http.get("/v1/models")).json()["data"]
    assert [each["id"] for each in listed] == [NAME, f"{NAME}@3", f"{NAME}@0"]
    assert (await http.get(f"/v1/models/{NAME}@3")).json()["id"] == f"{NAME}@3"
    assert (await http.get(f"/v1/models/{NAME}@4")).status_code == 404


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"frequency_penalty": 0.5}, "frequency_penalty"),
        ({"logit_bias": {"5": 1}}, "logit_bias"),
        ({"response_format": {"type": "json_object"}}, "follows no schema"),
    ],
)
async def test_what_only_engines_do_is_refused_by_name(
    stack: Stack, http: httpx.AsyncClient, changes: Any, said: str
) -> None:
    answer = await ask(http, f"{NAME}@3", **changes)
    assert (answer.status_code, said in answer.json()["error"]["message"]) == (400, True), answer.text
    assert stack.turns() == []


async def test_a_refusal_of_the_process_is_told(stack: Stack, http: httpx.AsyncClient, kept: Kept) -> None:
    kept.refusal = VersionRefusedError("version 3 needs 9.0 GiB of memory", 507)
    answer = await ask(http, f"{NAME}@3")
    assert (answer.status_code, answer.json()["error"]["code"]) == (507, "version_refused")
    assert stack.turns() == []


async def test_a_second_answer_beside_the_first_says_nothing_about_it(stack: Stack, http: httpx.AsyncClient) -> None:
    stack.say("Five.", "Four.", "Gladly.")
    await ask(http, None)
    await ask(http, f"{NAME}@3")
    first, second = stack.turns()
    assert (first.state, first.signal, second.state) == ("waiting", None, "excluded")
    await ask(http, None)
    assert [turn.signal for turn in stack.turns()] == ["regenerated", None, None], "asked again, it is regenerated"


async def test_a_conversation_goes_on_with_the_version_that_serves(stack: Stack, http: httpx.AsyncClient) -> None:
    stack.say("Five.", "Gladly.")
    await ask(http, None)
    words = [*ASKED, {"role": "assistant", "content": "Five."}, {"role": "user", "content": "And 3 + 3?"}]
    await ask(http, f"{NAME}@3", messages=words)
    words += [{"role": "assistant", "content": "Version 3."}, {"role": "user", "content": "No."}]
    await ask(http, None, messages=words)
    first, second, third = stack.turns()
    assert first.next_state == [{"role": "user", "content": "And 3 + 3?"}], "what one says to any version follows it"
    assert (second.state, second.next_state) == ("excluded", None)
    assert third.state == "waiting"
    assert {turn.session_id for turn in stack.turns()} == {"s"}


async def test_a_thumb_on_it_is_kept_and_the_reason_said(stack: Stack, http: httpx.AsyncClient) -> None:
    turn = (await ask(http, f"{NAME}@3")).json()["id"]
    answer = await http.post("/v1/feedback", json={"response_id": turn, "thumbs": "down"})
    assert (answer.json()["applied"], answer.json()["reason"]) == (False, "earlier_version")
    assert [each.thumbs for each in stack.ledger.feedback.of(turn)] == ["down"]


@pytest.fixture
async def process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[EarlierProcess]:
    """Earlier versions whose process is `stand_in_earlier`."""
    monkeypatch.setattr(earlier, "PROGRAM", stand_in_earlier.__name__)
    config = RuntimeConfig(ledger=str(tmp_path / "ledger.sqlite"), run_dir=str(tmp_path))
    process = EarlierProcess(config, idle_seconds=0.2)
    yield process
    await process.close()


def wanted(version: str, most: int = 5) -> Wanted:
    return Wanted(version, [0, 1, 2], {"max_new_tokens": most, "temperature": 0.0}, frozenset(), 0)


async def read(process: Any, version: str, owner: str = "ann", most: int = 5) -> list[int]:
    return [token async for chunk in process.generate(owner, wanted(version, most)) for token in chunk.ids]


async def test_the_process_begins_with_a_reply_and_ends_when_idle(process: EarlierProcess) -> None:
    assert process.process.pid is None
    assert await read(process, "1") == [3, 4, 5, 6, 7]
    child = process.process.child
    assert child is not None
    assert await asyncio.to_thread(child.wait, 60.0) is not None
    assert process.process.pid is None


async def test_a_reply_goes_on_where_its_process_ended(process: EarlierProcess) -> None:
    assert await read(process, DIES, most=4) == [3, 4, 5, 6]
    with pytest.raises(VersionRefusedError, match="its process ended"):
        await read(process, DIES)
    assert await read(process, "1", most=2) == [3, 4], "another version still answers"


async def test_a_refusal_comes_as_it_was_made(process: EarlierProcess) -> None:
    with pytest.raises(VersionRefusedError, match="needs 9 GiB") as caught:
        await read(process, FULL)
    assert caught.value.status == 507


async def test_few_replies_wait_and_fewer_of_one_person(process: EarlierProcess) -> None:
    replies = [process.generate(owner, wanted(HANGS)) for owner in ("ann", "ann", "ben", "eve")]
    for each in replies:
        await anext(each)
    for owner in ("ann", "joe"):
        with pytest.raises(VersionRefusedError, match="others wait already") as caught:
            await read(process, "1", owner)
        assert caught.value.status == 429
    await replies[2].aclose()
    with pytest.raises(VersionRefusedError, match="others wait"):
        await read(process, "1", "ann/child")
    assert await read(process, "1", "joe", most=1) == [3]
    for each in replies:
        await each.aclose()
    assert await read(process, "1", "ann", most=1) == [3]


async def test_what_is_forgotten_leaves_neither_memory_nor_disk(process: EarlierProcess, tmp_path: Path) -> None:
    hanging = process.generate("ann", wanted(HANGS))
    await anext(hanging)
    left = scratch_of(tmp_path)

    async def by_itself() -> None:
        async with process.forgetting():
            """Delete nothing."""

    for forget in (by_itself, lambda: asyncio.to_thread(forget_adapter, tmp_path, None, "ann")):
        left.mkdir()
        (left / "model.safetensors").write_bytes(b"of ann")
        await forget()
        assert not left.exists()
        assert process.process.pid is None
    await hanging.aclose()


async def test_nothing_is_loaded_while_a_persons_files_are_deleted(process: EarlierProcess) -> None:
    assert await read(process, "1", most=1) == [3]
    async with process.forgetting(), process.forgetting():
        other = asyncio.create_task(read(process, "1", "ben", most=1))
        await asyncio.sleep(0.1)
        assert (process.process.pid, process.process._starting) == (None, None)
    assert await other == [3], "it goes on afterwards"


async def test_a_person_is_forgotten_while_no_version_is_loaded(
    stack: Stack, http: httpx.AsyncClient, kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []

    @asynccontextmanager
    async def forgetting() -> AsyncIterator[None]:
        told.append("begins")
        yield
        told.append("ends")

    forget_person = stack.service.sessions.forget_person

    async def forgets(*args: Any) -> Any:
        told.append("deletes")
        return await forget_person(*args)

    monkeypatch.setattr(kept, "forgetting", forgetting)
    monkeypatch.setattr(stack.service.sessions, "forget_person", forgets)
    assert (await http.delete("/v1/me")).status_code == 200
    assert told == ["begins", "deletes", "ends"]


async def test_a_start_that_nobody_waits_for_any_more_leaves_no_process(
    process: EarlierProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    started, may_go_on, children = threading.Event(), threading.Event(), []

    def slow(*args: Any, **named: Any) -> ChildProcess:
        started.set()
        assert may_go_on.wait(20.0)
        children.append(spawn(*args, **named))
        return children[-1]

    monkeypatch.setattr(kept_process, "spawn", slow)
    asked = asyncio.create_task(read(process, "1"))
    await eventually(started.is_set, True)
    asked.cancel()
    await asyncio.wait({asked})
    closing = asyncio.create_task(process.close())
    await asyncio.sleep(0)
    assert not closing.done()
    may_go_on.set()
    await closing
    assert [child.alive() for child in children] == [False]
    assert (process.process.pid, process.process._channel, process.process._starting) == (None, None, None)


async def test_a_process_that_hangs_is_ended(process: EarlierProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(earlier, "PATIENCE_SECONDS", 0.3)
    with pytest.raises(VersionRefusedError):
        await read(process, HANGS)
    assert process.process.pid is None


@pytest.fixture
async def led(kept: Kept) -> AsyncIterator[tuple[Lead, EarlierVersions]]:
    """The leading process's side of a channel, and the earlier versions as a worker has them."""
    none: Any = None
    service: Any = SimpleNamespace(earlier=kept, sessions=none, commands=none, engine=none, limits=none)
    service.sessions = service.commands = SimpleNamespace(undelivered=none, spent_later=none, answer=none)
    service.engine = SimpleNamespace(cache_keys=SimpleNamespace(of=none))
    lead = Lead(service, none, Keyring(None, None))
    ours, theirs = socket.socketpair()
    lead.channel = Channel(lead.functions(), lambda: None)
    channel = Channel({}, lambda: None)
    await lead.channel.open(ours)
    await channel.open(theirs)
    shared = Shared.of(channel, PassedOn(), has_earlier=True)
    assert shared.earlier is not None
    yield lead, shared.earlier
    channel.close()
    lead.channel.close()


async def test_a_worker_gets_them_from_the_process_that_leads(
    led: tuple[Lead, EarlierVersions], kept: Kept, tokenizer: Any
) -> None:
    lead, versions = led
    assert await versions.kept("") == ["3", "0"]
    assert tokenizer.decode((await read(versions, "3"))[:-1]) == "Version 3."
    kept.refusal = VersionRefusedError("no room", 507)
    with pytest.raises(VersionRefusedError, match="no room"):
        await read(versions, "3")
    kept.refusal = None
    unread = versions.generate("", wanted("3"))
    await anext(unread)
    await lead.give_back()
    assert lead._earlier == {}


async def test_who_hangs_up_while_a_worker_waits_for_tokens_leaves_no_place_taken(
    led: tuple[Lead, EarlierVersions], kept: Kept
) -> None:
    lead, versions = led
    reading = asyncio.create_task(read(versions, SILENT))
    await eventually(lambda: (kept.under_way, len(lead._following)), (1, 1))
    reading.cancel()
    await eventually(lambda: (kept.under_way, lead._earlier, lead._following), (0, {}, {}))


async def test_a_worker_that_dies_while_it_waits_for_tokens_is_given_back_whole(
    led: tuple[Lead, EarlierVersions], kept: Kept
) -> None:
    lead, versions = led
    readers = [asyncio.create_task(read(versions, SILENT)) for _ in range(2)]
    await eventually(lambda: len(lead._following), 2)
    lead._requests["ann"] = 1
    left: list[str] = []

    async def leave(key: str, tokens: int) -> None:
        left.append(key)

    lead._service.limits = cast(Any, SimpleNamespace(leave=leave))

    async def broken() -> None:
        raise RuntimeError("no good end")

    lead._earlier = {0: cast(Any, SimpleNamespace(aclose=broken)), **lead._earlier}
    await lead.give_back()
    assert (kept.under_way, lead._earlier, left) == (0, {}, ["ann"])
    assert await asyncio.gather(*readers) == [[], []]
