"""A few kills of the fault benchmark's fast tier, with a fixed seed: nothing lost, nothing trained twice, nothing left."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.fault_parts.fast import run_fast
from benchmarks.faults import MUST_BE_ZERO, table

KILLS, SEED = 6, 3


@pytest.mark.long
@pytest.mark.timeout(280)
def test_kills_lose_nothing(tiny_random_model: Path, tmp_path: Path) -> None:
    found = run_fast(tmp_path, tiny_random_model, KILLS, SEED)
    print(table({"fast": found}))
    assert {name: found[name] for name in MUST_BE_ZERO} == dict.fromkeys(MUST_BE_ZERO, 0), found["words"]
    assert sum(found["kills"].values()) == KILLS
    assert set(found["kills"]) == {"runtime", "trainer", "policy", "judge", "writer"}
    assert found["trainer_exit_status"] == 0
    assert found["judged_turns"] >= found["trained_samples"] > 0
    assert found["replies"] > KILLS
