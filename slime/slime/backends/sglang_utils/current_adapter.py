"""A server whose requests use the newest adapter of the trainer, without knowing its name.

Guarantees, once :func:`install` has run: a request that names no adapter takes the newest one that was loaded under a name of
`slime.weight_sync.adapter` when it is admitted, and keeps it to its end, so no reply mixes weights or key/value caches of two
versions (SGLang's prefix cache is per adapter); what it reports as its weight version is that adapter's; an adapter that a
request uses is not unloaded. State: one name per server, in SGLang's tokenizer manager.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

from slime.backends.sglang_utils.hooks import MANAGER, hook
from slime.weight_sync import adapter_version

IN_USE = "requests use it"


async def answer_with_newest(
    original: Callable[..., Any], manager: Any, request: Any, *rest: Any
) -> AsyncIterator[Any]:
    """Around a request: give it the newest adapter once requests are no longer held, and tag its answers."""
    if not request.lora_path:
        async with manager.is_pause_cond:
            await manager.is_pause_cond.wait_for(lambda: not manager.is_pause)
        request.lora_path = getattr(manager, "newest_adapter", None)
    version = adapter_version(request.lora_path) if isinstance(request.lora_path, str) else None
    async for answer in original(manager, request, *rest):
        for part in answer if isinstance(answer, list) else [answer]:
            if version is not None and "meta_info" in part:
                _tag(part["meta_info"], version)
        yield answer


def _tag(meta: dict[str, Any], version: str) -> None:
    meta["weight_version"] = version
    spans = meta.get("weight_versions")
    if spans:
        meta["weight_versions"] = [{"version": version, "start": spans[0]["start"], "end": spans[-1]["end"]}]


async def remember_newest(original: Callable[..., Any], manager: Any, request: Any, *rest: Any) -> Any:
    """Around the loading of an adapter."""
    result = await original(manager, request, *rest)
    if result.success and adapter_version(request.lora_name) is not None:
        manager.newest_adapter = request.lora_name
    return result


async def keep_while_used(original: Callable[..., Any], manager: Any, request: Any, *rest: Any) -> Any:
    """Around the unloading of an adapter: refuse at once instead of waiting, with later loads, for its last request."""
    from sglang.srt.managers.io_struct import UnloadLoRAAdapterReqOutput

    found = manager.lora_registry.get_all_adapters().get(request.lora_name)
    counter = manager.lora_registry._counters.get(found.lora_id) if found is not None else None
    if counter is not None and counter.value() > 0:
        return UnloadLoRAAdapterReqOutput(success=False, error_message=IN_USE)
    return await original(manager, request, *rest)


HOOKS = {
    f"{MANAGER}.generate_request": answer_with_newest,
    f"{MANAGER}.load_lora_adapter_from_tensors": remember_newest,
    f"{MANAGER}.unload_lora_adapter": keep_while_used,
}


def install() -> None:
    """Hook SGLang's tokenizer manager.

    Raises:
        RuntimeError: see :func:`~slime.backends.sglang_utils.hooks.hook`; such a server would answer with the base model.
    """
    hook(HOOKS, "serve the trainer's adapter")
