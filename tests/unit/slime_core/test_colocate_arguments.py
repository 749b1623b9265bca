"""``--colocate`` and the flags beside it: what follows from them, and what they do not go with."""

from __future__ import annotations

from typing import Any

import pytest
import train_async

from slime.args import Arguments
from slime.arguments import parse_args
from slime.arguments.cluster import COLOCATE
from slime.arguments.placement import EngineSpec, describe_placement
from slime.backends.sglang_utils.server_args import server_command
from tests.helpers.arguments import refusal

PPO = "--advantage-estimator ppo --critic-num-gpus-per-node 2"
COLOCATED = "--colocate --actor-num-gpus-per-node 4"


def parsed(base: list[str], words: str) -> Arguments:
    return parse_args([*base, *COLOCATED.split(), *words.split()])


def test_the_engines_have_the_gpus_of_the_trainer(base: list[str]) -> None:
    for words, gpus in (("", 4), ("--rollout-num-gpus 2", 4), (PPO, 6)):
        args = parsed(base, words)
        placement = describe_placement(args)
        assert args.rollout_num_gpus == gpus
        assert placement.rollout == (*placement.actor, *placement.critic) == tuple(range(gpus))
        assert [engine.gpu_ids for engine in placement.engines("policy")] == [(gpu,) for gpu in range(gpus)]
    assert placement.lines()[-1].split() == [
        "rollout",
        "GPU",
        "0-5",
        "6",
        "engine(s)",
        "of",
        "1,",
        "on",
        "the",
        "trainer's",
    ]
    args = parsed(base, "--rollout-num-gpus-per-engine 2 --num-gpus 5 --prm-enable --prm-num-gpus 1")
    placement = describe_placement(args)
    assert [engine.gpu_ids for engine in placement.engines("policy")] == [(0, 1), (2, 3)]
    assert (placement.judge, placement.total) == ((4,), 5)


@pytest.mark.parametrize(
    ("words", "train", "rollout"),
    [
        ("--device cuda", True, True),
        ("--device cuda --offload", True, True),
        ("--device cuda --no-offload-train", False, True),
        ("--device cuda --no-offload-rollout", True, False),
        ("--device cuda --no-offload-train --offload-rollout", False, True),
        ("", False, False),  # a CPU
        ("--no-offload-train", False, False),
        ("--device cuda --debug-rollout-only --offload", False, False),
        ("--device cuda --load-debug-rollout-data {rollout_id}.pt", False, False),
    ],
)
def test_both_are_offloaded_on_gpus_unless_the_flags_say_otherwise(
    base: list[str], words: str, train: bool, rollout: bool
) -> None:
    args = parsed(base, words)
    assert (args.offload_train, args.offload_rollout) == (train, rollout)
    assert args.colocate is not ("-debug-" in words)
    command = server_command(args, EngineSpec("policy", 0, 1), port=1, cpu=args.device == "cpu")
    assert ("--enable-memory-saver" in command) is rollout
    assert "--enable-memory-saver" not in server_command(args, EngineSpec("prm", 0, 1), port=1, cpu=False)


def test_without_colocate_nothing_is_offloaded(base: list[str]) -> None:
    args = parse_args([*base, "--device", "cuda"])
    assert (args.offload_train, args.offload_rollout) == (False, False)
    assert all(not option.is_given(Arguments()) for option in COLOCATE.options)


def test_collecting_alone_has_as_many_engines_as_the_shared_run(base: list[str]) -> None:
    assert parsed(base, "--debug-rollout-only").rollout_num_gpus == 4
    assert parsed(base, "--debug-rollout-only --rollout-num-gpus 2").rollout_num_gpus == 2


@pytest.mark.parametrize(
    ("words", "backup"),
    [
        ("", False),
        ("--update-weights-interval 2", True),
        ("--update-weight-mode delta", True),
        ("--use-lora", True),
        ("--use-lora --update-weight-mode full", False),
    ],
)
def test_weights_have_a_copy_on_the_host_where_a_push_does_not_bring_all(
    base: list[str], words: str, backup: bool
) -> None:
    args = parsed(base, f"--device cuda {words}")
    command = server_command(args, EngineSpec("policy", 0, 1), port=1, cpu=False)
    assert ("--enable-weights-cpu-backup" in command) is backup


def test_a_draft_model_has_a_copy_on_the_host(base: list[str]) -> None:
    """Pushes bring the policy's weights alone; without its own the draft model would guess noise."""
    for words, backup in (("", False), ("--sglang-speculative-algorithm EAGLE", True)):
        args = parsed(base, f"--device cuda {words}")
        command = server_command(args, EngineSpec("policy", 0, 1), port=1, cpu=False)
        assert ("--enable-draft-weights-cpu-backup" in command) is backup
        assert "--enable-weights-cpu-backup" not in command


def test_weights_go_through_shared_memory_on_one_machine(base: list[str]) -> None:
    assert parsed(base, "").update_weight_transport == "shared"
    assert parsed(base, "--update-weight-transport disk").update_weight_transport == "disk"
    assert (lora := parsed(base, "--use-lora")).update_weight_transport == "nccl"
    assert lora.update_weight_mode == "adapter"
    nodes = "--num-nodes 2 --actor-num-nodes 2 --head-address here:1"
    assert parsed(base, nodes).update_weight_transport == "nccl"
    assert parse_args(base).update_weight_transport == "nccl"


FULLY_ASYNC = "slime.rollout.fully_async_rollout.generate_rollout_fully_async"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("--offload", "--offload has no effect without --colocate"),
        ("--offload-train", "--offload-train has no effect without --colocate"),
        ("--offload-rollout", "--offload-rollout has no effect without --colocate"),
        (f"{COLOCATED} --offload", "--offload needs GPUs"),
        (f"{COLOCATED} --offload-train", "--offload-train needs GPUs"),
        (f"{COLOCATED} --offload-rollout", "--offload-rollout needs GPUs"),
        (f"{COLOCATED} --device cuda --offload --no-offload-train", "--offload contradicts --no-offload-train"),
        (f"{COLOCATED} --rollout-external-engine-addrs h:1", "remove it, or --rollout-external-engine-addrs"),
        (f"{COLOCATED} --sglang-router-ip h --sglang-router-port 1", "remove it, or --sglang-router-ip"),
        (f"{COLOCATED} --weight-update-mode in_place", "in_place has no effect with --colocate"),
        (f"{COLOCATED} --rollout-function-path {FULLY_ASYNC}", "collects while the trainer works"),
        ("--colocate --share-gpu --actor-num-gpus-per-node 1", "--share-gpu is for one trainer rank"),
        (f"{COLOCATED} --rollout-num-gpus-per-engine 3", "--rollout-num-gpus 4 is not a multiple"),
        (f"{COLOCATED} --num-gpus 4 --prm-enable --prm-num-gpus 1", "4 actor + 1 judge GPUs are 5"),
        (f"{COLOCATED} --release-train", "--release-train is not supported: --offload-train frees"),
    ],
)
def test_what_does_not_go_together(base: list[str], capsys: Any, words: str, says: str) -> None:
    assert says in refusal(capsys, [*base, *words.split()])


@pytest.mark.parametrize("words", [[], ["--dry-run"]])
def test_collecting_beside_the_trainer_is_refused_by_name(
    base: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    monkeypatch.setattr(train_async.sys, "argv", ["train_async.py", *base, "--colocate", *words])
    with pytest.raises(SystemExit) as ended:
        train_async.main()
    assert ended.value.code == 2
    assert "train_async.py runs both at the same time; use slime/train.py" in capsys.readouterr().err
