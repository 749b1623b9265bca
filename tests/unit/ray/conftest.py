"""Fixtures of the tests of rollouts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lab.testkit.rollout_engine import RolloutEngine, rollout_engine


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[RolloutEngine]:
    """An engine without a model that rollout functions talk to."""
    with rollout_engine(monkeypatch) as engine:
        yield engine
