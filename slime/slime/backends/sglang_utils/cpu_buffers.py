"""On a CPU an engine keeps the experts of its tokens in ordinary memory, where SGLang registers the buffer with CUDA."""

from __future__ import annotations


def install() -> None:
    """Have SGLang allocate the buffer in the way it does for devices without ``cudaHostRegister``.

    Raises:
        ImportError, AttributeError: for an SGLang whose names are others, so that a change is noticed.
    """
    from sglang.srt.mem_cache.pool_host import common

    common.ALLOC_MEMORY_FUNCS["cpu"] = common.alloc_with_pin_memory
