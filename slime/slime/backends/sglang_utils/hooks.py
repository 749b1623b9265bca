"""Hooks around SGLang's functions, in the process of the server."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

MANAGER = "sglang.srt.managers.tokenizer_manager.TokenizerManager"


def hook(functions: Mapping[str, Callable[..., Any]], need: str) -> None:
    """Call each of ``functions`` around the function of SGLang it is listed under, with that one as its first argument.

    Raises:
        RuntimeError: when this SGLang has not what is hooked; ``need`` says what it then cannot do.
    """
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    for target, function in functions.items():
        HookRegistry.register(target, function, HookType.AROUND)
    HookRegistry.apply_hooks()
    missing = set(functions) - HookRegistry._patched
    if missing:
        raise RuntimeError(f"this SGLang cannot {need}: {sorted(missing)} could not be hooked")
