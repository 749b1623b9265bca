"""What the gateway asks of earlier versions of the weights: which are kept, and a reply of one.

A request names a version as ``NAME@VERSION`` in its field ``model``, in every dialect. Without ``@`` the version that serves answers.

Guarantees: a turn of a named version has its exact ids, log-probabilities and version like any other, and is never trained
(`EARLIER`). Only parameters that `openclaw.earlier` takes reach it; others are refused by name. Types and pure functions;
`openclaw.runtime.earlier` implements them.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

from openclaw.engine.client import GRAMMAR_PARAMETER, MIN_NEW_TOKENS, TokenChunk
from openclaw.gateway.capture import Prompt
from openclaw.gateway.errors import ApiError, bad_request, unsupported

EARLIER = "earlier_version"
"""Why a turn is not trained: its request named a version."""
MARK = "@"
"""Between the model's name and a version."""
TAKEN = frozenset(
    {"temperature", "top_p", "top_k", "min_p", "max_new_tokens", MIN_NEW_TOKENS, "ignore_eos", "stop_token_ids", "stop"}
)
"""Parameters of a reply that an earlier version takes."""


class Wanted(NamedTuple):
    """A reply that an earlier version is asked for.

    Attributes:
        version: which.
        ids: the prompt.
        sampling: as an engine takes it, of `TAKEN` only.
        ends: tokens that end a reply besides those that the model itself names.
        top_logprobs: number of most likely tokens reported per position.
    """

    version: str
    ids: Sequence[int]
    sampling: Mapping[str, Any]
    ends: frozenset[int]
    top_logprobs: int


class EarlierVersions(Protocol):
    """The versions of one run that are kept."""

    async def kept(self, owner: str) -> list[str]:
        """Return the versions that ``owner`` may ask, newest first; the last one is 0, the base model."""
        ...

    def generate(self, owner: str, wanted: Wanted) -> AsyncGenerator[TokenChunk, None]:
        """Yield the reply; the last chunk has ``finish``. Close the iterator to abort.

        Raises:
            VersionRefusedError: the version cannot answer, or not now.
        """
        ...

    def forgetting(self) -> AbstractAsyncContextManager[None]:
        """Drop from memory what a person asks to forget, and load nothing for the length of the block, which deletes it."""
        ...

    async def close(self) -> None:
        """Let go of what it holds."""
        ...


def version_in(model: str | None, name: str) -> str | None:
    """Return the version that a request's ``model`` names; None if it names none of the model called ``name``."""
    if model is None or MARK not in model:
        return None
    before, _, version = model.rpartition(MARK)
    return version if before == name else None


def unknown(version: str, kept: Sequence[str]) -> ApiError:
    """Return the 404 for a version that is not kept, or not for whoever asks."""
    known = f"kept are {', '.join(kept)}" if kept else "this server keeps no earlier ones"
    return ApiError(
        404,
        f"there is no version {version!r}; {known}; without {MARK} the version that serves answers",
        code="version_not_found",
        param="model",
    )


def of_version(prompt: Prompt, version: str) -> Prompt:
    """Return a prompt as ``version`` answers it.

    Raises:
        ApiError: 400 for what only the engines do.
    """
    if prompt.for_engine is not None:
        raise bad_request("an earlier version sees no pictures; leave out @VERSION, or the pictures", param="model")
    if GRAMMAR_PARAMETER in prompt.sampling:
        raise bad_request(
            "an earlier version follows no schema and no required tool call; leave out @VERSION, or response_format, "
            "strict and tool_choice",
            param="model",
        )
    if other := sorted(prompt.sampling.keys() - TAKEN):
        raise unsupported(other[0], "an earlier version does not take it; leave it out, or @VERSION")
    plan = replace(prompt.plan, excluded=EARLIER)
    return replace(prompt, version=version, model=f"{prompt.model}{MARK}{version}", plan=plan, topk=0)
