"""Hooks around SGLang's tokenizer manager, in the server process.

:func:`hold_from_start` lets a server hold its requests from the start until it is told to continue. An engine restarted
during a run has the start weights, and its old clients reach it as soon as it listens.

:func:`serve_newest_adapter` lets requests use the trainer's newest adapter without knowing its name. Guarantees: a
request without an adapter gets, on admission, the one that was loaded last for the version that the server was told last,
and keeps it to its end. Names are those of `slime.weight_sync.adapter`; an adapter whose version was not told is reached
by its name alone. So no reply mixes weights or key/value caches of two versions (SGLang's prefix cache is per adapter).
The reported weight version is that adapter's, with the SHA-256 of the message that brought it. A request for
`slime.weight_sync.BASE` gets the base model without any adapter, and its version says so. An adapter in use is not
unloaded. State: names and digests, in SGLang's tokenizer manager.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

from slime.weight_sync import BASE, adapter_version

MANAGER = "sglang.srt.managers.tokenizer_manager.TokenizerManager"


def hook(functions: Mapping[str, Callable[..., Any]], need: str) -> None:
    """Wrap each SGLang function named in ``functions``; the wrapper gets the original as its first argument.

    Raises:
        RuntimeError: this SGLang lacks a hooked function; ``need`` says what it cannot do without.
    """
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    for target, function in functions.items():
        HookRegistry.register(target, function, HookType.AROUND)
    HookRegistry.apply_hooks()
    missing = set(functions) - HookRegistry._patched
    if missing:
        raise RuntimeError(f"this SGLang cannot {need}: {sorted(missing)} could not be hooked")


HOLD, NF4_BASE = "--hold-requests", "--nf4-base"
"""Our own options on the server's command line: start with requests held; quantise the base as the trainer does."""
PEOPLE, HELD_ADAPTERS = "--people", "--held-adapters"
"""Our own options with a value: the folder of everybody's adapters, and how many of them the server holds."""
OWN_OPTIONS, OWN_VALUES = (HOLD, NF4_BASE), (PEOPLE, HELD_ADAPTERS)


def own_values(words: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Return the values of our own options on the server's command line, and the words that are SGLang's."""
    values, theirs, rest = dict[str, str](), list[str](), iter(words)
    for word in rest:
        if word in OWN_VALUES:
            values[word] = next(rest)
        elif word not in OWN_OPTIONS:
            theirs.append(word)
    return values, theirs


def begin_paused(original: Callable[..., Any], manager: Any, *arguments: Any, **keywords: Any) -> None:
    """Wrap the construction of a tokenizer manager, so that it starts paused."""
    original(manager, *arguments, **keywords)
    manager.is_pause = True


def hold_from_start() -> None:
    """Hook SGLang's tokenizer manager.

    Raises:
        RuntimeError: see :func:`~slime.backends.sglang_utils.server_hooks.hook`.
    """
    hook({f"{MANAGER}.__init__": begin_paused}, "hold requests from its start")


IN_USE = "requests use it"
DIGEST = "adapter_sha256"
"""Key in an answer's ``meta_info``: SHA-256 of the message that brought the adapter, in hexadecimal digits."""


async def answer_with_newest(
    original: Callable[..., Any], manager: Any, request: Any, *rest: Any
) -> AsyncIterator[Any]:
    """Wrap a request: give it the newest adapter once requests are no longer held, and tag its answers."""
    if not request.lora_path:
        async with manager.is_pause_cond:
            await manager.is_pause_cond.wait_for(lambda: not manager.is_pause)
        request.lora_path = getattr(manager, "newest_adapter", None)
    version = digest = None
    if request.lora_path == BASE:
        request.lora_path, version = None, BASE
    elif isinstance(request.lora_path, str):
        version, digest = adapter_version(request.lora_path), loaded(manager).get(request.lora_path)
    async for answer in original(manager, request, *rest):
        for part in answer if isinstance(answer, list) else [answer]:
            if version is not None and "meta_info" in part:
                report(part["meta_info"], version)
                part["meta_info"][DIGEST] = digest
        yield answer


def report(meta: dict[str, Any], version: str) -> None:
    """Make an answer's ``meta_info`` say that all of it is of one weight version."""
    meta["weight_version"] = version
    spans = meta.get("weight_versions")
    if spans:
        meta["weight_versions"] = [{"version": version, "start": spans[0]["start"], "end": spans[-1]["end"]}]


def loaded(manager: Any) -> dict[str, str]:
    """Return the digests of the trainer's adapters by name, in the order of their loading."""
    return vars(manager).setdefault("adapter_digests", {})


async def remember_loaded(original: Callable[..., Any], manager: Any, request: Any, *rest: Any) -> Any:
    """Wrap the loading of an adapter to remember what was loaded."""
    result = await original(manager, request, *rest)
    if result.success and adapter_version(request.lora_name) is not None:
        loaded(manager)[request.lora_name] = hashlib.sha256(request.serialized_named_tensors[0]).hexdigest()
    return result


async def serve_version(original: Callable[..., Any], manager: Any, request: Any, *rest: Any) -> Any:
    """Wrap the change of the server's version: requests get the newest adapter of that version from now on."""
    result = await original(manager, request, *rest)
    names = [name for name in loaded(manager) if adapter_version(name) == request.new_version]
    if names:
        manager.newest_adapter = names[-1]
    return result


async def keep_while_used(original: Callable[..., Any], manager: Any, request: Any, *rest: Any) -> Any:
    """Wrap the unloading of an adapter: refuse while it is in use, instead of blocking later loads."""
    from sglang.srt.managers.io_struct import UnloadLoRAAdapterReqOutput

    adapter = manager.lora_registry.get_all_adapters().get(request.lora_name)
    counter = manager.lora_registry._counters.get(adapter.lora_id) if adapter is not None else None
    if counter is not None and counter.value() > 0:
        return UnloadLoRAAdapterReqOutput(success=False, error_message=IN_USE)
    result = await original(manager, request, *rest)
    if result.success:
        loaded(manager).pop(request.lora_name, None)
    return result


HOOKS = {
    f"{MANAGER}.generate_request": answer_with_newest,
    f"{MANAGER}.load_lora_adapter_from_tensors": remember_loaded,
    f"{MANAGER}.update_weight_version": serve_version,
    f"{MANAGER}.unload_lora_adapter": keep_while_used,
}


def serve_newest_adapter() -> None:
    """Hook SGLang's tokenizer manager.

    Raises:
        RuntimeError: see :func:`~slime.backends.sglang_utils.server_hooks.hook`; such a server would answer with the base model.
    """
    hook(HOOKS, "serve the trainer's adapter")
