"""Where compiled kernels are kept: one folder of this user and machine, which survives runs and reboots.

Engines and ranks compile kernels when they first need them, with a dozen compilers that have a cache each. Some keep it in
the temporary folder, which a reboot or a new container empties. A variable of a library that the user sets is left alone.
"""

from __future__ import annotations

import os
from collections.abc import MutableMapping
from pathlib import Path

VARIABLE = "SLIME_KERNEL_CACHE"
"""Names the folder; default: ``openclaw-rl/kernels`` in the user's cache folder."""
FOLDERS = {
    "SGLANG_CACHE_DIR": "sglang",  # also of DeepGEMM and of kernels that it compiles ahead
    "SGLANG_JIT_CACHE_DIR": "sglang/jit",
    "FLASHINFER_WORKSPACE_BASE": "flashinfer",
    "TVM_FFI_CACHE_DIR": "tvm-ffi",
    "CUTE_DSL_CACHE_DIR": "cute-dsl",
    "TILELANG_CACHE_DIR": "tilelang",
    "TRITON_CACHE_DIR": "triton",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "TORCH_EXTENSIONS_DIR": "torch-extensions",
    "CUDA_CACHE_PATH": "cuda",
}
"""The variable of each compiler, and its folder below the one of `VARIABLE`."""


def kernel_cache() -> Path:
    """Return the folder of this machine."""
    if given := os.environ.get(VARIABLE):
        return Path(given).expanduser().absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "openclaw-rl" / "kernels"


def keep_kernels(environment: MutableMapping[str, str]) -> None:
    """Set each compiler's variable that is not set, in the environment of a process that has not imported it yet."""
    folder = kernel_cache()
    for name, part in FOLDERS.items():
        environment.setdefault(name, str(folder / part))
