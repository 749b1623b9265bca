"""How new weights reach the policy engines: the flags, what follows from them, and what a push needs of the engines."""

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
            "full: every push sends all weights, a LoRA run's merged; delta: index and value of what changed; adapter: the LoRA adapter alone, which the engines "
            "apply; default: adapter for LoRA runs whose base the engines serve, full for all others",
            str,
            None,
            ("full", "delta", "adapter"),
        ),
        Option(
            "--update-weight-transport",
            "nccl: broadcast (gloo on a CPU and with --colocate); shared: memory that trainer and engines on one machine share, "
            "which all weights take with --colocate there; disk: a folder that all of them see",
            str,
            "nccl",
            ("nccl", "shared", "disk"),
        ),
        Option(
            "--update-weight-disk-dir", "folder of --update-weight-transport disk; default: weights in the run folder"
        ),
        Option("--update-weight-disk-keep-files", "keep the weights of all versions there", bool),
        Option(
            "--check-weight-update-equal", "after every push compare a checksum of each tensor on each engine", bool
        ),
    ),
)


STAGES_REFUSED = (
    "weights by broadcast or in shared memory do not reach SGLang's pipeline stages, of which the first has to be done with a push "
    "before the next hears of it; use one stage, or --update-weight-mode full with --update-weight-transport disk"
)


def derive_weight_sync(args: Arguments) -> None:
    """Settle ``update_weight_mode``, and the transport of processes that share GPUs, between which NCCL has no connection."""
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
        problems.append("engines that run already are not given adapters")
    if (args.sglang_tokenizer_worker_num or 1) > 1:
        problems.append("the newest adapter is known to one process: remove --sglang-tokenizer-worker-num")
    return problems


def check_weight_sync(args: Arguments) -> list[str]:
    """Return a line per flag that has no effect or contradicts another."""
    problems = []
    if args.update_weight_mode == "adapter":
        if not args.use_lora:
            problems.append("--update-weight-mode adapter needs --use-lora")
        if args.update_weight_transport != "nccl":
            problems.append(
                "--update-weight-transport has no effect with --update-weight-mode adapter, which sends it in the request"
            )
        problems += [f"--update-weight-mode adapter: {why}; use full" for why in _adapter_problems(args)]
    if args.update_weight_mode == "delta" and args.update_weight_transport != "nccl":
        problems.append("--update-weight-mode delta is broadcast; remove --update-weight-transport")
    own_engines = not args.rollout_external_engine_addrs
    if own_engines and args.rollout_num_gpus and pipeline_stages(args) > 1 and misses_stages(args):
        problems.append(f"--sglang-pp-size {pipeline_stages(args)}: {STAGES_REFUSED}")
    disk = [name for name in ("update_weight_disk_dir", "update_weight_disk_keep_files") if getattr(args, name)]
    if args.update_weight_transport != "disk":
        problems += [f"{flag_of(name)} has no effect without --update-weight-transport disk" for name in disk]
    return problems


def uses_loader(args: Arguments) -> bool:
    """Whether policy engines have to be started with `slime.weight_sync.LOADER`."""
    shared = args.update_weight_transport == "shared"
    delta = args.update_weight_mode == "delta"
    return shared or delta or bool(args.check_weight_update_equal)


def misses_stages(args: Arguments) -> bool:
    """Whether the run pushes weights in a way that an engine of several pipeline stages cannot take.

    SGLang hands a request to the next stage when a stage is done with it, and all stages take the same ranks of a group.
    """
    pushes = not (args.debug_rollout_only or args.debug_train_only)
    disk = args.update_weight_transport == "disk"
    return pushes and not disk and args.update_weight_mode != "adapter"


def shares_gpus(args: Arguments) -> bool:
    """Whether trainer and engines are on the same GPUs, between which NCCL has no connection."""
    return bool(args.share_gpu or args.colocate)


def on_one_gpu(args: Arguments) -> bool:
    """Return whether trainer and policy engine share one GPU, so that one can open memory of the other."""
    return shares_gpus(args) and bool(args.share_gpu or args.rollout_num_gpus == 1)


def sends_gpu_handles(args: Arguments) -> bool:
    """Return whether a push sends CUDA IPC handles of the trainer's memory."""
    return args.update_weight_transport == "shared" and on_one_gpu(args)
