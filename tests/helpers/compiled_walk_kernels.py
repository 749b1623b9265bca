"""Compile the walk's Triton kernels for GPUs, which needs none: `python -m tests.helpers.compiled_walk_kernels`."""

from __future__ import annotations

import itertools
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from slime.logprobs import walk_kernels

TYPES = {"table_ptr": "", "ids_ptr": "*i64", "temperature": "fp32"} | dict.fromkeys(
    ("stride", "first", "width", "count"), "i32"
)
ALIGNED = ("table_ptr", "stride", "width")
"""What Triton finds to be a multiple of 16 for a block whose width is one."""
ASSEMBLER = Path(triton.__file__).parent / "backends/nvidia/bin/ptxas"


def compiled(kernel: Any, capability: int, dtype: str, constants: dict[str, Any]) -> str:
    """Return the assembly text of ``kernel`` for a GPU, which the compiler has also assembled."""
    names = kernel.arg_names
    types = TYPES | {"table_ptr": f"*{dtype}"} | dict.fromkeys(constants, "constexpr")
    signature = {name: types.get(name, "*fp32") for name in names}
    aligned = {(names.index(name),): [["tt.divisibility", 16]] for name in ALIGNED}
    source = ASTSource(kernel, signature, constants, aligned)
    result = triton.compile(
        source, target=GPUTarget("cuda", capability, 32), options={"num_warps": walk_kernels._WARPS}
    )
    assert result.asm["cubin"]
    return result.asm["ptx"]


def check(name: str, capability: int, dtype: str, entropy: bool, ids: int) -> None:
    """Compile one variant: it must not spill, round to the nearest bfloat16, and wait between its two kinds of stores."""
    constants = {"ENTROPY": entropy, "COLUMNS": walk_kernels._COLUMNS, "IDS": ids}
    text = compiled(getattr(walk_kernels, name), capability, dtype, constants)
    assert "v4.b32" in text, "loads of 16 bytes a thread"
    if name == "_to_gradient":
        assert "bar.sync" in text
        assert dtype == "fp32" or "cvt.rn.bf16" in text
    with tempfile.NamedTemporaryFile("w", suffix=".ptx") as file:
        file.write(text)
        file.flush()
        architecture = re.search(r"^\.target (sm_\w+)", text, re.MULTILINE)
        assert architecture is not None
        words = [ASSEMBLER, "-v", f"-arch={architecture[1]}", file.name, "-o", "/dev/null"]
        said = subprocess.run(words, check=True, capture_output=True, text=True).stderr
    assert "0 bytes spill stores, 0 bytes spill loads" in said, said
    print(name, capability, dtype, f"entropy={entropy}", f"ids={ids}", re.findall(r"Used \d+ registers", said)[0])


if __name__ == "__main__":
    for choice in itertools.product(("_add_block", "_to_gradient"), (80, 90), ("bf16", "fp32"), (True, False), (1, 32)):
        check(*choice)
