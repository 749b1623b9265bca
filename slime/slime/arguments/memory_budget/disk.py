"""Disk space of checkpoints, and host memory of weights and optimizer.

An FSDP2 checkpoint holds float32 weights and both moments, 12 bytes per parameter; Megatron adds its bfloat16 weights.
A LoRA run writes only its adapters. The older checkpoints remain while a new one is written.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from slime.args import Arguments
from slime.arguments.memory_budget.parts import GIB
from slime.arguments.memory_budget.shape import Shape
from slime.arguments.placement import data_parallel_size


def checkpoint_bytes(args: Arguments, shape: Shape) -> float:
    """Return the bytes of one checkpoint of policy, critic and moving reference."""
    whole = shape.parameters + shape.tower
    if args.use_lora:
        return 14.0 * shape.adapters(args.lora_rank)  # includes the adapter in PEFT's format
    item = 14 if args.train_backend == "megatron" else 12
    critic = item * (whole - (0 if shape.tied else shape.embedding)) if args.use_critic else 0
    return item * whole + critic + (2 * whole if args.ref_update_interval else 0)


def checkpoint_lines(args: Arguments, shape: Shape) -> tuple[list[str], list[str]]:
    """Return a line about the checkpoints and warnings about disk space; nothing without ``--save``."""
    if not (args.save and args.save_interval) or args.debug_rollout_only:
        return [], []
    size, keep = checkpoint_bytes(args, shape), args.save_keep
    free, disk = _free(Path(args.save))
    line = f"  checkpoint {size / GIB:.1f} GiB every {args.save_interval} rollouts; "
    if keep <= 0:
        return [f"{line}all are kept (--save-keep 0), {free / GIB:.0f} GiB free on the disk of {disk}"], []
    needed = size * (keep + 1)
    line += f"{keep} kept and one being written take {needed / GIB:.1f} GiB (--save-keep {keep})"
    written = sum(1 for folder in Path(args.save).glob("iter_*") if folder.name[5:].isdigit())
    missing = size * max(1, keep + 1 - written)
    if free >= missing:
        return [line], []
    return [line], [
        f"the disk of {disk} has {free / GIB:.1f} GiB free, but checkpoints need {missing / GIB:.1f} GiB more; lower "
        f"--save-keep {keep}, or name another folder (--save)"
    ]


def _free(folder: Path) -> tuple[float, Path]:
    """Return the free bytes where ``folder`` is or will be, and the nearest existing folder."""
    there = next(path for path in (folder.resolve(), *folder.resolve().parents) if path.exists())
    return shutil.disk_usage(there).free, there


def host_line(args: Arguments, shape: Shape) -> str:
    """Return the line about host memory: what rank 0 reads at the start, and what stays there."""
    whole = shape.parameters + shape.tower
    reads = (2 if args.use_lora else 4) * whole / GIB
    kept = 0.0
    if args.fsdp_cpu_offload or args.optimizer_cpu_offload or args.offload_train:
        kept = (2 * whole + 16 * shape.adapters(args.lora_rank) if args.use_lora else 16 * whole) / GIB
    stays = f", and {kept:.1f} GiB stay there (offload)" if kept else ""
    copied = snapshot_bytes(args, shape) / GIB
    stays += f"; the ranks' snapshots take {copied:.1f} GiB more (--before-push-path)" if copied else ""
    return f"  host memory: rank 0 reads {reads:.1f} GiB of weights at the start{stays}"


def snapshot_bytes(args: Arguments, shape: Shape) -> float:
    """Return the bytes of all ranks' snapshots: float32 weights and moments, what follows the policy, and the critic.

    Every copy of a Megatron model also has weights in the training dtype.
    """
    if not args.before_push_path:
        return 0.0
    whole = shape.parameters + shape.tower
    element = 4 if args.train_dtype == "float32" else 2
    trained = float(shape.adapters(args.lora_rank) if args.use_lora else whole)
    item = 12.0
    if args.train_backend == "megatron":
        item += element * data_parallel_size(args, args.actor_num_nodes * args.actor_num_gpus_per_node)
    critic = whole - (0 if shape.tied else shape.embedding) if args.use_critic else 0
    return item * (trained + critic) + (element * whole if args.ref_update_interval else 0)
