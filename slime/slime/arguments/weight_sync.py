"""How new weights reach the policy engines."""

from __future__ import annotations

from argparse import Namespace

from slime.arguments.option import Group, Option, flag_of

WEIGHT_SYNC = Group(
    "weight sync",
    (
        Option(
            "--update-weight-transport",
            "nccl: broadcast (gloo on a CPU); shared: memory that trainer and engines on one machine share; disk: a folder that "
            "all of them see",
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


def check_weight_sync(args: Namespace) -> list[str]:
    """Return a line per flag that has no effect or contradicts another."""
    given = [name for name in ("update_weight_disk_dir", "update_weight_disk_keep_files") if getattr(args, name)]
    if args.update_weight_transport != "disk":
        return [f"{flag_of(name)} has no effect without --update-weight-transport disk" for name in given]
    return []
