"""Gateway, judge and teacher ask the bridge as they ask an engine, and get the service's ids and numbers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from groundwork.processors import load_tokenizer
from openclaw.engine.client import EngineClient
from openclaw.exceptions import EngineRefusedError, EngineRejectedError, EngineUnavailableError
from openclaw.judge.client import BaseModel, EngineHttp
from openclaw.judge.teacher import score
from slime.backends.tinker_utils import bridge as bridge_module
from slime.backends.tinker_utils.bridge import Bridge
from slime.backends.tinker_utils.service import Sampled

tinker = pytest.importorskip("tinker", reason="install the tinker extra")
TINY = Path(__file__).resolve().parents[3] / "lab" / "tiny_models" / "shipped"
REPLY, LOG_PROBS = [20, 21, 22], [-0.25, -0.5, -0.125]


class Sampler:
    """A version that gives always the same, and notes what it was asked."""

    def __init__(self, version: str) -> None:
        self.version, self.asked = version, list[tuple[list[int], dict[str, Any], int]]()
        self.fails: Exception | None = None
        self.finished = 0
        self.waits = asyncio.Event()
        self.waits.set()

    def load(self) -> None:
        """It is there."""

    async def sample(self, ids: Sequence[int], parameters: Mapping[str, Any], topk: int = 0) -> Any:
        self.asked.append((list(ids), dict(parameters), topk))
        await self.waits.wait()
        if self.fails is not None:
            raise self.fails
        self.finished += 1
        ranked = [[(token, value), (3, -2.0)][:topk] for token, value in zip(REPLY, LOG_PROBS, strict=True)]
        reply = SimpleNamespace(tokens=REPLY, logprobs=LOG_PROBS, stop_reason="stop", topk_logprobs=ranked)
        return Sampled(SimpleNamespace(sequences=[reply], prompt_cache_hit_tokens=1), self.version)

    async def score(self, ids: Sequence[int], topk: int = 0) -> Any:
        self.asked.append((list(ids), {}, topk))
        values = [None, *(-0.5 * place for place in range(1, len(ids)))]
        rows = [None, *([(9, -0.1)] for _ in ids[1:])]
        found = SimpleNamespace(prompt_logprobs=values, topk_prompt_logprobs=rows, prompt_cache_hit_tokens=0)
        return Sampled(found, self.version)


@pytest.fixture
def base() -> Sampler:
    return Sampler("base")


@pytest.fixture
def bridge(base: Sampler) -> Iterator[Bridge]:
    with Bridge(load_tokenizer(str(TINY)), base) as started:  # type: ignore[arg-type]
        yield started


def url_of(bridge: Bridge) -> str:
    return f"http://127.0.0.1:{bridge.port}"


async def reply_of(bridge: Bridge, **parameters: Any) -> list[Any]:
    client = EngineClient(url_of(bridge), wait_seconds=0.0)
    try:
        asked = {"max_new_tokens": 8, "temperature": 1.0, "top_p": 1.0, **parameters}
        return [chunk async for chunk in client.generate("rid", [5, 6], asked, owner="somebody")]
    finally:
        await client.close()


async def test_a_reply_has_the_services_ids_log_probabilities_and_version(bridge: Bridge) -> None:
    bridge.serve(served := Sampler("7"))  # type: ignore[arg-type]
    [chunk] = await reply_of(bridge)
    assert (chunk.ids, chunk.logprobs, chunk.weight_version, chunk.finish) == (REPLY, LOG_PROBS, "7", "stop")
    assert chunk.cached_tokens == 1
    [(ids, parameters, _)] = served.asked
    end = load_tokenizer(str(TINY)).eos_token_id
    assert ids == [5, 6]
    assert parameters == {"max_tokens": 8, "temperature": 1.0, "top_p": 1.0, "top_k": -1, "stop": [end]}


async def test_a_reply_that_began_keeps_its_version_and_the_next_has_the_new_one(bridge: Bridge) -> None:
    bridge.serve(old := Sampler("7"))  # type: ignore[arg-type]
    old.waits.clear()
    began = asyncio.create_task(reply_of(bridge))
    while not old.asked:
        await asyncio.sleep(0.01)
    bridge.serve(Sampler("8"))  # type: ignore[arg-type]
    [later] = await reply_of(bridge)
    bridge._web.servers[0].get_loop().call_soon_threadsafe(old.waits.set)
    [first] = await began
    assert (first.weight_version, later.weight_version) == ("7", "8")


@pytest.mark.parametrize("ends", ["before the abort", "after the abort", "with a failure"])
async def test_a_reply_that_its_client_left_goes_on_and_is_counted(bridge: Bridge, base: Sampler, ends: str) -> None:
    client, counted, asked_for = EngineClient(url_of(bridge), wait_seconds=0.0), list[int](), list[str]()
    send, took = client._send_abort, bridge._took

    async def until(holds: Callable[[], object]) -> None:
        async with asyncio.timeout(20):
            while not holds():
                await asyncio.sleep(0.01)

    async def send_at_the_end(*arguments: Any) -> None:
        await until(lambda: isinstance(bridge._sampled_tokens.get("rid"), int))
        await send(*arguments)

    def note(name: str) -> AsyncIterator[bytes]:
        asked_for.append(name)
        return took(name)

    async def ask() -> None:
        parameters = {"max_new_tokens": 8, "temperature": 1.0}
        async for _ in client.generate("rid", [5, 6], parameters, owner="somebody", on_unread=counted.append):
            raise AssertionError("nothing came before the client left")

    bridge._took = note  # type: ignore[method-assign]
    if ends == "before the abort":
        client._send_abort = send_at_the_end  # type: ignore[method-assign]
    base.waits.clear()
    began = asyncio.create_task(ask())
    await until(lambda: base.asked)
    base.fails = RuntimeError("poisoned") if ends == "with a failure" else None
    began.cancel()
    await asyncio.wait([began])
    await until(lambda: asked_for or ends == "before the abort")
    bridge._web.servers[0].get_loop().call_soon_threadsafe(base.waits.set)
    await until(lambda: counted)
    assert counted == [0 if ends == "with a failure" else len(REPLY)]
    await client.close()


async def test_of_the_replies_that_ended_the_newest_are_known(bridge: Bridge, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bridge_module, "KEPT_COUNTS", 2)
    async with httpx.AsyncClient(base_url=url_of(bridge)) as http:
        for name in "abc":
            asked = {"rid": name, "input_ids": [5], "sampling_params": {"max_new_tokens": 4}}
            assert (await http.post("/generate", json=asked)).status_code == 200
        told = [await http.post("/abort_request", json={"rid": name}) for name in "abc"]
    assert [answer.status_code for answer in told] == [200, 202, 202]
    assert told[-1].json() == {"completion_tokens": len(REPLY)}


async def test_stop_strings_keep_the_end_of_a_reply(bridge: Bridge, base: Sampler) -> None:
    await reply_of(bridge, stop=["\n\n"])
    tokenizer = load_tokenizer(str(TINY))
    assert base.asked[0][1]["stop"] == [tokenizer.decode([tokenizer.eos_token_id]), "\n\n"]


@pytest.mark.parametrize(
    ("parameters", "name"),
    [
        ({"presence_penalty": 0.5}, "presence_penalty"),
        ({"structural_tag": "{}"}, "structural_tag"),
        ({"min_new_tokens": 3}, "min_new_tokens"),
        ({"logit_bias": {"3": 1.0}}, "logit_bias"),
        ({"stop": ["x"], "stop_token_ids": [3]}, "at strings or at tokens"),
    ],
)
async def test_what_the_interface_lacks_is_refused_by_name(
    bridge: Bridge, base: Sampler, parameters: dict[str, Any], name: str
) -> None:
    with pytest.raises(EngineRejectedError, match=name):
        await reply_of(bridge, **parameters)
    assert not base.asked


async def test_a_service_that_fails_is_away_and_what_it_refuses_is_refused(bridge: Bridge, base: Sampler) -> None:
    engine = EngineHttp(url_of(bridge), timeout=10, concurrency=1, retries=0)
    asked = {"input_ids": [5, 6], "sampling_params": {"max_new_tokens": 2}}
    try:
        request = httpx.Request("POST", "http://service")
        base.fails = tinker.InternalServerError("it broke", response=httpx.Response(500, request=request), body=None)
        with pytest.raises(EngineUnavailableError, match="it broke"):
            await engine.generate(asked)
        base.fails = RuntimeError("poisoned")
        with pytest.raises(EngineUnavailableError, match="RuntimeError: poisoned"):
            await engine.generate(asked)
        base.fails = tinker.BadRequestError("a bad prompt", response=httpx.Response(400, request=request), body=None)
        with pytest.raises(EngineRefusedError, match="a bad prompt"):
            await engine.generate(asked)
    finally:
        await engine.close()


async def test_a_teacher_scores_exactly_the_given_ids(bridge: Bridge) -> None:
    bridge.serve(served := Sampler("7"))  # type: ignore[arg-type]
    engine = EngineHttp(url_of(bridge), timeout=10, concurrency=1)
    try:
        found = await score(engine, [5, 6, 7], [8, 9], topk=1, owner="somebody")
    finally:
        await engine.close()
    assert found.log_probs == [-1.5, -2.0]
    assert found.weight_version == "7"
    assert found.topk is not None
    assert served.asked == [([5, 6, 7, 8, 9], {}, 1)]


async def test_the_base_answers_by_its_name_and_a_judge_gets_text(bridge: Bridge) -> None:
    bridge.serve(Sampler("7"))  # type: ignore[arg-type]
    engine = EngineHttp(url_of(bridge), timeout=10, concurrency=1)
    try:
        answer = await BaseModel(engine).generate({"input_ids": [5], "sampling_params": {"max_new_tokens": 4}})
        assert answer["text"] == load_tokenizer(str(TINY)).decode(REPLY, skip_special_tokens=True)
        with pytest.raises(EngineRefusedError, match="no adapter somebody"):
            await engine.generate({"input_ids": [5], "lora_path": "somebody"})
        with pytest.raises(EngineRefusedError, match="no image_data"):
            await engine.generate({"input_ids": [5], "image_data": ["x"]})
        with pytest.raises(EngineRefusedError, match="one list of token ids"):
            await engine.generate({"input_ids": [[5], [6]]})
    finally:
        await engine.close()
