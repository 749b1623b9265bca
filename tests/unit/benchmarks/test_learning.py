"""The learning benchmark: which methods it runs, how it asks for a plain client, and what it keeps."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import learning


def report(method: str, seed: int, client: str, after: float) -> dict[str, Any]:
    rates = {"rule_rate_before": 0.1, "rule_rate_after": after}
    return {
        **{"method": method, "seed": seed, "client": client, "updates": 24, "taste": "captain"},
        **{"refused_requests": 0, **rates},
    }


def test_every_folder_with_a_demo_is_a_method(tmp_path: Path) -> None:
    for name in ("openclaw-rl", "openclaw-new", "openclaw-test", "other"):
        (tmp_path / name).mkdir()
    for name in ("openclaw-rl", "openclaw-new", "other"):
        (tmp_path / name / "run_tiny_cpu.sh").touch()
    assert learning.methods_with_a_demo(tmp_path) == ["new", "rl"]
    assert {"combine", "opd", "rl"} <= set(learning.methods_with_a_demo())


def test_a_plain_client_is_asked_for_and_kept_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, int, int, list[str]]] = []

    def run_demo(method: str, seed: int, updates: int, extra: list[str]) -> dict[str, Any]:
        asked.append((method, seed, updates, extra))
        return report(method, seed, extra[extra.index("--client") + 1], 0.9)

    monkeypatch.setattr(learning, "run_demo", run_demo)
    monkeypatch.setattr(learning, "describe_machine", dict)
    path = tmp_path / "r.json"
    line = ["learning", "--methods", "rl", "--seeds", "0,1", "--json", str(path)]
    for more in ([], ["--client", "plain"], ["--client", "plain"]):
        monkeypatch.setattr(sys, "argv", [*line, *more])
        learning.main()
    assert asked == [("rl", seed, 24, ["--client", client]) for client in ("student", "plain") for seed in (0, 1)]
    saved = json.loads(path.read_text())
    assert set(saved["summary"]) == {"rl", "rl, plain client"}
    assert saved["summary"]["rl, plain client"]["tastes"] == ["captain", "captain"]


def test_the_summary_has_the_mean_over_seeds() -> None:
    runs = [report("rl", seed, "plain", after) for seed, after in enumerate((0.8, 0.9, 1.0))]
    row = learning.summarise(runs)["rl, plain client"]["rule_rate_after"]
    assert row == {"mean": 0.9, "median": 0.9, "min": 0.8, "max": 1.0}
