"""Flags of weight pushes, the values derived from them, and what a push requires of the engines."""

from __future__ import annotations

from pathlib import Path

from slime.args import Arguments
from slime.arguments.option import Group, Option, flag_of
from slime.arguments.placement import pipeline_stages

WEIGHT_SYNC = Group(
    "weight sync",
    (
        Option(
            "--update-weight-mode",
            "full: all weights, with LoRA merged; delta: index and value of each change; adapter: only the LoRA adapter, which the engines "
            "apply; default: adapter for LoRA runs whose base the engines serve, else full",
            str,
            None,
            ("full", "delta", "adapter"),
        ),
        Option(
            "--update-weight-transport",
            "nccl: broadcast (gloo on a CPU and with --colocate); shared: shared memory on one machine, the default for full "
            "pushes with --colocate there; disk: a folder that trainer and engines can read",
            str,
            "nccl",
            ("nccl", "shared", "disk"),
        ),
        Option("--update-weight-disk-dir", "folder of --update-weight-transport disk; default: <run-dir>/weights"),
        Option("--update-weight-disk-keep-files", "keep all weight versions in --update-weight-disk-dir", bool),
        Option(
            "--check-weight-update-equal", "after every push, compare a checksum of each tensor on each engine", bool
        ),
    ),
)


STAGES_REFUSED = (
    "broadcast and shared memory cannot update an engine with pipeline stages, because the first stage must finish a push "
    "before the next one starts; use one stage, or --update-weight-mode full with --update-weight-transport disk"
)


def derive_weight_sync(args: Arguments) -> None:
    """Resolve ``update_weight_mode``, and the transport when trainer and engines share GPUs, where NCCL cannot connect."""
    if args.update_weight_mode is None:
        suits = args.use_lora and args.update_weight_transport == "nccl" and not _adapter_problems(args)
        args.update_weight_mode = "adapter" if suits else "full"
    whole = args.update_weight_mode == "full" and args.update_weight_transport == "nccl"
    if args.colocate and args.num_nodes == 1 and whole:
        args.update_weight_transport = "shared"


def _adapter_problems(args: Arguments) -> list[str]:
    problems = []
    base = (
        args.load if args.load and (Path(args.load) / "config.json").exists() else args.ref_load or args.hf_checkpoint
    )
    if base and args.hf_checkpoint and Path(base).resolve() != Path(args.hf_checkpoint).resolve():
        problems.append(f"training starts from {base}, which the engines do not serve")
    if args.rollout_external_engine_addrs or args.sglang_router_ip:
        problems.append("running engines cannot be given adapters")
    if (args.sglang_tokenizer_worker_num or 1) > 1:
        problems.append("only one engine process knows the newest adapter: remove --sglang-tokenizer-worker-num")
    return problems


def check_weight_sync(args: Arguments) -> list[str]:
    """Return one line per flag that has no effect or contradicts another."""
    problems = []
    if args.update_weight_mode == "adapter":
        if not args.use_lora:
            problems.append("--update-weight-mode adapter needs --use-lora; add it")
        if args.update_weight_transport != "nccl":
            problems.append(
                "--update-weight-transport has no effect with --update-weight-mode adapter, which the request itself carries; remove it"
            )
        problems += [f"--update-weight-mode adapter: {why}; use full" for why in _adapter_problems(args)]
    if args.update_weight_mode == "delta" and args.update_weight_transport != "nccl":
        problems.append("--update-weight-mode delta always broadcasts; remove --update-weight-transport")
    own_engines = not args.rollout_external_engine_addrs
    if own_engines and args.rollout_num_gpus and pipeline_stages(args) > 1 and misses_stages(args):
        problems.append(f"--sglang-pp-size {pipeline_stages(args)}: {STAGES_REFUSED}")
    disk = [name for name in ("update_weight_disk_dir", "update_weight_disk_keep_files") if getattr(args, name)]
    if args.update_weight_transport != "disk":
        problems += [f"{flag_of(name)} has no effect without --update-weight-transport disk; add it" for name in disk]
    return problems


def uses_loader(args: Arguments) -> bool:
    """Return whether policy engines must start with `slime.weight_sync.LOADER`."""
    shared = args.update_weight_transport == "shared"
    delta = args.update_weight_mode == "delta"
    return shared or delta or bool(args.check_weight_update_equal)


def misses_stages(args: Arguments) -> bool:
    """Return whether the run's way of pushing weights fails with pipeline stages.

    SGLang forwards a request to the next stage once a stage has finished it, and all stages use the same ranks of a
    group.
    """
    pushes = not (args.debug_rollout_only or args.debug_train_only)
    disk = args.update_weight_transport == "disk"
    return pushes and not disk and args.update_weight_mode != "adapter"


def shares_gpus(args: Arguments) -> bool:
    """Return whether trainer and engines share GPUs, where NCCL cannot connect."""
    return bool(args.share_gpu or args.colocate)


def on_one_gpu(args: Arguments) -> bool:
    """Return whether trainer and policy engine share one GPU, so that one can map the other's memory."""
    return shares_gpus(args) and bool(args.share_gpu or args.rollout_num_gpus == 1)


def sends_gpu_handles(args: Arguments) -> bool:
    """Return whether a push sends CUDA IPC handles of the trainer's memory."""
    return args.update_weight_transport == "shared" and on_one_gpu(args)
