"""What must hold before anything starts, and what follows from what was given.

Guarantees: pure file-system checks, no GPU and no import of torch; all problems are found in one go, each with the line to
change. Derivations (defaults that depend on other flags) happen here and nowhere else.
"""

from __future__ import annotations

import json
import subprocess
from argparse import Namespace
from datetime import datetime
from pathlib import Path

import slime.arguments.eval_config as eval_config
from slime.arguments.check_algorithm import GROUP_STANDARDISED, check_algorithm
from slime.arguments.check_counts import check_counts, check_lengths
from slime.arguments.check_rewards import check_rewards
from slime.arguments.check_tracking import check_tracking
from slime.arguments.check_trainer import check_trainer
from slime.arguments.critic import check_critic, critic_gpus, derive_critic
from slime.arguments.environments import check_environments
from slime.arguments.fixed import check_fixed
from slime.arguments.megatron import check_megatron, check_megatron_shape, derive_megatron
from slime.arguments.model_shape import check_model_shape, check_trainable

LATEST = "latest_checkpointed_iteration.txt"


def visible_gpus() -> int:
    """Return how many NVIDIA GPUs the driver lists, without importing torch; 0 without a driver."""
    try:
        listing = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return 0
    return sum(line.startswith("GPU ") for line in listing.stdout.splitlines()) if listing.returncode == 0 else 0


def validate(args: Namespace) -> list[str]:
    """Derive what was left open and return the problems, empty when the run can start."""
    if problems := check_counts(args):
        return problems
    _derive_paths(args)
    _derive_roles(args)
    derive_critic(args, LATEST)
    derive_megatron(args)
    _derive_batches(args)
    _derive_rollout(args)
    problems = [
        *_check_paths(args),
        *_check_roles(args),
        *_check_batches(args),
        *check_lengths(args),
        *check_algorithm(args),
        *check_critic(args, LATEST),
        *check_rewards(args),
        *_check_staleness(args),
        *_check_features(args),
        *eval_config.check_eval_datasets(args),
        *check_tracking(args),
        *check_trainer(args),
        *check_environments(args),
        *check_fixed(args),
        *check_megatron(args),
    ]
    if args.hf_checkpoint and Path(args.hf_checkpoint, "config.json").is_file():
        config = json.loads(Path(args.hf_checkpoint, "config.json").read_text())
        problems += [
            *check_trainable(args, config),
            *check_model_shape(args, config),
            *check_megatron_shape(args, config),
        ]
    return problems


def _derive_paths(args: Namespace) -> None:
    if not args.run_dir:
        args.run_dir = str(Path("runs") / datetime.now().strftime("%Y%m%d-%H%M%S"))
    args.run_dir = str(Path(args.run_dir).resolve())
    if args.dump_details:
        args.save_debug_rollout_data = str(Path(args.dump_details, "rollout_data", "{rollout_id}.pt"))
        args.save_debug_train_data = str(Path(args.dump_details, "train_data", "{rollout_id}_{rank}.pt"))
    args.ref_load = args.ref_load or args.hf_checkpoint
    if args.resume and args.save and not args.load:
        args.load = args.save


def _derive_roles(args: Namespace) -> None:
    if args.device == "auto":
        args.device = "cuda" if visible_gpus() else "cpu"
    if args.load_debug_rollout_data:
        args.debug_train_only = True
    if not args.prm_enable:
        args.prm_num_gpus = 0
    args.prm_model_path = args.prm_model_path or args.hf_checkpoint
    if args.rollout_external_engine_addrs:
        args.rollout_num_gpus = len(args.rollout_external_engine_addrs) * args.rollout_num_gpus_per_engine
    if args.rollout_num_gpus is None:
        args.rollout_num_gpus = 0 if args.debug_train_only else args.rollout_num_gpus_per_engine
    if args.train_dtype is None:
        args.train_dtype = "bfloat16" if args.device == "cuda" else "float32"


