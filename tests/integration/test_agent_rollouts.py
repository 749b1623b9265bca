"""The agent loop on a real engine: exact log probabilities under the weights of each token, and a whole run."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from safetensors.torch import load_file

from agentrl.rollout import generate as loop
from agentrl.rollout.records import names, read
from lab.testkit.agent_rollouts import Letters, pool_of
from lab.testkit.live_engine import WeightSender
from lab.testkit.logged import logged_records
from lab.testkit.rollout_engine import rollout_args
from lab.testkit.waiting import wait_until
from slime.backends.sglang_utils.engine import SGLangEngine
from slime.rollout.generation import GenerateState
from slime.utils import http_utils
from slime.utils.misc import SingletonMeta
from slime.utils.types import Sample
from tests.helpers.driver import Driver
from tests.helpers.engine_streams import TEMPERATURE, model_of

GENERATE = "agentrl.rollout.generate.generate"
ROLLOUTS = "3"
STOPS = range(256, 290)
"""Ids that end a reply: a random model hardly ever samples the one end token."""
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
    parameters: dict[str, Any] = {"temperature": TEMPERATURE, "top_p": 1.0, "max_new_tokens": 120, "no_stop_trim": True}
    parameters["stop_token_ids"] = list(STOPS)
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
    assert max(piece.metadata["agent"]["turns"] for piece in pieces) == 3


@pytest.mark.timeout(900)
def test_a_run_trains_on_episodes(repository: Path, tmp_path: Path, tiny_random_model: Path) -> None:
    """The whole loop: a pool as a process, over-sampling, aborted episodes that go on, and one trained rollout per episode."""
    run_dir = tmp_path / "run"
    prompts = tmp_path / "tasks.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": f"letters-{number % 8}"}) + "\n" for number in range(40)))
    with a_pool(repository, tmp_path) as address, pytest.MonkeyPatch.context() as patch:
        patch.setenv("AGENTRL_POOL_URL", address)
        patch.setenv("AGENTRL_REWARD", "raw")
        patch.setenv("AGENTRL_TTL_SECONDS", "5")
        driver = Driver(
            *(repository, run_dir, tiny_random_model, "--custom-generate-function-path", GENERATE),
            *("--dynamic-history", "--rollout-max-context-len", "1024", "--prompt-data", str(prompts)),
            *("--log-multi-turn", "--rollout-stop-token-ids", *map(str, STOPS)),
            *("--num-rollout", ROLLOUTS, "--partial-rollout", "--over-sampling-batch-size", "4"),
            script="train.py",
        )
        driver.run_to_end()
        status = f"{address}/v1/status"
        wait_until(lambda: not httpx.get(status).json()["leases"], lambda: httpx.get(status).text, 60.0)
    assert len(driver.steps()) == int(ROLLOUTS)
    rows = logged_records(run_dir)
    rewards = [row["rollout/raw_reward"] for row in rows if "rollout/raw_reward" in row]
    print(f"mean reward per rollout: {rewards}")
    assert len(rewards) == int(ROLLOUTS)
    episodes = [read(run_dir, name) for name in names(run_dir)]
    ended = [episode for episode in episodes if episode.first("end")]
    assert len(ended) >= 8 * int(ROLLOUTS)
    versions = {span[0] for each in ended for event in each.events for span in event.get("weight_spans", ())}
    resumed = sum(bool(episode.first("aborted")) for episode in ended)
    turns = [episode.first("end")["turns"] for episode in ended]
    print(f"{len(ended)} episodes, {resumed} of them resumed, turns {sorted(turns)}, versions {sorted(versions)}")
    assert max(turns) == 3
    assert len(versions) >= 2, "no weights were sampled after a step"


@contextmanager
def a_pool(repository: Path, folder: Path) -> Iterator[str]:
    """Lend `Letters` from a process of its own; yield its address."""
    words = ["--env", "lab.testkit.agent_rollouts.Letters", "--slots", "32", "--port", "0"]
    process = subprocess.Popen(
        [sys.executable, "-m", "agentrl.pool", *words, "--ledger", folder / "pool.sqlite"],
        cwd=repository,
        env={**os.environ, "PYTHONPATH": f"{repository}{os.pathsep}{repository / 'slime'}"},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        yield process.stdout.readline().split()[-1]
    finally:
        process.terminate()
        assert process.wait() == 0
