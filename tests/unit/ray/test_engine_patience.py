"""When an engine that does not answer counts as hanging: ``--rollout-health-check-timeout`` and ``-first-wait``."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from slime.args import Arguments
from slime.backends.sglang_utils import engine as engine_module
from slime.backends.sglang_utils.engine import SGLangEngine


def test_an_engine_hangs_after_its_timeout_and_its_first_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    healthy = False
    monkeypatch.setattr(engine_module.time, "monotonic", lambda: now)
    made = SGLangEngine.__new__(SGLangEngine)
    made._args = Arguments(rollout_health_check_timeout=10.0, rollout_health_check_first_wait=30.0)
    process: Any = SimpleNamespace(stopped=lambda: False)
    made.process = process
    made._started_at, made._silent_since = 1000.0, 0.0
    monkeypatch.setattr(made, "health", lambda: healthy, raising=False)
    assert made.hangs() is False
    now = 1020.0
    assert made.hangs() is False  # silent for 20 s, but in its first 30
    now = 1031.0
    assert made.hangs() is True
    healthy = True
    assert made.hangs() is False
    healthy, now = False, 1050.0
    assert made.hangs() is False
    now = 1060.0
    assert made.hangs() is True
