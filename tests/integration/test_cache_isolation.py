"""One user asks a real engine for another's words: neither the count of cached tokens nor the time tells them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import AsyncOpenAI

from openclaw.owners import LOCAL
from slime.backends.sglang_utils.engine import SGLangEngine
from tests.helpers.live_gateway import gateway

PIN = "7294"
REST = " and my doctor"


def secret(thing: str) -> str:
    """Return what alice says; each test has its own ``thing``, because all use one engine."""
    return f"My {thing} is {PIN}{REST} is Kay."


@dataclass
class Asker:
    """Asks one short reply after another with one key, and reads what the engine had cached of the prompt."""

    client: AsyncOpenAI

    async def cached(self, words: str, session: str = "s", before: Any = ()) -> tuple[int, int, str]:
        """Return (cached tokens, tokens of the prompt, the reply)."""
        reply = await self.client.chat.completions.create(
            model="any",
            messages=[*before, {"role": "user", "content": words}],
            max_tokens=4,
            extra_headers={"X-Session-Id": session},
            extra_body={"chat_template_kwargs": {"enable_thinking": True}},
        )
        assert reply.usage is not None
        assert reply.usage.prompt_tokens_details is not None
        cached = reply.usage.prompt_tokens_details.cached_tokens
        return cached or 0, reply.usage.prompt_tokens, reply.choices[0].message.content or ""

    async def guess(self, thing: str) -> str:
        """Return the digits that the counts of cached tokens give away, a dot for each that they do not."""
        found = ""
        for place in range(len(PIN)):
            counts = {}
            for digit in "x0123456789":  # after the first one, the prefix before the digit is cached anyway
                said = f"My {thing} is {found.replace('.', '0')}{digit}{'' if place < 3 else REST}"
                counts[digit] = (await self.cached(said, f"guess-{place}-{digit}"))[0]
            del counts["x"]
            best = [digit for digit, count in counts.items() if count == max(counts.values())]
            found += best[0] if len(best) == 1 else "."
        return found


@asynccontextmanager
async def askers(engine: SGLangEngine, model: Path, folder: Path) -> AsyncIterator[dict[str, Asker]]:
    """Serve the gateway with the keys of alice, bob and an operator; yield who asks with each, and with an episode's key."""
    keys = folder / "keys"
    keys.write_text("alice: key-alice\nbob: key-bob\nroot (admin): key-root\n")
    keys.chmod(0o600)
    async with gateway(engine.url(), model, folder, api_keys_file=str(keys)) as (client, _, _):
        found = {name: Asker(client.with_options(api_key=f"key-{name}")) for name in ("alice", "bob", "root")}
        for owner in ("alice", "bob"):
            episode = await found[owner].client.post(
                "/episodes", body={"task": "t", "ttl_s": 600.0}, cast_to=httpx.Response
            )
            found[f"agent of {owner}"] = Asker(client.with_options(api_key=episode.json()["api_key"]))
        yield found


def right(guessed: str) -> int:
    return sum(guess == digit for guess, digit in zip(guessed, PIN, strict=True))


@pytest.mark.parametrize("forgotten", [False, True])
async def test_nobody_reads_a_number_of_another_from_the_cache(
    engine: SGLangEngine, tiny_random_model: Path, tmp_path: Path, forgotten: bool
) -> None:
    async with askers(engine, tiny_random_model, tmp_path) as found:
        alice, thing = found["alice"], "door" if forgotten else "safe"
        await alice.cached(secret(thing), "hers")
        if forgotten:
            await alice.client.delete("/sessions/hers", cast_to=httpx.Response)
        else:
            assert right(await alice.guess(thing)) == len(PIN), "the attack works on one's own words"
        for name, asker in found.items():
            if name == "alice" and not forgotten:
                continue
            cached, _, _ = await asker.cached(secret(thing), "first")
            assert cached == 0, f"{name} finds {cached} tokens"
        await alice.client.delete("/sessions/first" if forgotten else "/sessions/hers", cast_to=httpx.Response)
        assert (await alice.cached(secret(thing), "again"))[0] == 0


async def test_digits_are_not_recovered(engine: SGLangEngine, tiny_random_model: Path, tmp_path: Path) -> None:
    async with askers(engine, tiny_random_model, tmp_path) as found:
        await found["alice"].cached(secret("PIN"), "hers")
        guessed = {name: await found[name].guess("PIN") for name in ("bob", "agent of alice", "agent of bob")}
        assert {name: right(guess) for name, guess in guessed.items()} == dict.fromkeys(guessed, 0), guessed


async def test_a_conversation_finds_its_own_prefix(
    engine: SGLangEngine, tiny_random_model: Path, tmp_path: Path
) -> None:
    async with askers(engine, tiny_random_model, tmp_path) as found:
        words = secret("code")
        for name in ("alice", "agent of alice"):
            cold, first, reply = await found[name].cached(words, "talk")
            before = [{"role": "user", "content": words}, {"role": "assistant", "content": reply}]
            warm, second, _ = await found[name].cached("And hers?", "talk", before)
            print(f"{name}: {cold} of {first} prompt tokens cached, then {warm} of {second}")
            assert cold == 0
            assert warm >= first - 2


async def test_lessons_leave_the_prefix_before_the_last_message_cached(
    engine: SGLangEngine, tiny_random_model: Path, tmp_path: Path
) -> None:
    async with gateway(engine.url(), tiny_random_model, tmp_path, lessons="auto") as (client, ledger, _):
        for lesson in ("Keep answers short.", "Use metric units.", "Leave out greetings.", "Answer in plain words."):
            ledger.lessons.add(LOCAL, lesson)
        asker, before, cached = Asker(client), [], []
        for number in range(4):
            words = secret(f"key number {number}")
            found, _, reply = await asker.cached(words, "lessoned", before)
            cached.append(found)
            before += [{"role": "user", "content": words}, {"role": "assistant", "content": reply}]
        call = {"id": "call-1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
        tool_loop = [
            {"role": "user", "content": secret("door")},
            {"role": "assistant", "content": "", "tool_calls": [call]},
        ]
        await asker.cached(secret("door"), "loop")
        tool = await client.chat.completions.create(
            model="any",
            messages=[*tool_loop, {"role": "tool", "tool_call_id": "call-1", "content": "It is open."}],  # type: ignore[list-item]
            max_tokens=4,
            extra_headers={"X-Session-Id": "loop"},
            extra_body={"chat_template_kwargs": {"enable_thinking": True}},
        )
        assert tool.usage is not None
        assert tool.usage.prompt_tokens_details is not None
        turns = [record.turn for record in ledger.views.turn_records()]
        ledger.close()
    for earlier, later, found in zip(turns, turns[1:4], cached[1:], strict=False):
        assert earlier.plain is not None
        known = common([*earlier.prompt_ids, *earlier.response_ids], later.prompt_ids)
        print(f"{found} of {len(later.prompt_ids)} prompt tokens cached; without lessons before {earlier.plain.start}")
        assert known >= earlier.plain.start, "all before the lessons of the turn before"
        assert known - 1 <= found <= known
    asked, after = turns[4:]
    known = common(asked.prompt_ids, after.prompt_ids)
    assert asked.plain is not None
    assert known >= asked.plain.end, "the lessons do not move in a tool loop"
    assert known - 1 <= (tool.usage.prompt_tokens_details.cached_tokens or 0) <= known


def common(one: Sequence[int], other: Sequence[int]) -> int:
    """Return how many ids two prompts begin with in common."""
    return next(
        (place for place, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other))
    )
