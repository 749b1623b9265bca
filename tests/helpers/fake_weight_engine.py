"""An engine's side of the weight broadcast, in a process of its own, behind the methods of the engine actor."""

from __future__ import annotations

import pickle
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from lab.testkit.fork_server import ready_to_fork
from slime.weight_sync.group import join_group


def _serve(pipe: Any, ranks: int) -> None:
    groups: dict[str, Any] = {}
    weights: dict[str, torch.Tensor] = {}
    calls: list[Any] = []

    def init_weights_update_group(address, port, offset, world_size, name, backend):
        groups[name] = join_group(
            address=address, port=port, rank=offset, world_size=world_size, name=name, backend=backend,
            timeout=timedelta(seconds=30),
        )  # fmt: skip

    def destroy_weights_update_group(name):
        if name in groups:  # the engine's actor takes a missing group for a left one too
            dist.destroy_process_group(groups.pop(name))

    def update_weights_from_distributed(
        names, dtypes, shapes, group_name, flush_cache=False, weight_version=None, load_format=None
    ):
        kinds = [getattr(torch, dtype) for dtype in dtypes]
        sizes = [torch.Size(shape).numel() * kind.itemsize for shape, kind in zip(shapes, kinds, strict=True)]
        data = torch.empty(sum(sizes), dtype=torch.uint8)
        dist.broadcast(data, src=0, group=groups[group_name])
        parts = data.split(sizes)
        for name, part, kind, shape in zip(names, parts, kinds, shapes, strict=True):
            weights[name] = part.view(kind).view(shape)
        calls[-1] = ("bucket", flush_cache, weight_version, load_format)

    def load_lora_adapter_from_tensors(name, config, serialized, checksums):
        weights.update(pickle.loads(serialized))
        calls[-1] = ("adapter", name, config)

    def forget():
        calls.clear()
        weights.clear()

    methods = {
        "num_weight_ranks": lambda: ranks,
        "starts": lambda: 1,
        "lora_adapters": list,
        "init_weights_update_group": init_weights_update_group,
        "destroy_weights_update_group": destroy_weights_update_group,
        "update_weights_from_distributed": update_weights_from_distributed,
        "load_lora_adapter_from_tensors": load_lora_adapter_from_tensors,
        "weights": lambda: {name: value.numpy() for name, value in weights.items()},
        "calls": lambda: list(calls),
        "forget": forget,
    }
    while True:
        name, args, kwargs = pipe.recv()
        if name == "stop":
            return
        calls.append(name)
        try:
            result = methods[name](*args, **kwargs) if name in methods else None
            pipe.send((result, None))
        except (RuntimeError, KeyError, ValueError) as error:
            pipe.send((None, repr(error)))


class _Method:
    def __init__(self, engine: FakeWeightEngine, name: str) -> None:
        self._engine, self._name = engine, name

    def remote(self, *args: Any, **kwargs: Any) -> Any:
        return _Reference(self._engine.submit(self._name, args, kwargs))


class _Reference:
    """What Ray calls an object reference."""

    def __init__(self, result: Future[Any]) -> None:
        self._result = result

    def future(self) -> Future[Any]:
        return self._result


class FakeWeightEngine:
    """``engine.method.remote(...)`` gives a reference.

    ``failing`` names methods that are refused, ``dying`` methods that end the process. ``end_failed_update`` does so too.
    """

    def __init__(self) -> None:
        context = ready_to_fork()
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, 1), daemon=True)
        self._process.start()
        theirs.close()
        self._thread = ThreadPoolExecutor(1)
        self.failing: set[str] = set()
        self.dying: set[str] = set()

    @property
    def alive(self) -> bool:
        return self._process.is_alive()

    def submit(self, name: str, args: Any, kwargs: Any) -> Future[Any]:
        if name in self.dying or name == "end_failed_update":
            self._process.kill()
            self._process.join(20)

        def call() -> Any:
            if name in self.failing:
                raise RuntimeError(f"{name} failed")
            self._pipe.send((name, args, kwargs))
            result, error = self._pipe.recv()
            if error:
                raise RuntimeError(error)
            return result

        return self._thread.submit(call)

    def __getattr__(self, name: str) -> _Method:
        return _Method(self, name)

    def call(self, name: str) -> Any:
        return self.submit(name, (), {}).result(60)

    def stop(self) -> None:
        if self.alive:
            self._pipe.send(("stop", (), {}))
        self._process.join(20)
        self._thread.shutdown()
