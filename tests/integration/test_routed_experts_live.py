"""A real engine with a mixture of experts reports the experts of every token, also of a response that goes on after a cut."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import torch
from transformers import AutoModelForCausalLM

from lab.testkit import tiny_random
from lab.testkit.live_engine import engine_arguments, live_engine
from lab.testkit.rollout_engine import rollout_args
from slime.args import Arguments
from slime.rollout import sglang_rollout
from slime.rollout.generation import GenerateState
from slime.rollout.sglang_streaming_rollout import generate_streaming
from slime.rollout.train_data import convert
from slime.utils import http_utils
from slime.utils.misc import SingletonMeta
from slime.utils.types import Sample
from tests.helpers import tiny_models

PROMPT = [5, 6, 7, 8, 9, 10]
# Of two experts whose scores are nearer than that float32 may take either.
NEAR = 1e-3


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("live-experts") / "model"
    tiny_random.build_tokenizer().save_pretrained(folder)
    return tiny_models.qwen3_moe(folder)


@pytest.fixture
def args(model: Path, tmp_path: Path) -> Iterator[Arguments]:
    engine_args = engine_arguments(model, tmp_path / "run")
    engine_args.use_rollout_routing_replay = True
    http_utils._http_client = None
    SingletonMeta.clear(GenerateState)
    with live_engine(engine_args) as engine:
        address = urlsplit(engine.status()["url"])
        args = rollout_args(model, sglang_router_ip=address.hostname, sglang_router_port=address.port)
        args.use_rollout_routing_replay = True
        yield args
    http_utils._http_client = None
    SingletonMeta.clear(GenerateState)


def check_choice(model: Path, sample: Sample) -> None:
    """The rows of ``sample`` are the choice of Hugging Face's routers for all its tokens but the last."""
    policy = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    with torch.no_grad():
        found = policy(torch.tensor([sample.tokens]), output_router_logits=True).router_logits
    rows = torch.tensor(sample.rollout_routed_experts).long()
    assert rows.shape == (len(sample.tokens) - 1, 2, 2)
    compared = 0
    for layer, scores in enumerate(found):
        ordered = scores[:-1].log_softmax(-1).topk(3, dim=-1)
        clear = ordered.values[:, 1] - ordered.values[:, 2] > NEAR
        expected = ordered.indices[:, :2].sort(-1).values
        assert torch.equal(rows[clear, layer].sort(-1).values, expected[clear])
        compared += int(clear.sum())
    assert compared > len(rows)


def test_a_response_has_its_experts_whatever_cuts_it(args: Arguments, model: Path) -> None:
    async def answers() -> list[Sample]:
        http_utils._http_client = None
        state = GenerateState(args)
        cut, whole, streamed = (Sample(index=index, tokens=list(PROMPT)) for index in range(3))
        for function, sample in ((sglang_rollout.generate, cut), (generate_streaming, streamed)):
            for longest in (1, 5, 12):  # a token at most is read again; the prompt comes from the prefix cache
                await function(args, sample, state.sampling_params | {"max_new_tokens": longest, "ignore_eos": True})
            assert (sample.status, sample.response_length) == (Sample.Status.TRUNCATED, 12)
        state.aborted = True
        endless = state.sampling_params | {"max_new_tokens": 3000, "ignore_eos": True}
        task = asyncio.create_task(sglang_rollout.generate(args, whole, endless))
        url = f"http://{args.sglang_router_ip}:{args.sglang_router_port}"
        while not task.done():
            await asyncio.sleep(0.2)
            await http_utils.post(f"{url}/abort_request", {"rid": "", "abort_all": True})
        assert task.result().status == Sample.Status.ABORTED
        longer = endless | {"max_new_tokens": whole.response_length + 3}
        await sglang_rollout.generate(args, whole, longer)
        await http_utils.shared_client().aclose()
        return [cut, whole, streamed]

    samples = asyncio.run(answers())
    for sample in samples:
        check_choice(model, sample)
        sample.reward = 1.0
    values = {"advantage_estimator": "reinforce_plus_plus", "rewards_normalization": False, "reward_key": None}
    data = convert(args.changed(**values), samples)
    for array, sample in zip(data["rollout_routed_experts"], samples, strict=True):
        assert array.tolist() == sample.rollout_routed_experts.tolist()
