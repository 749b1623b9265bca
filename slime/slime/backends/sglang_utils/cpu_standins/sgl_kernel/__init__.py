"""Import-only sgl_kernel: every operator can be imported, none can be called.

Importing it also makes pinned memory ordinary memory, because SGLang's LoRA code pins, and its record of experts registers
host memory with CUDA, without asking for a device.
"""

from __future__ import annotations

from ._operators import missing_operator, register_placeholders
from ._pinned_memory import ignore_pinning


def __getattr__(name: str) -> object:
    return missing_operator(name)


ignore_pinning()
register_placeholders()
