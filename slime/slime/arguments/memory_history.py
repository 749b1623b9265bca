"""Snapshots of the training ranks' GPU memory."""

from __future__ import annotations

from slime.args import Arguments
from slime.arguments.option import Group, Option

MEMORY_HISTORY = Group(
    "memory snapshots of the trainer (GPU)",
    (
        Option(
            "--record-memory-history",
            "record who allocates GPU memory in each rank of the policy, for https://pytorch.org/memory_viz",
            bool,
        ),
        Option("--memory-snapshot-dir", "folder of the snapshots", str, "."),
        Option("--memory-snapshot-path", "their file name, after rank0_ and so on", str, "snapshot.pickle"),
        Option(
            "--memory-snapshot-num-steps",
            "rollouts to train before the snapshot; default: 1; running out of memory writes it at once",
            int,
        ),
    ),
)


def check_memory_history(args: Arguments) -> list[str]:
    """Return the problems, one line each."""
    if not args.record_memory_history:
        given = [option.flag for option in MEMORY_HISTORY.options if option.is_given(args)]
        return [f"{', '.join(given)} has no effect without --record-memory-history"] if given else []
    if args.device == "cpu":
        return ["--record-memory-history needs a GPU: it records CUDA's allocator; remove it"]
    return []
