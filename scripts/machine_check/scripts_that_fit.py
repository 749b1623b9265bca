"""Say which launch scripts suit a machine, by number of GPUs and their memory.

The kind of a script follows from its name, as the table of ``instructions/scripts.md`` has it. Memory is that of the card class
the script was computed for; the dry run of a script prints the budget itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from machine_check.facts import Gpu

CPU_SCRIPT = "run_tiny_cpu.sh"
"""The script that makes a folder a method's."""


@dataclass(frozen=True)
class Kind:
    """Scripts of one kind: pattern of the file name, GPUs, and the MiB that nvidia-smi shows on the smallest card that suits."""

    pattern: str
    gpus: int
    memory_mib: int
    words: str
    capability: tuple[int, int] = (8, 0)


# The first pattern that matches counts. Cards show a few percent less than their name: 24 GB as 22700 (L4) to 24564 MiB.
KINDS = (
    Kind("run_tiny_cpu*.sh", 0, 0, "no GPU"),
    Kind("run_*_24gb.sh", 1, 22_000, "1 GPU of 24 GB"),
    Kind("run_*_fp8.sh", 8, 38_000, "8 GPUs of 40 GB with FP8", (8, 9)),
    Kind("run_qwen3_8b_*_lora.sh", 4, 38_000, "4 GPUs of 40 GB"),
    Kind("run_*_lora.sh", 4, 38_000, "4 GPUs of 40 GB"),
    Kind("run_qwen3_8b_*.sh", 8, 78_000, "8 GPUs of 80 GB"),
    Kind("run_*.sh", 8, 38_000, "8 GPUs of 40 GB"),
)


def kind_of(script: Path) -> Kind:
    """Return the kind of a launch script."""
    return next(kind for kind in KINDS if fnmatch(script.name, kind.pattern))


def launch_scripts(root: Path) -> list[Path]:
    """Return every launch script of the method folders, relative to the repository."""
    folders = sorted(path.parent for path in root.glob(f"openclaw-*/{CPU_SCRIPT}"))
    return [path.relative_to(root) for folder in folders for path in sorted(folder.glob("run_*.sh"))]


def suits(kind: Kind, gpus: Sequence[Gpu]) -> bool:
    """Return whether enough GPUs are large and new enough. A GPU whose memory is unknown does not count."""
    large = [
        gpu
        for gpu in gpus
        if (gpu.memory_mib or 0) >= kind.memory_mib and (gpu.capability or (0, 0)) >= kind.capability
    ]
    return len(large) >= kind.gpus
