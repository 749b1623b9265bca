"""Episodes behind the gateway on a real engine: every trained token has its id and log-probability under its weights."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from openai import AsyncOpenAI
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from lab.testkit.live_engine import WeightSender
from lab.testkit.tiny_random import build_tokenizer
from openclaw.runtime.process import RuntimeSupervisor
from openclaw.training.rollout import LedgerDataSource, collect
from slime.backends.sglang_utils.engine import SGLangEngine
from slime.rollout.train_data import convert
from slime.utils.types import Sample
from tests.helpers.engine_streams import TEMPERATURE
from tests.helpers.live_gateway import gateway
from tests.helpers.recording_engine import Exchange, recorded
from tests.helpers.rollout_args import rollout_args
from tests.helpers.taught_model import teach

BOUND = 1e-4
REWARDS = (1.0, 0.0)
ADVANTAGE = 0.5**0.5
"""Of the better of two episodes: half the difference of the rewards over their deviation."""
SPAN_TRIES = 10
FOUND = "nothing"
PLACES = {"type": "object", "properties": {"at": {"enum": ["here", "there"]}}, "required": ["at"]}
TOOLS: Any = [{"type": "function", "function": {"name": "look", "parameters": PLACES}}]
COMMON: Any = {"model": "any", "tools": TOOLS}
CALL = '<tool_call>\n{"name": "look", "arguments": {"at": "here"}}\n</tool_call>'
THINKING = {"chat_template_kwargs": {"enable_thinking": True}}
"""The template then writes no empty thought, which it would leave out of the history."""


class Agent:
    """An agent's program on the OpenAI SDK: its own conversation, and that of a helper, which the caller's weights serve."""

    def __init__(self, client: AsyncOpenAI, episode: str, number: int) -> None:
        self.client = client
        self.episode = episode
        self.number = number
        self.main: list[Any] = [_system("Count."), _user(f"Task {number}: count to five.")]
        self.helper = _for_helper(number)
        self.tool_calls = 0

    async def turn(self, messages: list[Any], then: str, **options: Any) -> None:
        """Ask for a reply, append it, and append what the world says to it: a tool's result, or a person's ``then``."""
        reply = await self.client.chat.completions.create(
            **{"messages": messages, "max_tokens": 24, "extra_body": THINKING, **COMMON, **options}
        )
        message = reply.choices[0].message
        messages.append(message.model_dump(exclude_none=True))
        calls = message.tool_calls or []
        self.tool_calls += len(calls)
        results = [{"role": "tool", "tool_call_id": call.id, "content": FOUND} for call in calls]
        messages.extend(results or [_user(then)])

    async def branch(self, begun: asyncio.Event) -> None:
        """Go on from the first reply in another way, streamed and at length; set ``begun`` with the first words."""
        messages = [*self.main[:3], _user("Again, at length.")]
        stream = await self.client.chat.completions.create(
            messages=messages, max_tokens=300, stream=True, extra_body=THINKING, **COMMON
        )
        async for _ in stream:
            begun.set()
        begun.set()

    async def compact(self) -> None:
        """Go on from a summary."""
        messages = [self.main[0], _user(f"Task {self.number}. So far: nothing was there.")]
        await self.turn(messages, "More.")
        await self.turn(messages, "Enough.")


def _system(text: str) -> dict[str, str]:
    return {"role": "system", "content": text}


def _user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def _for_helper(number: int) -> list[Any]:
    return [_system("You look."), _user(f"Where is number {number}?")]


@pytest.fixture(scope="module")
def caller(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that calls the tool: in the first prompt of an agent's helper, and after the tool's result."""
    tokenizer, prompts = build_tokenizer(), list[list[int]]()
    said = {"role": "assistant", "tool_calls": [{"function": {"name": "look", "arguments": {"at": "here"}}}]}
    for number in range(len(REWARDS)):
        first = _for_helper(number)
        for messages in (first, [*first, said, {"role": "tool", "content": FOUND}]):
            options: Any = {"tools": TOOLS, "add_generation_prompt": True, "enable_thinking": True, "tokenize": False}
            text = tokenizer.apply_chat_template(messages, **options)
            prompts.append(tokenizer.encode(text, add_special_tokens=False))
    return teach(tmp_path_factory.mktemp("caller") / "model", CALL, prompts)


