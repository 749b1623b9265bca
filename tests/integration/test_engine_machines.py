"""A real engine whose two ranks are on two machines (two Ray nodes): exact, given weights, and started again as a whole."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.helpers.engine_on_two_machines import MACHINES, PROMPT

TOLERANCE = 1e-4


def error(said: dict[str, Any], model: Any) -> float:
    """Largest difference of the logprobs to a float32 forward of ``model``."""
    with torch.no_grad():
        logits = model(torch.tensor([PROMPT + said["ids"]])).logits[0].float() / 0.6
    expected = logits.log_softmax(-1)[len(PROMPT) - 1 : -1].gather(-1, torch.tensor(said["ids"])[:, None])[:, 0]
    return float((expected - torch.tensor(said["logprobs"])).abs().max())


@pytest.mark.timeout(600)
def test_an_engine_on_two_machines(
    repository: Path, tmp_path: Path, random_models: list[Path], references: list[Any]
) -> None:
    shared = set(os.listdir("/dev/shm"))
    done = subprocess.run(
        [sys.executable, "-m", "tests.helpers.engine_on_two_machines", tmp_path, *random_models],
        cwd=repository,
        env={
            **os.environ,
            "PYTHONPATH": f"{repository}:{repository / 'slime'}",
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": "0123456789abcdef" * 4,
            "GLOO_SOCKET_IFNAME": "lo",
        },
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    facts = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    _, start, first, kill, second, stop = facts
    assert start["url"].startswith(f"http://{MACHINES[0]}:")
    assert error(start, references[0]) < TOLERANCE
    assert (first["version"], second["version"]) == ("1", "2")
    assert error(first, references[1]) < TOLERANCE
    assert error(second, references[0]) < TOLERANCE
    assert kill["revived"] == [0]
    assert min(kill["born"]) > max(start["born"]), "both processes are new"
    assert stop["left"] == 0
    assert not [name for name in set(os.listdir("/dev/shm")) - shared if name.startswith("sgl_shm")]
    logs = sorted(path.name for path in (tmp_path / "logs").iterdir())
    assert logs == ["engine-policy-0-node-1.log", "engine-policy-0.log"]
