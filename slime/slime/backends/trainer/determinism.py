"""``--deterministic-mode``: the same inputs give the same weights, bit by bit; what has no such kernel is an error."""

from __future__ import annotations

# cuBLAS and flash attention read these when they are first used.
DETERMINISTIC_ENVIRONMENT = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8", "FLASH_ATTENTION_DETERMINISTIC": "1"}


def use_deterministic_kernels() -> None:
    """Let torch use deterministic kernels only, in this process."""
    import torch

    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
