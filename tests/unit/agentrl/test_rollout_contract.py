"""The generate function keeps slime's contract, as ``python -m slime.contract`` checks it."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from agentrl.environment import Task
from agentrl.rollout import generate
from lab.testkit.agent_rollouts import pool_of, talk
from slime.contract import ContractViolation, check

PATH = "agentrl.rollout.generate.generate"


@pytest.fixture
def pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pool for each episode: the check has an event loop for each call."""
    environment = talk(Task("say something", {"steps": 3}))
    numbers = itertools.count()

    @asynccontextmanager
    async def service(settings: Any) -> AsyncIterator[Any]:
        folder = tmp_path / str(next(numbers))
        folder.mkdir()
        async with pool_of(environment, folder) as leases:
            yield leases

    monkeypatch.setattr(generate, "service_of", service)


@pytest.mark.parametrize("more", [[], ["--partial-rollout"], ["--advantage-estimator", "step_wise"]])
def test_the_contract_is_kept(pool: None, more: list[str]) -> None:
    check("generate", PATH, ["--dynamic-history", "--rollout-max-context-len", "4096", *more])


def test_the_check_sees_what_is_wrong(pool: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def mixed_up(args: Any, origin: Any, result: Any, tokenizer: Any, **rest: Any) -> Any:
        samples = generate_samples(args, origin, result, tokenizer, **rest)
        samples[0].group_index = 9
        return samples

    generate_samples = generate.samples_of
    monkeypatch.setattr(generate, "samples_of", mixed_up)
    with pytest.raises(ContractViolation, match="generate-7"):
        check("generate", PATH, ["--dynamic-history"])