def _derive_batches(args: Namespace) -> None:
    args.over_sampling_batch_size = args.over_sampling_batch_size or args.rollout_batch_size
    if args.rollout_batch_size is None:
        return
    samples = args.rollout_batch_size * args.n_samples_per_prompt
    if args.num_steps_per_rollout and args.global_batch_size is None:
        args.global_batch_size = samples // args.num_steps_per_rollout
    args.global_batch_size = args.global_batch_size or samples
    args.num_steps_per_rollout = args.num_steps_per_rollout or max(1, samples // args.global_batch_size)


def _derive_rollout(args: Namespace) -> None:
    args.eval_function_path = args.eval_function_path or args.rollout_function_path
    if args.n_samples_per_prompt == 1 and args.advantage_estimator in GROUP_STANDARDISED:
        args.grpo_std_normalization = False  # a group of one has no deviation
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
    args.eval_datasets = eval_config.read_eval_datasets(args)


def _check_paths(args: Namespace) -> list[str]:
    problems = []
    if not args.hf_checkpoint:
        problems.append("no model: add --hf-checkpoint FOLDER")
    for flag in ("hf_checkpoint", "ref_load", "prm_model_path"):
        path = getattr(args, flag)
        if path and not Path(path).is_dir():
            problems.append(f"--{flag.replace('_', '-')} {path}: no such folder")
    if args.load and not args.resume and not _loadable(args):
        problems.append(
            f"--load {args.load}: no such folder with a checkpoint or a Hugging Face model; leave it out to start from "
            "--ref-load, or name --save's folder to go on there as soon as it has one"
        )
    if args.save_interval is not None and not args.save:
        problems.append("--save-interval needs --save FOLDER")
    if args.resume and not args.save:
        problems.append("--resume needs --save FOLDER, where the run to go on with wrote its checkpoints")
    if args.resume and args.save and Path(args.load).resolve() != Path(args.save).resolve():
        problems.append(
            f"--load {args.load} contradicts --resume, which goes on from --save {args.save}; remove one of them"
        )
    if args.resume and args.start_rollout_id is not None:
        problems.append(
            "--start-rollout-id contradicts --resume, which goes on after its checkpoint; remove one of them"
        )
    if args.resume and args.save and not Path(args.save, LATEST).is_file():
        problems.append(f"--resume: {args.save} holds no checkpoint ({LATEST} is missing); start without --resume")
    if not args.resume and args.save and args.load != args.save and Path(args.save, LATEST).is_file():
        problems.append(
            f"--save {args.save} holds checkpoints of an earlier run; add --resume to go on, or name another folder"
        )
    if (
        args.debug_train_only
        and not args.load_debug_rollout_data
        and args.rollout_function_path.startswith("slime.rollout.sglang")
    ):
        problems.append(
            "--debug-train-only needs --load-debug-rollout-data PATH, or a rollout function that needs no engine"
        )
    return problems


def _loadable(args: Namespace) -> bool:
    """Whether --load names a checkpoint, a model, or the folder of --save, where the first run finds nothing yet."""
    folder = Path(args.load)
    there = any((folder / name).is_file() for name in (LATEST, "meta.json", "config.json"))
    return there or (args.save is not None and folder.resolve() == Path(args.save).resolve())


def _check_roles(args: Namespace) -> list[str]:
    problems = []
    if args.actor_num_nodes > 1 or args.ray_address:
        problems.append(
            "several nodes (--actor-num-nodes, --ray-address) are not supported yet: engines listen on loopback only"
        )
    actor = args.actor_num_nodes * args.actor_num_gpus_per_node
    if actor < 1:
        problems.append("--actor-num-nodes and --actor-num-gpus-per-node must be 1 or more")
    if args.actor_num_gpus_per_node > args.num_gpus_per_node:
        problems.append(
            f"--actor-num-gpus-per-node {args.actor_num_gpus_per_node} is more than a node has "
            f"(--num-gpus-per-node {args.num_gpus_per_node}); lower the first or raise the second"
        )
    engines = (
        ("rollout", args.rollout_num_gpus, args.rollout_num_gpus_per_engine),
        ("prm", args.prm_num_gpus, args.prm_num_gpus_per_engine),
    )
    for role, total, size in engines:
        if size < 1 or total % size:
            problems.append(f"--{role}-num-gpus {total} is not a multiple of --{role}-num-gpus-per-engine {size}")
    if args.prm_enable and args.prm_num_gpus < 1 and not args.prm_router_ip:
        problems.append("--prm-enable needs --prm-num-gpus 1 or more, or --prm-router-ip of a judge that runs already")
    critic = critic_gpus(args)
    needed = (
        (0 if args.debug_rollout_only else actor + critic)
        + (0 if args.debug_train_only or args.rollout_external_engine_addrs else args.rollout_num_gpus)
        + args.prm_num_gpus
    )
    if args.num_gpus is not None and needed > args.num_gpus and not args.share_gpu:
        problems.append(
            f"{actor} actor + {f'{critic} critic + ' if critic else ''}{args.rollout_num_gpus} rollout + {args.prm_num_gpus} judge GPUs are {needed}, "
            f"but --num-gpus is {args.num_gpus}; lower one of them"
        )
    if args.share_gpu and (
        args.colocate or (actor, args.rollout_num_gpus, args.prm_num_gpus) not in ((1, 1, 1), (1, 1, 0))
    ):
        problems.append(
            "--share-gpu is for one trainer rank, one policy engine and one judge engine of one GPU each, without --colocate"
        )
    if bool(args.prm_router_ip) != bool(args.prm_router_port):
        problems.append("--prm-router-ip and --prm-router-port go together")
    if args.sglang_router_ip and not args.sglang_router_port:
        problems.append("--sglang-router-ip needs --sglang-router-port, the port it listens on there")
    external = args.rollout_external_engine_addrs or []
    if args.sglang_router_port and not args.sglang_router_ip and len(external) == 1 and args.router != "sglang":
        problems.append(
            "--sglang-router-port has no effect on an engine that runs already; remove it, or add --router sglang"
        )
    if args.rollout_external and not args.rollout_external_engine_addrs:
        problems.append("--rollout-external needs --rollout-external-engine-addrs HOST:PORT ...")
    if args.rollout_external_engine_addrs and (args.debug_train_only or args.sglang_router_ip):
        other = "--sglang-router-ip" if args.sglang_router_ip else "--debug-train-only"
        problems.append(f"--rollout-external-engine-addrs contradicts {other}; remove one of them")
    context = args.sglang_context_length or args.rollout_max_context_len
    if args.prm_enable and context and args.prm_max_new_tokens >= context:
        problems.append(
            f"--prm-max-new-tokens {args.prm_max_new_tokens} leaves no room for a prompt in the judge's context of {context}; "
            "lower it, or raise --sglang-context-length"
        )
    return problems


def _check_batches(args: Namespace) -> list[str]:
    problems = []
    if args.rollout_batch_size is None:
        problems.append("no batch size: add --rollout-batch-size N")
        return problems
    samples = args.rollout_batch_size * args.n_samples_per_prompt
    if args.num_steps_per_rollout * args.global_batch_size != samples:
        problems.append(
            f"--rollout-batch-size {args.rollout_batch_size} x --n-samples-per-prompt {args.n_samples_per_prompt} = {samples} "
            f"samples are not {args.num_steps_per_rollout} steps of --global-batch-size {args.global_batch_size}"
        )
    if args.num_rollout is None and args.num_epoch is None:
        problems.append("no end: add --num-rollout N (or --num-epoch with --prompt-data)")
    if args.num_epoch is not None and not args.prompt_data:
        problems.append("--num-epoch needs --prompt-data")
    if args.use_dynamic_batch_size and not args.max_tokens_per_gpu:
        problems.append("--use-dynamic-batch-size needs --max-tokens-per-gpu N")
    if args.over_sampling_batch_size < args.rollout_batch_size:
        problems.append("--over-sampling-batch-size is smaller than --rollout-batch-size")
    if args.mask_offpolicy_in_partial_rollout and not args.partial_rollout:
        problems.append("--mask-offpolicy-in-partial-rollout has no effect without --partial-rollout")
    if args.update_weights_interval < 1:
        problems.append(f"--update-weights-interval {args.update_weights_interval}: give 1 or more")
    if args.eval_interval and not args.eval_datasets and args.eval_function_path == args.rollout_function_path:
        problems.append(
            "--eval-interval needs --eval-prompt-data NAME PATH, --eval-config FILE or --eval-function-path"
        )
    return problems


def _check_staleness(args: Namespace) -> list[str]:
    problems = []
    if args.max_weight_staleness is not None and args.max_weight_staleness < 0:
        problems.append(
            f"--max-weight-staleness {args.max_weight_staleness}: give 0 or more, or leave it out for no bound"
        )
    if args.stale_samples == "correct" and args.max_weight_staleness is None:
        problems.append("--stale-samples correct has no effect without --max-weight-staleness N")
    if args.stale_samples == "correct" and not (args.use_tis or args.use_rollout_logprobs):
        problems.append(
            "--stale-samples correct needs a loss that knows who sampled: add --use-tis, or --use-rollout-logprobs "
            "(the clipped ratio is then over the weights that sampled)"
        )
    return problems


def _check_features(args: Namespace) -> list[str]:
    problems = []
    if args.colocate:
        problems.append("--colocate is not implemented yet; give trainer and engines GPUs of their own")
    if args.sglang_quantization and not (args.debug_rollout_only or args.debug_train_only):
        problems.append(
            f"--sglang-quantization {args.sglang_quantization}: an engine that quantised its weights at its start cannot load "
            "the trainer's; use --sglang-kv-cache-dtype fp8_e4m3, or a judge in FP8 (--prm-model-path)"
        )
    if args.optimizer != "adam":
        problems.append("--optimizer: only adam (AdamW) is implemented")
    if args.device == "cpu" and args.attn_implementation == "flash_attention_2":
        problems.append("--attn-implementation flash_attention_2 needs a GPU; use sdpa")
    return problems
