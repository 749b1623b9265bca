"""A machine with too few GPUs gets the name of the script that fits it."""

from __future__ import annotations

from pathlib import Path

import pytest

from openclaw.launch.machine import what_fits
from openclaw.launch.methods import find_method


@pytest.mark.parametrize(
    ("gpus", "script"),
    [
        (0, "no GPUs: bash openclaw-rl/run_tiny_cpu.sh"),
        (1, "1 GPU: bash openclaw-rl/run_qwen3_1_7b_openclaw_rl_24gb.sh"),
        (3, "3 GPUs: bash openclaw-rl/run_qwen3_1_7b_openclaw_rl_24gb.sh"),
        (4, "4 GPUs: bash openclaw-rl/run_qwen3_4b_openclaw_rl_lora.sh"),
        (7, "7 GPUs: bash openclaw-rl/run_qwen3_4b_openclaw_rl_lora.sh"),
    ],
)
def test_the_script_for_the_machine(gpus: int, script: str, repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(repository)
    assert what_fits(find_method("rl").folder, gpus) == f"run the script for {script}"
    assert (repository / script.split()[-1]).is_file()


def test_the_line_works_in_the_folder_where_it_is_read(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(repository / "openclaw-rl")  # guides go there first
    assert what_fits(find_method("rl").folder, 0) == "run the script for no GPUs: bash run_tiny_cpu.sh"
    monkeypatch.chdir(repository / "terminal-rl")
    line = what_fits(find_method("rl").folder, 0)
    assert line == f"run the script for no GPUs: bash {repository}/openclaw-rl/run_tiny_cpu.sh"


def test_a_folder_without_scripts_names_the_usual_method(tmp_path: Path) -> None:
    folder = tmp_path / "openclaw-mine"
    folder.mkdir()
    assert what_fits(folder, 1).endswith("bash openclaw-combine/run_qwen3_1_7b_openclaw_combine_24gb.sh")


def test_a_machine_for_the_largest_script_needs_smaller_numbers() -> None:
    assert what_fits(find_method("rl").folder, 8) == "lower NUM_GPUS, ACTOR_GPUS, ROLLOUT_GPUS or PRM_GPUS"
