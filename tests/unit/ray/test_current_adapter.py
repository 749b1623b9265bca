"""Requests of an engine take the trainer's newest adapter, keep it, and say so."""

from __future__ import annotations

import asyncio
import hashlib
import runpy
import sys
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from slime.backends.sglang_utils import server_hooks
from slime.weight_sync import adapter, adapter_version

SPANS = [{"version": "default", "start": 0, "end": 3}, {"version": "7", "start": 3, "end": 9}]


class Manager:
    """As much of SGLang's as the hooks touch."""

    def __init__(self) -> None:
        self.is_pause = False
        self.is_pause_cond = asyncio.Condition()
        self.seen: list[str | None] = []

    async def generate(self, request: Any, *rest: Any) -> AsyncIterator[Any]:
        self.seen.append(request.lora_path)
        request.lora_path = [request.lora_path] * 2  # as it does with a batch
        meta = {"weight_version": "default", "weight_versions": [dict(span) for span in SPANS]}
        yield {"meta_info": dict(meta)}
        yield [{"meta_info": dict(meta)}, {"no": "meta"}]


async def answers(manager: Manager, lora_path: str | None = None) -> list[Any]:
    request = SimpleNamespace(lora_path=lora_path)
    return [answer async for answer in server_hooks.answer_with_newest(Manager.generate, manager, request)]


async def load(manager: Manager, name: str, success: bool = True) -> None:
    async def original(*_: Any) -> Any:
        return SimpleNamespace(success=success)

    request = SimpleNamespace(lora_name=name, serialized_named_tensors=[name.encode()])
    await server_hooks.remember_loaded(original, manager, request)


async def serve(manager: Manager, version: str) -> None:
    async def original(*_: Any) -> None:
        """SGLang sets its own number."""

    await server_hooks.serve_version(original, manager, SimpleNamespace(new_version=version))


def test_names_of_the_trainer_carry_the_version() -> None:
    assert adapter_version("weights-12-0123abcd-3") == "12"
    assert [adapter_version(name) for name in ("weights-12", "mine", None, "weights-1-2-3")] == [None] * 4


def test_a_trainer_that_is_started_again_gives_other_names() -> None:
    first, second = (runpy.run_path(adapter.__file__) for _ in range(2))
    assert next(first["PUSHES"]) != next(second["PUSHES"])


def test_a_request_takes_the_newest_adapter_and_reports_its_version() -> None:
    async def run() -> None:
        manager = Manager()
        first = await answers(manager)
        assert first[0]["meta_info"]["weight_version"] == "default"
        await load(manager, "weights-3-0123abcd-0")
        await serve(manager, "3")
        await load(manager, "weights-4-0123abcd-1", success=False)
        await serve(manager, "4")
        await load(manager, "weights-5-0123abcd-2")
        await load(manager, "somebody's")
        single, batch = await answers(manager)
        for part in (single, batch[0]):
            assert part["meta_info"]["weight_version"] == "3"
            assert part["meta_info"]["weight_versions"] == [{"version": "3", "start": 0, "end": 9}]
            assert part["meta_info"]["adapter_sha256"] == hashlib.sha256(b"weights-3-0123abcd-0").hexdigest()
        offered = await answers(manager, "weights-5-0123abcd-2")
        assert offered[0]["meta_info"]["weight_version"] == "5", (
            "an adapter that nobody has accepted answers by its name"
        )
        other = await answers(manager, "somebody's")
        assert other[0]["meta_info"]["weight_versions"] == SPANS
        [base, _] = await answers(manager, "base")
        assert base["meta_info"]["weight_version"] == "base"
        assert base["meta_info"]["weight_versions"] == [{"version": "base", "start": 0, "end": 9}]
        assert manager.seen == [None, "weights-3-0123abcd-0", "weights-5-0123abcd-2", "somebody's", None]

    asyncio.run(run())


def test_a_held_request_takes_the_adapter_that_ends_the_hold() -> None:
    async def run() -> None:
        manager = Manager()
        manager.is_pause = True
        held = asyncio.create_task(answers(manager))
        await asyncio.sleep(0)
        await load(manager, "weights-5-0123abcd-0")
        await serve(manager, "5")
        assert manager.seen == []
        async with manager.is_pause_cond:
            manager.is_pause = False
            manager.is_pause_cond.notify_all()
        await held
        assert manager.seen == ["weights-5-0123abcd-0"]

    asyncio.run(run())


@pytest.mark.parametrize(("running", "unloads"), [(0, 1), (2, 0)])
def test_an_adapter_in_use_is_not_unloaded(monkeypatch: pytest.MonkeyPatch, running: int, unloads: int) -> None:
    monkeypatch.setitem(
        sys.modules, "sglang.srt.managers.io_struct", SimpleNamespace(UnloadLoRAAdapterReqOutput=SimpleNamespace)
    )
    done = []

    async def original(manager: Any, request: Any) -> Any:
        done.append(request.lora_name)
        return SimpleNamespace(success=True)

    registry = SimpleNamespace(
        get_all_adapters=lambda: {"weights-1-0123abcd-0": SimpleNamespace(lora_id="x")},
        _counters={"x": SimpleNamespace(value=lambda: running)},
    )
    request = SimpleNamespace(lora_name="weights-1-0123abcd-0")
    result = asyncio.run(server_hooks.keep_while_used(original, SimpleNamespace(lora_registry=registry), request))
    assert result.success == bool(unloads)
    assert len(done) == unloads
    assert unloads or result.error_message == server_hooks.IN_USE
