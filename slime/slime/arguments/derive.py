"""Derived values: defaults that depend on other flags.

Guarantee: all derivations are here or in a topic's ``derive_*`` function, and run before the checks.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

import slime.arguments.evaluation as evaluation
from slime.args import Arguments
from slime.arguments.algorithm import GROUP_STANDARDISED
from slime.arguments.cluster import trainer_gpus
from slime.arguments.devices import VISIBLE

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
    if args.rollout_external_engine_addrs:
        args.rollout_num_gpus = len(args.rollout_external_engine_addrs) * args.rollout_num_gpus_per_engine
    if args.rollout_num_gpus is None:
        engines = trainer_gpus(args) if args.colocate else args.rollout_num_gpus_per_engine
        args.rollout_num_gpus = 0 if args.debug_train_only else engines
    if args.train_dtype is None:
        args.train_dtype = "bfloat16" if args.device == "cuda" else "float32"


def derive_batches(args: Arguments) -> None:
    """Derive the global batch size from the steps per rollout, or the other way round."""
    args.over_sampling_batch_size = args.over_sampling_batch_size or args.rollout_batch_size
    if args.rollout_batch_size is None:
        return
    samples = args.rollout_batch_size * args.n_samples_per_prompt
    if args.num_steps_per_rollout and args.global_batch_size is None:
        args.global_batch_size = samples // args.num_steps_per_rollout
    args.global_batch_size = args.global_batch_size or samples
    args.num_steps_per_rollout = args.num_steps_per_rollout or max(1, samples // args.global_batch_size)


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
