"""A share of conversations goes to the engine that has a candidate, and back without a wait when that engine fails."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from lab.testkit.engine import mock_engine
from openclaw.engine.canary import NAME, Share, ShareReader, close_share, failures, open_share
from openclaw.engine.client import EngineClient, TokenChunk
from openclaw.exceptions import EngineProtocolError, EngineRejectedError
from openclaw.owners import LOCAL
from slime.contract.engine import StandInEngine

REPLY = [5, 6, 7, 8, 9]
PROMPT = [1, 2, 3]
KEYS = [f"{number:024x}" for number in range(400)]


def rest_of_reply(prompt: list[int]) -> list[int]:
    return REPLY[len(prompt) - len(PROMPT) :]


class Pair:
    """The engines behind the router, which have version 1, and the one that has version 2."""

    def __init__(self, others: StandInEngine, canary: StandInEngine, client: EngineClient, retries: list[str]) -> None:
        self.others, self.canary, self.client, self.retries = others, canary, client, retries

    async def reply(self, key: str | None = KEYS[0], **sampling: Any) -> list[TokenChunk]:
        limits = {"temperature": 1.0, "max_new_tokens": 50} | sampling
        return [
            chunk async for chunk in self.client.generate(f"rid-{key}", PROMPT, limits, routing_key=key, owner=LOCAL)
        ]


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[Pair]:
    async with serving(tmp_path) as found:
        yield found


@asynccontextmanager
async def serving(folder: Path) -> AsyncIterator[Pair]:
    retries: list[str] = []
    async with mock_engine(rest_of_reply) as others, mock_engine(rest_of_reply) as canary:
        canary.version = "2"
        client = EngineClient(others.url, wait_seconds=0.0, on_retry=retries.append, canary=ShareReader(folder))
        try:
            yield Pair(others, canary, client, retries)
        finally:
            await client.close()


def ids_of(chunks: list[TokenChunk]) -> list[int]:
    return [token for chunk in chunks for token in chunk.ids]


def versions_of(chunks: list[TokenChunk]) -> list[str]:
    """The version of each token."""
    return [chunk.weight_version for chunk in chunks for _ in chunk.ids]


async def test_nobody_goes_there_before_the_share_opens_or_after_it_closes(pair: Pair, tmp_path: Path) -> None:
    await pair.reply()
    assert (len(pair.others.requests), len(pair.canary.requests)) == (1, 0)
    open_share(tmp_path, Share(pair.canary.url, "2", 1.0))
    assert set(versions_of(await pair.reply())) == {"2"}
    assert (len(pair.others.requests), len(pair.canary.requests)) == (1, 1)
    close_share(tmp_path)
    close_share(tmp_path)
    await pair.reply()
    assert (len(pair.others.requests), len(pair.canary.requests)) == (2, 1)


async def test_the_share_is_of_conversations_and_each_stays_where_it_is(pair: Pair, tmp_path: Path) -> None:
    open_share(tmp_path, Share(pair.canary.url, "2", 0.25))
    for _ in range(2):
        await asyncio.gather(*(pair.reply(key) for key in KEYS))
    drawn = [key for key in KEYS if Share("", "2", 0.25).draws(key)]
    assert sorted(map(str, pair.canary.routing_keys)) == sorted([*drawn, *drawn])
    assert 60 <= len(drawn) <= 140, "a quarter of 400, within 4.6 standard deviations"
    other = {key for key in KEYS if Share("", "3", 0.25).draws(key)}
    assert other != set(drawn), "the next candidate has other users"
    assert not pair.retries


def test_the_ends_of_the_range() -> None:
    assert not any(Share("", "2", 0.0).draws(key) for key in KEYS)
    assert all(Share("", "2", 1.0).draws(key) for key in KEYS)


async def test_who_names_no_conversation_or_follows_a_grammar_is_not_drawn(pair: Pair, tmp_path: Path) -> None:
    open_share(tmp_path, Share(pair.canary.url, "2", 1.0))
    await pair.reply(None)
    await pair.reply(structural_tag="{}")
    assert not pair.canary.requests


async def test_a_reply_that_breaks_off_there_goes_on_elsewhere_with_both_versions(pair: Pair, tmp_path: Path) -> None:
    open_share(tmp_path, Share(pair.canary.url, "2", 1.0))
    pair.canary.break_after = 2
    chunks = await pair.reply()
    assert ids_of(chunks) == REPLY
    assert versions_of(chunks) == ["2", "2", "1", "1", "1"]
    assert pair.others.requests[0]["input_ids"] == [*PROMPT, 5, 6]
    assert pair.retries == ["canary"]
    (failure,) = failures(tmp_path)
    assert failure.startswith("EngineBrokeOffError: ")
    assert pair.client.away.seconds == 0.0, "nobody waited"


@pytest.mark.parametrize("status", [500, 503])
async def test_an_engine_that_refuses_everything_loses_nobody(pair: Pair, tmp_path: Path, status: int) -> None:
    open_share(tmp_path, Share(pair.canary.url, "2", 1.0))
    pair.canary.fail_with = [status] * 3
    replies = await asyncio.gather(*(pair.reply(key) for key in KEYS[:3]))
    assert [ids_of(chunks) for chunks in replies] == [REPLY] * 3
    assert failures(tmp_path) == [f"EngineReportedError: status {status}"] * 3


async def test_an_engine_that_is_gone_loses_nobody(pair: Pair, tmp_path: Path) -> None:
    open_share(tmp_path, Share("http://127.0.0.1:9", "2", 1.0))
    assert ids_of(await pair.reply()) == REPLY
    assert len(failures(tmp_path)) == 1


async def test_answers_that_make_no_sense_go_no_further_than_that_engine(pair: Pair, tmp_path: Path) -> None:
    open_share(tmp_path, Share(pair.canary.url, "2", 1.0))
    nonsense = {"output_ids": [1], "meta_info": {"output_token_logprobs": []}}
    pair.canary.events_first = [nonsense]
    assert ids_of(await pair.reply()) == REPLY
    assert failures(tmp_path) == ["EngineProtocolError"], (
        "a note holds nothing of the reply, which a session may take back"
    )
    close_share(tmp_path)
    pair.others.events_first = [nonsense]
    with pytest.raises(EngineProtocolError):
        await pair.reply()


async def test_a_request_that_is_wrong_is_no_failure_of_the_engine(pair: Pair, tmp_path: Path) -> None:
    open_share(tmp_path, Share(pair.canary.url, "2", 1.0))
    pair.canary.fail_with = [400]
    with pytest.raises(EngineRejectedError):
        await pair.reply()
    assert not failures(tmp_path)


async def test_a_client_that_leaves_is_aborted_where_it_is(pair: Pair, tmp_path: Path) -> None:
    open_share(tmp_path, Share(pair.canary.url, "2", 1.0))
    pair.canary.token_gate = asyncio.Semaphore(1)
    limits = {"temperature": 1.0, "max_new_tokens": 50}
    chunks = pair.client.generate("rid", PROMPT, limits, routing_key=KEYS[0], owner=LOCAL)
    await anext(chunks)
    await chunks.aclose()
    await pair.canary.wait_for(lambda: pair.canary.aborted == ["rid"])
    assert not pair.others.aborted


def test_an_unreadable_note_draws_nobody(tmp_path: Path) -> None:
    reader = ShareReader(tmp_path)
    assert reader.drawn(KEYS[0]) is None
    for text in ("", "[]", '{"url": "http://x"}'):
        (tmp_path / NAME).write_text(text)
        assert reader.drawn(KEYS[0]) is None
    open_share(tmp_path, Share("http://x", "2", 1.0))
    assert reader.drawn(KEYS[0]) == "http://x"
    reader.failed("one\nline")
    assert failures(tmp_path) == ["one line"]
    open_share(tmp_path, Share("http://x", "3", 1.0))
    assert failures(tmp_path) == []
