"""Where compiled kernels are kept: one folder of this user and machine, which survives runs and reboots.

Engines and ranks compile kernels when they first need them, with several compilers that have a cache each. Some keep it in
the temporary folder, which a reboot or a new container empties. FlashInfer and Torch's extensions are not among them: their
own folders survive, and differ by version. Machines that share a home folder do not share kernels, because their GPUs may
differ, and a lock file that one of them leaves behind would stop the others. A variable of a library that the user sets is
left alone.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import MutableMapping
from functools import cache
from pathlib import Path

logger = logging.getLogger(__name__)

VARIABLE = "SLIME_KERNEL_CACHE"
"""Names the folder; default: ``openclaw-rl/kernels/<machine>`` in the user's cache folder."""
FOLDERS = {
    "SGLANG_CACHE_DIR": "sglang",  # also of DeepGEMM and of kernels that it compiles ahead
    "SGLANG_JIT_CACHE_DIR": "sglang/jit",
    "TVM_FFI_CACHE_DIR": "tvm-ffi",
    "CUTE_DSL_CACHE_DIR": "cute-dsl",
    "TILELANG_CACHE_DIR": "tilelang",
    "TRITON_CACHE_DIR": "triton",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "CUDA_CACHE_PATH": "cuda",
}
"""The variable of each compiler, and its folder below the one of `VARIABLE`."""


def kernel_cache() -> Path:
    """Return the folder of this machine.

    Raises:
        RuntimeError: the user has no home folder.
    """
    if given := os.environ.get(VARIABLE):
        return Path(given).expanduser().absolute()
    user = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    return user / "openclaw-rl" / "kernels" / socket.gethostname()


def keep_kernels(environment: MutableMapping[str, str]) -> None:
    """Set each compiler's variable that is not set, in the environment of a process that has not imported it yet.

    If the folder cannot be used, the environment stays as it is, which this process logs once.
    """
    try:
        folder = kernel_cache()
        _prepare(folder)
    except (OSError, RuntimeError) as error:
        _tell(str(error))
        return
    for name, part in FOLDERS.items():
        environment.setdefault(name, str(folder / part))


def _prepare(folder: Path) -> None:
    """Create ``folder``; raise OSError if nothing can be written there."""
    folder.mkdir(parents=True, exist_ok=True)
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(f"{folder} cannot be written")


@cache
def _tell(error: str) -> None:
    logger.warning(
        "compiled kernels are kept where each library keeps them: %s; name a folder with %s", *(error, VARIABLE)
    )
