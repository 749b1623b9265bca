"""Check that a plugin can be called as the core calls it, and await its result without an event loop."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from slime.contract.clauses import ContractViolation, require
from slime.utils.async_utils import run


def check_call(function: Callable[..., Any], clause: str, positional: int, keywords: Sequence[str] = ()) -> None:
    """Check that ``function`` takes ``positional`` values and the ``keywords``, and requires nothing else."""
    require(callable(function), clause, f"it is a {type(function).__name__}, which cannot be called")
    signature = inspect.signature(function)
    try:
        signature.bind(*[None] * positional, **dict.fromkeys(keywords))
    except TypeError as error:
        given = ", ".join([f"{positional} values" if positional else "", *[f"{name}=..." for name in keywords]]).strip(
            ", "
        )
        require(False, clause, f"its signature {signature} does not take {given}: {error}")


def check_synchronous(function: Callable[..., Any], clause: str) -> None:
    """Check that ``function`` returns a result and not a coroutine."""
    found = function.__call__ if not inspect.isroutine(function) and not inspect.isclass(function) else function
    if inspect.iscoroutinefunction(found):  # nothing can be said about a coroutine that nobody awaits
        raise ContractViolation(clause, "it is declared with async def")


def check_asynchronous(function: Callable[..., Any], clause: str) -> None:
    """Check that ``function`` returns a coroutine."""
    function = getattr(function, "func", function)
    require(inspect.iscoroutinefunction(function), clause, "it is declared with def")


def settled(result: Any) -> Any:
    """Return ``result``; await it on the background loop if it is awaitable."""
    if not inspect.isawaitable(result):
        return result

    async def wait() -> Any:
        return await result

    return run(wait())
