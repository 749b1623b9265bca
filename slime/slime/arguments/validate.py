"""Derive arguments from others, and check them together: every check of a topic, in one order."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path

import slime.arguments.evaluation as evaluation
from groundwork.checkpoint_names import LATEST, named_checkpoint
from slime.args import Arguments
from slime.arguments.algorithm import (
    GROUP_STANDARDISED,
    check_algorithm,
    check_critic,
    check_fuses,
    check_gate,
    derive_critic,
    derive_loss,
)
from slime.arguments.backend import (
    check_megatron,
    check_megatron_shape,
    check_routing_replay,
    derive_backend,
    derive_megatron,
    derive_routing_replay,
)
from slime.arguments.checkpoint import check_paths, check_resumed, check_written
from slime.arguments.cluster import (
    VISIBLE,
    check_colocate,
    check_given,
    check_roles,
    derive_colocate,
    derive_machines,
    trainer_gpus,
)
from slime.arguments.evaluation import check_evaluation, check_rewards
from slime.arguments.fireworks import check_fireworks
from slime.arguments.model_shape import check_model_shape, check_trainable
from slime.arguments.placement import is_rented
from slime.arguments.process_environment import check_shared
from slime.arguments.refused import check_fixed
from slime.arguments.rollout import (
    check_batches,
    check_context,
    check_counts,
    check_engines,
    check_environments,
    check_judge,
    check_lengths,
    check_staleness,
    check_steps,
)
from slime.arguments.tinker import check_tinker
from slime.arguments.tracking import check_memory_history, check_tracking
from slime.arguments.trainer import check_trainer, check_warmup, check_weight_sync, derive_weight_sync
from slime.arguments.vllm import check_backend
from slime.utils.model_config import config_or_none

DERIVED = frozenset(
    {
        *(
            "hf_checkpoint",
            "rollout_batch_size",
            "run_dir",
            "ref_load",
            "rollout_num_gpus",
            "prm_model_path",
            "train_dtype",
            "train_backend",
            "num_nodes",
        ),
        *("over_sampling_batch_size", "global_batch_size", "num_steps_per_rollout", "eps_clip_high"),
        *("eval_function_path", "eval_input_key", "eval_tool_key", "eval_temperature", "eval_top_p", "eval_top_k"),
        *("offload_train", "offload_rollout", "update_weight_mode", "transformer_impl"),
        *("critic_lr", "critic_num_nodes", "critic_num_gpus_per_node"),
    }
)
"""Attributes without a flag default that are never None in a run: required or derived."""


def visible_gpus() -> int:
    """Return the number of NVIDIA GPUs that the driver lists, without importing torch; 0 without a driver."""
    try:
        listing = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return 0
    return sum(line.startswith("GPU ") for line in listing.stdout.splitlines()) if listing.returncode == 0 else 0


def usable_gpus(environment: Mapping[str, str]) -> int:
    """Return the number of GPUs visible under ``CUDA_VISIBLE_DEVICES``; CUDA stops at the first -1."""
    names = environment.get(VISIBLE)
    if names is None:
        return visible_gpus()
    listed = [name.strip() for name in names.split(",") if name.strip()]
    return min(visible_gpus(), listed.index("-1") if "-1" in listed else len(listed))


def derive_paths(args: Arguments) -> None:
    """Fill missing folders; absolute paths where a process elsewhere needs them."""
    if not args.run_dir:
        args.run_dir = str(Path("runs") / datetime.now().strftime("%Y%m%d-%H%M%S"))
    args.run_dir = str(Path(args.run_dir).resolve())
    if args.dump_details:
        args.save_debug_rollout_data = str(Path(args.dump_details, "rollout_data", "{rollout_id}.pt"))
        args.save_debug_train_data = str(Path(args.dump_details, "train_data", "{rollout_id}_{rank}.pt"))
    args.ref_load = args.ref_load or args.hf_checkpoint
    if args.load:
        args.load = named_checkpoint(args.load)
    if args.resume and args.save and not args.load:
        args.load = args.save


def derive_roles(args: Arguments) -> None:
    """Fill in the device and the GPUs of policy and judge engines."""
    if args.device == "auto":
        args.device = "cuda" if usable_gpus(os.environ) else "cpu"
    if args.load_debug_rollout_data:
        args.debug_train_only = True
        args.rollout_global_dataset &= bool(args.prompt_data)  # replayed rollouts need no prompts
    if args.debug_train_only:
        args.eval_interval = None  # no engine can answer
    if args.prm_router_ip or not args.prm_enable:
        args.prm_num_gpus = 0
    args.prm_model_path = args.prm_model_path or args.hf_checkpoint
    if is_rented(args):
        args.actor_num_gpus_per_node = args.rollout_num_gpus = args.prm_num_gpus = 0
    if args.rollout_external_engine_addrs:
        args.rollout_num_gpus = len(args.rollout_external_engine_addrs) * args.rollout_num_gpus_per_engine
    if args.rollout_num_gpus is None:
        engines = trainer_gpus(args) if args.colocate else args.rollout_num_gpus_per_engine
        args.rollout_num_gpus = 0 if args.debug_train_only else engines
    if args.train_dtype is None:
        args.train_dtype = "bfloat16" if args.device == "cuda" else "float32"


def derive_batches(args: Arguments) -> None:
    """Derive the global batch size from the steps per rollout, or the other way round; and the warm-up in steps."""
    args.over_sampling_batch_size = args.over_sampling_batch_size or args.rollout_batch_size
    if args.rollout_batch_size is None:
        return
    samples = args.rollout_batch_size * args.n_samples_per_prompt
    if args.num_steps_per_rollout and args.global_batch_size is None:
        args.global_batch_size = samples // args.num_steps_per_rollout
    args.global_batch_size = args.global_batch_size or samples
    args.num_steps_per_rollout = args.num_steps_per_rollout or max(1, samples // args.global_batch_size)
    if args.lr_warmup_samples:
        args.lr_warmup_iters = -(-args.lr_warmup_samples // args.global_batch_size)


def derive_rollout(args: Arguments) -> None:
    """Fill in evaluation defaults from the rollout, the prompt bounds and the evaluation sets."""
    args.eval_function_path = args.eval_function_path or args.rollout_function_path
    if args.n_samples_per_prompt == 1 and args.advantage_estimator in GROUP_STANDARDISED:
        args.grpo_std_normalization = False  # a group of one has no standard deviation
    args.eps_clip_high = args.eps_clip if args.eps_clip_high is None else args.eps_clip_high
    for name in ("reward_key", "input_key", "label_key", "tool_key"):
        if getattr(args, f"eval_{name}") is None:
            setattr(args, f"eval_{name}", getattr(args, name))
    for name in ("temperature", "top_p", "top_k", "max_response_len", "max_context_len"):
        if getattr(args, f"eval_{name}") is None:
            setattr(args, f"eval_{name}", getattr(args, f"rollout_{name}"))
    for kind in ("rollout", "eval"):
        context = getattr(args, f"{kind}_max_context_len")
        if context and getattr(args, f"{kind}_max_prompt_len") is None:
            setattr(args, f"{kind}_max_prompt_len", context - 1)
    args.eval_datasets = evaluation.read_eval_datasets(args)


def validate(args: Arguments, words: Sequence[str] = ()) -> list[str]:
    """Derive missing values and return the problems; empty if the run can start.

    Args:
        args: arguments as parsed.
        words: words of the command line and of its ``--config`` file, see `derive_backend`.
    """
    if problems := check_counts(args):
        return problems
    as_given = [
        *check_given(args),
        *check_judge(args),
        *check_evaluation(args),
        *check_steps(args),
        *check_warmup(args),
        *check_tinker(args),
        *check_fireworks(args),
    ]  # before derivations fill in missing values
    derive_backend(args, words)
    derive_loss(args, words)
    derive_paths(args)
    derive_critic(args, LATEST)
    derive_roles(args)
    derive_colocate(args)
    derive_machines(args)
    derive_megatron(args)
    derive_batches(args)
    derive_rollout(args)
    derive_routing_replay(args)
    derive_weight_sync(args)
    problems = [
        *as_given,
        *check_paths(args),
        *check_resumed(args),
        *check_written(args),
        *check_roles(args),
        *check_colocate(args),
        *check_engines(args),
        *check_backend(args),
        *check_context(args, os.environ),
        *check_batches(args),
        *check_lengths(args),
        *check_algorithm(args),
        *check_critic(args, LATEST),
        *check_rewards(args),
        *check_staleness(args),
        *evaluation.check_eval_datasets(args),
        *check_tracking(args),
        *check_trainer(args),
        *check_memory_history(args),
        *check_weight_sync(args),
        *check_environments(args),
        *check_fixed(args),
        *check_fuses(args),
        *check_gate(args),
        *check_megatron(args),
        *check_shared(args, os.environ),
    ]
    config = config_or_none(args.hf_checkpoint)
    problems += [*check_model_shape(args, config)] if config is not None else []
    problems += check_routing_replay(args, config)
    for folder in (args.hf_checkpoint, args.critic_load if args.use_critic else None):
        if (config := config_or_none(folder)) is not None:
            of_folder = args.changed(hf_checkpoint=folder)
            problems += [*check_trainable(of_folder, config), *check_megatron_shape(of_folder, config)]
    return problems
