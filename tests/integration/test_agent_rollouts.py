"""The agent loop on a real engine: exact log probabilities under the weights of each token, and a whole run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from agentrl.rollout import generate as loop
from slime.backends.sglang_utils.engine import SGLangEngine
from slime.rollout.generation import GenerateState
from slime.utils import http_utils
from slime.utils.misc import SingletonMeta
from slime.utils.types import Sample
from tests.helpers.agent_rollouts import Letters, pool_of
from tests.helpers.engine_streams import TEMPERATURE, model_of
from tests.helpers.rollout_engine import rollout_args
from tests.helpers.weight_sender import WeightSender

EPISODES = 6
BOUND = 1e-4


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> Any:
    """No state or client of another event loop."""
    monkeypatch.setattr(http_utils, "_http_client", None)
    SingletonMeta.clear(GenerateState)
    yield
    SingletonMeta.clear(GenerateState)


def worst_error(sample: Sample, models: list[Any]) -> tuple[float, int]:
    """How far a trained token is from a float32 forward pass of the weights that it says it has; and how many there are."""
    assert sample.loss_mask is not None
    assert sample.rollout_log_probs is not None
    start, worst, seen = len(sample.tokens) - sample.response_length, 0.0, 0
    with torch.no_grad():
        of_models = [
            (model(torch.tensor([sample.tokens])).logits[0].float() / TEMPERATURE).log_softmax(-1) for model in models
        ]
    for version, first, end in sample.weight_spans:
        scores = of_models[models.index(model_of(version, models))]
        for position in range(first, end):
            assert sample.loss_mask[position] == 1
            expected = float(scores[start + position - 1, sample.tokens[start + position]])
            worst, seen = max(worst, abs(expected - sample.rollout_log_probs[position])), seen + 1
    assert seen == sum(sample.loss_mask)
    return worst, seen


async def test_every_trained_token_has_the_logprob_of_its_weights(
    engine: SGLangEngine,
    random_models: list[Path],
    references: list[Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    fresh: None,
) -> None:
    host, port = engine.url().removeprefix("http://").rsplit(":", 1)
    args = rollout_args(random_models[0]).changed(
        sglang_router_ip=host, sglang_router_port=int(port), run_dir=str(tmp_path), dynamic_history=True
    )
    weights = [load_file(path / "model.safetensors") for path in random_models]
    sender = WeightSender(engine, "agents")
    one_at_a_time = asyncio.Lock()
    updates = iter(("101", "102", "103", "104"))
    parameters = {"temperature": TEMPERATURE, "top_p": 1.0, "max_new_tokens": 120, "no_stop_trim": True}
    monkeypatch.setenv("AGENTRL_REWARD", "raw")

    class Updating(Letters):
        """Pushes new weights at some steps, so that episodes span versions."""

        async def step(self, action: Any) -> Any:
            async with one_at_a_time:
                if (version := next(updates, None)) is not None:
                    await asyncio.to_thread(sender.update, weights[int(version) % 2], version)
            return await super().step(action)

    async with pool_of(Updating, tmp_path, slots=EPISODES) as pool:

        @asynccontextmanager
        async def service(settings: Any) -> AsyncIterator[Any]:
            yield pool

        monkeypatch.setattr(loop, "service_of", service)
        samples = [Sample(group_index=0, index=n, metadata={"task_id": f"letters-{n}"}) for n in range(EPISODES)]
        found = await asyncio.gather(*(loop.generate(args, sample, dict(parameters)) for sample in samples))
    for version in updates:
        sender.update(weights[int(version) % 2], version)
    sender.close()
    pieces = [piece for each in found for piece in (each if isinstance(each, list) else [each])]
    checked = [worst_error(piece, references) for piece in pieces]
    print(f"{sum(count for _, count in checked)} tokens, worst error {max(worst for worst, _ in checked):.2e}")
    assert max(worst for worst, _ in checked) < BOUND
    assert any(len({span[0] for span in piece.weight_spans}) > 1 for piece in pieces), "no episode spans versions"
    assert all(0 <= piece.reward <= 1 for piece in pieces)
