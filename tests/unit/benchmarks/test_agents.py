"""The benchmark of learning agents: what it makes of the runs of a folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import agents


def write(folder: Path, name: str, before: float, after: float, **changes: Any) -> None:
    record = {
        "updates": 16,
        "success_before": before,
        "success_after": after,
        "unseen_family": "price_of",
        "families": {"price_of": {"before": 0.25, "after": 0.75}},
        "seconds_total": 100.0,
        "infrastructure_failures": 1,
        "example": {"before": "a long text"},
    }
    (folder / f"{name}.json").write_text(json.dumps(record | changes))


def test_figures_are_means_of_the_runs_and_null_where_nothing_was_run(tmp_path: Path) -> None:
    write(tmp_path, "toolcall-outcome-seed0", 0.3, 0.8)
    write(tmp_path, "toolcall-outcome-seed1", 0.5, 0.7)
    write(tmp_path, "toolcall-process-seed1", 0.5, 0.6)
    out = tmp_path / "figures.json"
    words = ["--json", str(out), "--tasks", "toolcall,terminal", "--runs", str(tmp_path), "--only-report"]
    assert agents.main(words) == 0
    made = json.loads(out.read_text())
    outcome = made["figures"]["toolcall"]["outcome"]
    assert (outcome["runs"], outcome["success_before"], outcome["success_after"]) == ("2 of 3", 0.4, 0.75)
    assert (outcome["rise"], outcome["unseen_family_before"], outcome["unseen_family_after"]) == (0.35, 0.25, 0.75)
    assert outcome["infrastructure_failures"] == 2
    assert made["figures"]["toolcall"]["process"]["runs"] == "1 of 3"
    assert made["figures"]["toolcall"]["process_minus_outcome"] == -0.1, "of the seeds that both have"
    assert made["figures"]["terminal"]["outcome"]["rise"] is None
    assert made["figures"]["terminal"]["process_minus_outcome"] is None
    assert len(made["not_run"]) == 9
    assert made["updates"] == {"toolcall": 16, "terminal": 8}
    assert sorted(made["runs"]) == ["toolcall-outcome-seed0", "toolcall-outcome-seed1", "toolcall-process-seed1"]
    assert "example" not in made["runs"]["toolcall-outcome-seed0"]


def test_a_task_without_a_judge_has_no_runs_with_process_reward(tmp_path: Path) -> None:
    words = ["--json", str(tmp_path / "r.json"), "--tasks", "gui_pictures", "--runs", str(tmp_path), "--only-report"]
    assert agents.main(words) == 0
    missing = json.loads((tmp_path / "r.json").read_text())["not_run"]
    assert missing == [f"gui_pictures-outcome-seed{seed}" for seed in (0, 1, 2)]


def test_runs_of_other_lengths_are_not_mixed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, "toolcall-outcome-seed0", 0.3, 0.8, updates=4)
    words = ["--json", str(tmp_path / "r.json"), "--tasks", "toolcall", "--runs", str(tmp_path), "--only-report"]
    assert agents.main(words) == 1
    assert "give --updates 4 or another --runs" in capsys.readouterr().err


def test_only_missing_runs_are_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "toolcall-outcome-seed0", 0.3, 0.8)
    ran: list[agents.Cell] = []

    def run(cell: agents.Cell, updates: int, folder: Path) -> Any:
        ran.append(cell)
        write(folder, cell.name, 0.3, 0.9)
        return json.loads((folder / f"{cell.name}.json").read_text())

    monkeypatch.setattr(agents, "run", run)
    words = ["--json", str(tmp_path / "r.json"), "--tasks", "toolcall", "--seeds", "0", "--runs", str(tmp_path)]
    assert agents.main(words) == 0
    assert ran == [agents.Cell("toolcall", True, 0)]
    assert agents.main(words) == 0
    assert len(ran) == 1
