"""Which Ray cluster a run is in, and how many machines it asks for."""

from __future__ import annotations

from pathlib import Path

import pytest

from slime.arguments import parse_args
from slime.arguments.cluster import missing_machines
from tests.helpers.arguments import refusal
from tests.helpers.checkpoints import config_only

TWO = "--device cuda --actor-num-nodes 2 --actor-num-gpus-per-node 4 --rollout-num-gpus 8"


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    words = "--num-rollout 1 --rollout-batch-size 1 --disable-rollout-global-dataset"
    return ["--hf-checkpoint", str(config_only(tmp_path / "model")), *words.split()]


@pytest.mark.parametrize(
    ("words", "machines"),
    [
        (TWO, 2),
        (f"{TWO} --rollout-num-gpus 9 --rollout-num-gpus-per-engine 1", 3),
        (f"{TWO} --num-gpus-per-node 16", 2),
        (f"{TWO} --debug-rollout-only", 1),
        ("--device cuda --actor-num-gpus-per-node 4 --rollout-num-gpus 4", 1),
        ("--device cuda --num-gpus 16 --rollout-num-gpus 8", 1),
        ("--device cpu --rollout-num-gpus 8", 1),
    ],
)
def test_machines_follow_from_the_gpus(base: list[str], words: str, machines: int) -> None:
    args = parse_args([*base, *words.split()])
    assert args.num_nodes == machines
    assert (missing_machines(args) is None) == (machines == 1)


def test_the_start_says_how_to_give_machines(base: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    said = missing_machines(parse_args([*base, *TWO.split()])) or ""
    assert said.startswith(
        "the run needs 2 machines of 8 GPUs but is in no Ray cluster: submit it to one (`ray job submit`)"
    )
    with pytest.raises(SystemExit) as exit_:
        parse_args([*base, *TWO.split(), "--dry-run"])
    assert exit_.value.code == 0
    assert f"warning: {said}" in capsys.readouterr().out


def test_a_run_is_in_the_cluster_of_its_job(
    base: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    args = parse_args([*base, *TWO.split()])
    assert args.ray_address == "10.0.0.1:6379"
    assert missing_machines(args) is None
    assert parse_args([*base, "--ray-address", "local"]).ray_address is None
    assert parse_args([*base, "--ray-address", "10.0.0.2:1"]).ray_address == "10.0.0.2:1"
    own = parse_args([*base, *TWO.split(), "--num-nodes", "2", "--head-address", "10.0.0.3:6379"])
    assert (own.ray_address, own.num_nodes) == (None, 2)
    assert "RAY_ADDRESS 10.0.0.1:6379 names an existing one" in refusal(capsys, [*base, "--num-nodes", "2"])
