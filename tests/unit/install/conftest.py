"""A machine made of stand-in programs: nvidia-smi, nvcc, c++."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import pytest

QUERY = "--query-gpu=index,uuid,name,memory.total,compute_cap,driver_version --format=csv,noheader,nounits"


@dataclass
class StandInMachine:
    """Programs on a PATH of their own; ``variables`` is the environment of what runs there."""

    programs: Path
    cuda: Path
    variables: dict[str, str]

    def program(self, name: str, body: str, folder: Path | None = None) -> Path:
        """Put a shell program on the PATH, or into another folder."""
        path = (folder or self.programs) / name
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)
        return path

    def gpus(self, *gpus: tuple[str, int, str], driver: str = "580.95.05") -> None:
        """Give the machine GPUs (name, MiB, compute capability) and a driver. Other questions to nvidia-smi fail."""
        rows = [
            f"{i}, GPU-{i}ab, {name}, {mib}, {capability}, {driver}" for i, (name, mib, capability) in enumerate(gpus)
        ]
        listing = "\n".join(rows)
        self.program(
            "nvidia-smi",
            f'case "$*" in\n"{QUERY}") cat <<"END"\n{listing}\nEND\n;;\n-L) echo GPUs ;;\n*) exit 2 ;;\nesac',
        )

    def toolkit(self, release: str = "13.0") -> None:
        """Give the machine nvcc of a release and a C++ compiler."""
        self.program("nvcc", f'echo "Cuda compilation tools, release {release}, V{release}.88"', self.cuda / "bin")
        self.program("c++", "true")


@pytest.fixture
def stand_in_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StandInMachine:
    """A machine without GPU and toolkit; this process sees it too."""
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in (
        "CUDA_PATH",
        "CUDA_VISIBLE_DEVICES",
        "CXX",
        "TMPDIR",
        "XDG_CACHE_HOME",
        "PIP_CACHE_DIR",
        "PIP_NO_CACHE_DIR",
    ):
        monkeypatch.delenv(name, raising=False)
    # What the programs themselves and scripts/setup.sh need of the real machine.
    for name in (
        "sh",
        "bash",
        "cat",
        "cut",
        "dirname",
        "echo",
        "grep",
        "sha256sum",
        "env",
        "flock",
        "awk",
        "rm",
        "sed",
        "touch",
    ):
        real = next(Path(folder) / name for folder in ("/usr/bin", "/bin") if (Path(folder) / name).exists())
        (programs / name).symlink_to(real)
    monkeypatch.setenv("PATH", str(programs))
    monkeypatch.setenv("HOME", str(tmp_path))
    # A real toolkit in its usual place is not looked at.
    cuda = tmp_path / "cuda"
    (cuda / "bin").mkdir(parents=True)
    monkeypatch.setenv("CUDA_HOME", str(cuda))
    return StandInMachine(programs, cuda, dict(os.environ))