class Pushes:
    """Gives the engine weights while agents talk; knows which model each version is."""

    def __init__(self, engine: SGLangEngine, first: Any) -> None:
        engine.set_weight_version("300")
        self.models = {"300": first}
        self._sender = WeightSender(engine, "episodes")

    async def push(self, version: str, folder: Path, model: Any) -> None:
        """Serve the weights in ``folder``, those of ``model``, as ``version``."""
        await asyncio.to_thread(self._sender.update, load_file(folder / "model.safetensors"), version)
        self.models[version] = model

    def close(self) -> None:
        """End the connection."""
        self._sender.close()


async def test_every_trained_token_has_the_logprob_of_its_weights(
    engine: SGLangEngine,
    random_models: list[Path],
    references: list[Any],
    caller: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two agents whose turns extend each other, break off, branch, compact, call tools, and live through three pushes of weights."""
    pushes = Pushes(engine, references[0])
    async with (
        recorded(engine.url(), breaks={1: 5}) as (proxy, exchanges),
        gateway(proxy, random_models[0], tmp_path) as (client, ledger, registry),
    ):
        agents = [await an_agent(client, number) for number in range(len(REWARDS))]

        async def all_of_them(*turns: Coroutine[Any, Any, None]) -> None:
            await asyncio.gather(*turns)

        for then in ("Go on.", "And then?"):
            await all_of_them(*(agent.turn(agent.main, then) for agent in agents))
        for version in range(301, 301 + SPAN_TRIES):  # a reply may end before the engine hears of the update
            begun = asyncio.Event()
            talk = asyncio.gather(*(agent.branch(begun) for agent in agents))
            await begun.wait()
            await pushes.push(str(version), random_models[version % 2], references[version % 2])
            await talk
            if any(len(exchange.spans) > 1 for exchange in exchanges):
                break
        await all_of_them(*(agent.turn(agent.main, "Look.") for agent in agents))
        await pushes.push("399", caller, AutoModelForCausalLM.from_pretrained(caller, dtype=torch.float32).eval())
        for _ in range(2):
            await all_of_them(*(agent.turn(agent.helper, "Look again.") for agent in agents))
        called = sum(agent.tool_calls for agent in agents)
        await pushes.push("400", random_models[0], references[0])
        pushes.close()
        forced: Any = {"tool_choice": "required", "max_tokens": 400, "extra_body": {}}
        await all_of_them(*(agent.turn(agent.main, "Well?", **forced) for agent in agents))
        await all_of_them(*(agent.turn(agent.main, "Done?") for agent in agents))
        await all_of_them(*(agent.compact() for agent in agents))
        for agent, reward in zip(agents, REWARDS, strict=True):
            told = await post(client, f"episodes/{agent.episode}/reward", {"status": "ok", "reward": reward})
            assert told["counts"]["reasons"] == {"grammar": 1}
        resumed = registry.get_sample_value("openclaw_engine_retries_total", {"kind": "resumed"})
        assert resumed, "the reply whose stream broke was not resumed"
        ledger.close()

    monkeypatch.setenv("OPENCLAW_LEDGER", str(tmp_path / "ledger.sqlite"))
    args = rollout_args(tmp_path, rollout_batch_size=len(REWARDS))
    samples, _, _ = collect(args, 0, LedgerDataSource(args), cast("RuntimeSupervisor", None))
    trained = [exchange for exchange in exchanges if not exchange.forced]
    check_samples(samples, chains(trained))
    data = convert(args, samples)
    assert sum(map(sum, data["loss_masks"])) == sum(len(exchange.ids) for exchange in trained)
    signs = {agent.episode: 2 * reward - 1 for agent, reward in zip(agents, REWARDS, strict=True)}
    advantages = [signs[sample.metadata["episode"]] * ADVANTAGE for sample in samples]
    assert data["rewards"] == pytest.approx(advantages, abs=1e-5)
    spanning = sum(len(exchange.spans) > 1 for exchange in trained)
    merged = len(trained) - len(samples)
    errors = [error for sample in samples for error in errors_of(sample, pushes.models)]
    print(
        f"{len(trained)} replies ({called} tool calls, {spanning} across weights, {resumed:.0f} resumed) in {len(samples)} samples, "
        f"{len(errors)} trained tokens, worst error {max(errors):.2e}, mean {sum(errors) / len(errors):.2e}"
    )
    assert len(errors) == sum(len(exchange.ids) for exchange in trained)
    assert max(errors) < BOUND
    assert called, "the taught model called no tool"
    assert spanning, "no reply was sampled with two weights"
    assert merged, "no turn extended an earlier one"
    assert len(samples) > 2 * len(REWARDS), "branches, helpers and compactions are segments of their own"


async def an_agent(client: AsyncOpenAI, number: int) -> Agent:
    """Create an episode of the group, and return an agent that has its key and base URL."""
    asked = {"task": "count", "ttl_s": 600, "group": "count", "group_size": len(REWARDS)}
    told = await post(client, "episodes", asked)
    own = AsyncOpenAI(base_url=told["base_url"], api_key=told["api_key"], max_retries=0, timeout=120)
    return Agent(own, told["id"], number)


async def post(client: AsyncOpenAI, path: str, body: Any) -> Any:
    """Return the gateway's answer."""
    return await client.post(f"/{path}", body=body, cast_to=object)


def chains(exchanges: Sequence[Exchange]) -> list[list[Exchange]]:
    """Return the replies that extend each other, id by id, as the engine saw them."""
    found: list[list[Exchange]] = []
    for exchange in exchanges:
        earlier = [chain for chain in found if begins(exchange.prompt, chain[-1].prompt + chain[-1].ids)]
        if earlier:
            max(earlier, key=lambda chain: len(chain[-1].prompt)).append(exchange)
        else:
            found.append([exchange])
    return found


def begins(ids: list[int], first: list[int]) -> bool:
    """Return whether ``ids`` begin with ``first``."""
    return ids[: len(first)] == first


def check_samples(samples: Sequence[Sample], expected: Sequence[Sequence[Exchange]]) -> None:
    """Each chain is one sample: the engine's own ids and log-probabilities, and loss mask 1 on the sampled ones only."""
    by_ids = {tuple(sample.tokens): sample for sample in samples}
    assert len(by_ids) == len(samples) == len(expected)
    for chain in expected:
        sample = by_ids[tuple(chain[-1].prompt + chain[-1].ids)]
        start = len(sample.tokens) - sample.response_length
        assert start == len(chain[0].prompt)
        logprobs, versions = dict[int, float](), dict[int, str]()
        for exchange in chain:
            first = len(exchange.prompt) - start
            logprobs |= {first + place: value for place, value in enumerate(exchange.logprobs)}
            versions |= {first + place: name for name, one, end in exchange.spans for place in range(one, end)}
        assert sample.loss_mask is not None
        assert sample.rollout_log_probs is not None
        assert [place for place, kept in enumerate(sample.loss_mask) if kept] == sorted(logprobs) == sorted(versions)
        assert {place: sample.rollout_log_probs[place] for place in logprobs} == logprobs
        spans = {place: name for name, one, end in sample.weight_spans for place in range(int(one), int(end))}
        assert spans == versions


def errors_of(sample: Sample, models: Mapping[str, Any]) -> list[float]:
    """Return how far each trained token is from a float32 forward pass of the weights that it says it has."""
    ids = torch.tensor(sample.tokens)
    start = len(ids) - sample.response_length
    found: list[float] = []
    for version, first, end in sample.weight_spans:
        with torch.no_grad():
            logits = models[str(version)](ids[None]).logits[0] / TEMPERATURE
        table = logits.log_softmax(-1)[start + int(first) - 1 : start + int(end) - 1]
        expected = table.gather(1, ids[start + int(first) : start + int(end), None])[:, 0]
        stored = torch.tensor((sample.rollout_log_probs or [])[int(first) : int(end)])
        found += (expected - stored).abs().tolist()
    return found
