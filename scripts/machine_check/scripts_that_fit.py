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


AGENT_FOLDERS = ("toolcall-rl", "terminal-rl", "gui-rl", "swe-rl")
MAIN = (
    "openclaw-combine/run_qwen3_4b_openclaw_combine.sh",
    "openclaw-combine/run_qwen3_4b_openclaw_combine_lora.sh",
    "openclaw-combine/run_qwen3_1_7b_openclaw_combine_24gb.sh",
    "openclaw-combine/run_tiny_cpu.sh",
)
"""The scripts to start with, by size of the machine; they are listed first."""
# The first pattern that matches counts. Cards show a few percent less than their name: 24 GB as 22700 (L4) to 24564 MiB.
OF_AGENTS = (
    Kind("gui-rl/run_tiny_cpu.sh", 0, 0, "no GPU, bubblewrap and Chromium"),
    Kind("*/run_tiny_cpu.sh", 0, 0, "no GPU, bubblewrap"),
    Kind("*/run_*_agent.sh", 8, 78_000, "8 GPUs of 80 GB, or none and a server to ask (--served)"),
    Kind("*nodes*.sh", 8, 78_000, "several machines of 8 GPUs"),
    Kind("*.sh", 8, 78_000, "8 GPUs of 80 GB"),
)
SEVERAL = OF_AGENTS[3]
KINDS = (
    Kind("run_tiny_cpu*.sh", 0, 0, "no GPU"),
    Kind("run_*_24gb.sh", 1, 22_000, "1 GPU of 24 GB"),
    Kind("run_*_fp8.sh", 8, 38_000, "8 GPUs of 40 GB with FP8", (8, 9)),
    Kind("run_qwen3_8b_*_lora.sh", 4, 38_000, "4 GPUs of 40 GB"),
    Kind("run_qwen3_7b_lora_*.sh", 4, 38_000, "4 GPUs of 40 GB"),
    Kind("run_*_lora.sh", 4, 38_000, "4 GPUs of 40 GB"),
    Kind("run_qwen3_[78]b_*.sh", 8, 78_000, "8 GPUs of 80 GB"),
    Kind("run_*.sh", 8, 38_000, "8 GPUs of 40 GB"),
)


def kind_of(script: Path) -> Kind:
    """Return the kind of a launch script, whose path is relative to the repository."""
    if script.parts[0] in AGENT_FOLDERS:
        return next(kind for kind in OF_AGENTS if fnmatch(script.as_posix(), kind.pattern))
    return next(kind for kind in KINDS if fnmatch(script.name, kind.pattern))


def launch_scripts(root: Path) -> list[Path]:
    """Return every launch script of the methods and the agents, relative to the repository; those to start with first."""
    folders = sorted(path.parent for path in root.glob(f"openclaw-*/{CPU_SCRIPT}"))
    of_methods = [path for folder in folders for path in sorted(folder.glob("run_*.sh"))]
    of_agents = [path for name in AGENT_FOLDERS for path in sorted((root / name).glob("*.sh")) if path.stem != "common"]
    of_agents += sorted((root / "swe-rl" / "scripts").glob("run_*.sh"))
    relatives = [path.relative_to(root) for path in (*of_methods, *of_agents)]
    first = {name: number for number, name in enumerate(MAIN)}
    return sorted(relatives, key=lambda path: first.get(path.as_posix(), len(first)))


def suits(kind: Kind, gpus: Sequence[Gpu]) -> bool:
    """Return whether enough GPUs are large and new enough. A GPU whose memory is unknown does not count."""
    if kind is SEVERAL:
        return False
    large = [
        gpu
        for gpu in gpus
        if (gpu.memory_mib or 0) >= kind.memory_mib and (gpu.capability or (0, 0)) >= kind.capability
    ]
    return len(large) >= kind.gpus
