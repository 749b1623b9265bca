"""A server that holds its requests from its first moment, until it is told to continue.

For an engine that is started again in a run: it has the start weights, and its old clients reach it as soon as it listens.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from slime.backends.sglang_utils.hooks import MANAGER, hook

HOLD = "--hold-requests"
"""On the server's command line, beside SGLang's options."""


def begin_paused(original: Callable[..., Any], manager: Any, *arguments: Any, **keywords: Any) -> None:
    """Around the making of a tokenizer manager: it begins as after a pause."""
    original(manager, *arguments, **keywords)
    manager.is_pause = True


def install() -> None:
    """Hook SGLang's tokenizer manager.

    Raises:
        RuntimeError: see :func:`~slime.backends.sglang_utils.hooks.hook`.
    """
    hook({f"{MANAGER}.__init__": begin_paused}, "hold requests from its start")
