"""Runs the training actor without Ray: arguments, batches, and functions on several ranks."""

from __future__ import annotations

import faulthandler
import os
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing

from groundwork.network import find_available_port
from lab.testkit.fork_server import ready_to_fork
from slime.args import Arguments
from slime.rollout.train_data import split_by_dp

PORT_SECONDS = 120.0


def trainer_args(model: Path | str, **changes: Any) -> Arguments:
    """Return the command line's defaults with small values for ``model`` in float32 on the CPU; ``changes`` replace values."""
    values: dict[str, Any] = {
        "hf_checkpoint": str(model),
        "ref_load": None,
        "load": None,
        "save": None,
        "save_hf": None,
        "save_keep": 0,
        "resume": False,
        "start_rollout_id": None,
        "device": "cpu",
        "seed": 1234,
        "train_dtype": "float32",
        "attn_implementation": "sdpa",
        "pack_sequences": True,
        "gradient_checkpointing": False,
        "fsdp_cpu_offload": False,
        "use_lora": False,
        "lora_rank": 4,
        "lora_alpha": 8,
        "lora_dropout": 0.0,
        "lora_target_modules": None,
        "log_probs_chunk_size": 7,
        "rollout_temperature": 0.7,
        "distributed_timeout_minutes": 2,
        "update_weight_buffer_size": 1 << 16,
        "weight_update_mode": "retract",
        "num_rollout": 10,
        "num_steps_per_rollout": 1,
        "global_batch_size": None,
        "use_dynamic_batch_size": True,
        "max_tokens_per_gpu": 40,
        "micro_batch_size": 1,
        "lr": 1e-3,
        "min_lr": 0.0,
        "lr_decay_style": "constant",
        "lr_decay_iters": None,
        "lr_warmup_iters": 0,
        "lr_warmup_fraction": None,
        "lr_warmup_init": 0.0,
        "weight_decay": 0.1,
        "adam_beta1": 0.9,
        "adam_beta2": 0.98,
        "adam_eps": 1e-8,
        "clip_grad": 1.0,
        "loss_type": "policy_loss",
        "custom_loss_function_path": None,
        "rollout_data_postprocess_path": None,
        "calculate_per_token_loss": False,
        "compute_advantages_and_returns": True,
        "advantage_estimator": "grpo",
        "custom_advantage_function_path": None,
        "normalize_advantages": False,
        "gamma": 1.0,
        "kl_coef": 0.0,
        "lambd": 1.0,
        "value_clip": 0.2,
        "critic_lr": None,
        "critic_lr_warmup_iters": 0,
        "critic_load": None,
        "critic_save": None,
        "use_opd": False,
        "opd_kl_coef": 1.0,
        "use_rollout_logprobs": False,
        "use_tis": False,
        "tis_clip": 2.0,
        "tis_clip_low": 0.0,
        "custom_tis_function_path": None,
        "get_mismatch_metrics": False,
        "use_opsm": False,
        "opsm_delta": 1e-4,
        "custom_pg_loss_reducer_function_path": None,
        "rollout_max_response_len": 64,
        "use_kl_loss": False,
        "kl_loss_coef": 0.0,
        "kl_loss_type": "k3",
        "use_unbiased_kl": False,
        "entropy_coef": 0.0,
        "eps_clip": 0.2,
        "eps_clip_high": 0.28,
        "eps_clip_c": None,
    }
    args = Arguments(**values)
    unknown = set(changes) - set(vars(args))
    assert not unknown, unknown
    return args.changed(**changes)


def train_data(count: int = 5, *, seed: int = 0, vocab: int = 600, longest: int = 20) -> dict[str, Any]:
    """Return training data of ``count`` samples of different lengths, masks with holes, and a teacher on some."""
    rng = random.Random(seed)
    data: dict[str, list[Any]] = {name: [] for name in ("tokens", "response_lengths", "loss_masks", "rewards")}
    data |= {"rollout_log_probs": [], "teacher_log_probs": []}
    for index in range(count):
        prompt, response = rng.randint(1, longest // 2), rng.randint(1, longest // 2)
        data["tokens"].append([rng.randrange(vocab) for _ in range(prompt + response)])
        data["response_lengths"].append(response)
        data["loss_masks"].append([1] + [rng.randint(0, 1) for _ in range(response - 1)])
        data["rewards"].append(rng.choice([-1.0, 1.0]))
        data["rollout_log_probs"].append([-5.0 - rng.random() for _ in range(response)])
        teacher = [-5.0 - rng.random() for _ in range(response)]
        data["teacher_log_probs"].append(teacher if index % 2 == 0 else None)
    data["total_lengths"] = [len(tokens) for tokens in data["tokens"]]
    return data


def shards(args: Arguments, data: dict[str, Any], ranks: int) -> list[dict[str, Any]]:
    """Split ``data`` into one step of all samples, over ``ranks``."""
    return split_by_dp(data, ranks, args.changed(global_batch_size=len(data["tokens"])))


def on_ranks(world_size: int, function: Callable[..., None], *arguments: Any) -> None:
    """Run ``function(rank, world_size, *arguments)`` in ``world_size`` new processes; a failure of one fails."""
    arguments = (function, world_size, *arguments)
    ready_to_fork()
    torch.multiprocessing.start_processes(_rank, arguments, world_size, start_method="forkserver")


def meeting_port(rank: int, place: str) -> int:
    """Return a port for a new group, the same on every rank; ``place`` is a path that no other group of this run uses.

    Chosen by rank 0 when it is needed: a port that was free when a test began may since be one end of somebody's connection.
    """
    file = Path(f"{place}.port")
    if rank == 0:
        part = file.with_suffix(".part")
        part.write_text(str(find_available_port()))
        part.replace(file)
    deadline = time.monotonic() + PORT_SECONDS
    while not file.exists():
        assert time.monotonic() < deadline, f"rank 0 chose no port in {file}"
        time.sleep(0.01)
    return int(file.read_text())


def _rank(rank: int, function: Callable[..., None], *arguments: Any) -> None:
    """Run one rank and end its process without tearing down a connection; if it crashes, show where every thread was.

    While a peer leaves too, Gloo's teardown sometimes crashes in its own thread, above all on a busy machine.
    On a machine with GPUs each rank has one of its own.
    """
    faulthandler.enable()
    os.environ["LOCAL_RANK"] = str(rank)
    kept: list[dist.ProcessGroup] = []
    destroy = dist.destroy_process_group

    def destroy_and_keep(group: dist.ProcessGroup | None = None) -> None:
        kept.extend(dist.distributed_c10d._world.pg_map)
        destroy(group)

    dist.destroy_process_group = destroy_and_keep  # for good: the process is this rank's alone
    function(rank, *arguments)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
