"""Everybody's own adapter on one SGLang engine: hooks around its tokenizer manager, in the server process.

`slime.weight_sync.shelf` says which version answers a request, and which ones the engine holds; here is how SGLang holds them.

Adapters go to the model's ranks through memory. SGLang's own way from a folder reads every ``*.safetensors`` in it, so also a
trainer's state, and refuses the load format of a quantised base (log/adapters.md).
"""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

from slime.backends.sglang_utils.server_hooks import DIGEST, IN_USE, MANAGER, hook, report
from slime.exceptions import PeopleError
from slime.weight_sync import BASE
from slime.weight_sync.shelf import ADAPTER, FALLBACK, UNNAMED, Files, RefusedRequestError, Shelf


class HeldBySGLang:
    """The versions in SGLang, by its tokenizer manager; a `slime.weight_sync.shelf.Holder`."""

    def __init__(self, manager: Any) -> None:
        self._manager = manager

    def paused(self) -> bool:
        """Return whether requests are held."""
        return bool(self._manager.is_pause)

    def running(self, name: str) -> int:
        """Return how many requests of SGLang use an adapter."""
        adapter = self._manager.lora_registry.get_all_adapters().get(name)
        counter = self._manager.lora_registry._counters.get(adapter.lora_id) if adapter is not None else None
        return counter.value() if counter is not None else 0

    async def load(self, name: str, files: Files) -> None:
        """Give a version to every rank."""
        from sglang.srt.managers.io_struct import LoadLoRAAdapterFromTensorsReqInput

        message = await asyncio.to_thread(pickle.dumps, files.tensors)
        each_rank = [message] * self._manager.server_args.tp_size
        result = await self._manager.load_lora_adapter_from_tensors(
            LoadLoRAAdapterFromTensorsReqInput(
                lora_name=name, config_dict=files.config, serialized_named_tensors=each_rank
            )
        )
        if not result.success:
            raise PeopleError(f"the engine refuses it: {result.error_message}")

    async def unload(self, name: str) -> str | None:
        """Unload a version; return why SGLang does not, None if it did."""
        from sglang.srt.managers.io_struct import UnloadLoRAAdapterReqInput

        result = await self._manager.unload_lora_adapter(UnloadLoRAAdapterReqInput(lora_name=name))
        if not result.success:
            return str(result.error_message)
        # SGLang would load it again by itself from here.
        self._manager.lora_ref_cache.pop(name, None)
        return None


def hooks(people: Path, most: int) -> dict[str, Callable[..., Any]]:
    """Return the hooks by what they wrap; see :func:`~slime.backends.sglang_utils.server_hooks.hook`."""

    def shelf(manager: Any) -> Shelf:
        found: Shelf | None = vars(manager).get("people_shelf")
        if found is None:
            found = manager.people_shelf = Shelf(HeldBySGLang(manager), people, most)
        return found

    async def answer_as_asked(
        original: Callable[..., AsyncIterator[Any]], manager: Any, request: Any, *rest: Any
    ) -> AsyncIterator[Any]:
        if not request.lora_path:
            raise RefusedRequestError(UNNAMED)
        if not isinstance(request.lora_path, str):
            raise RefusedRequestError("lora_path must be one name; send a request for each adapter")
        async with manager.is_pause_cond:
            await manager.is_pause_cond.wait_for(lambda: not manager.is_pause)
        taken = await shelf(manager).take(request.lora_path)
        request.lora_path = taken.name
        try:
            async for answer in original(manager, request, *rest):
                for part in answer if isinstance(answer, list) else [answer]:
                    if "meta_info" in part:
                        meta = part["meta_info"]
                        report(meta, taken.version)
                        meta |= {DIGEST: taken.sha256, ADAPTER: taken.name or BASE}
                        if taken.fallback is not None:
                            meta[FALLBACK] = taken.fallback
                yield answer
        finally:
            if taken.name is not None:
                shelf(manager).give_back(taken.name)

    async def keep_while_used(original: Callable[..., Awaitable[Any]], manager: Any, request: Any, *rest: Any) -> Any:
        from sglang.srt.managers.io_struct import UnloadLoRAAdapterReqOutput

        if shelf(manager).in_use(request.lora_name):
            return UnloadLoRAAdapterReqOutput(success=False, error_message=IN_USE)
        shelf(manager).gone(request.lora_name)
        return await original(manager, request, *rest)

    return {
        f"{MANAGER}.generate_request": answer_as_asked,
        f"{MANAGER}.unload_lora_adapter": keep_while_used,
    }


def serve_people(people: Path, most: int) -> None:
    """Hook SGLang's tokenizer manager; ``people`` and ``most``: see `Shelf`.

    Raises:
        RuntimeError: see :func:`~slime.backends.sglang_utils.server_hooks.hook`; such a server would answer with the base model.
    """
    hook(hooks(people, most), "serve each person's adapter")
