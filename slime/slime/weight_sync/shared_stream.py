"""Stream weights to engines on the trainer's machine through the CPU cache, without a GPU.

`slime.weight_sync.stream` implements the stream. Guarantees: one request per push carries all weights, whatever their
size. Trainer and engines copy concurrently and share 16 MiB. A separate request sets the version, after all ranks of
all engines have all weights.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from torch import Tensor

from slime.weight_sync import LOADER
from slime.weight_sync.engine_sync import EngineWeightSync
from slime.weight_sync.remote_engine import EngineCalls, RemoteEngine
from slime.weight_sync.requests import serialized
from slime.weight_sync.segments import check_same_host
from slime.weight_sync.stream import StreamWriter


class StreamWeightSync(EngineWeightSync):
    """The transport of this module."""

    _writer: StreamWriter | None = None
    _requests: list[dict[str, Any]]

    def _join(self) -> None:
        check_same_host(self._call(RemoteEngine.hosts))
        ranks = self._call(RemoteEngine.num_weight_ranks)
        self._writer = StreamWriter(sum(ranks))
        sources = iter(self._writer.sources())
        self._requests = [{"operation": "stream", "sources": list(itertools.islice(sources, count))} for count in ranks]

    def _transfer(self, weights: Iterator[tuple[str, Tensor]], version: str) -> None:
        assert self._writer is not None
        gathered = self._gathered(weights)
        self._pause()
        self._call(RemoteEngine.begin_weight_update)
        messages = [(serialized(request), LOADER) for request in self._requests]
        self._calls = EngineCalls.to_each(self._engines, RemoteEngine.update_weights_from_tensor, messages)
        for name, tensor in itertools.chain(gathered, weights):
            self._writer.send(name, tensor, self._calls.check_none_ended)
        self._writer.end(self._calls.check_none_ended)
        self._calls.values()
        self._call(
            RemoteEngine.update_weights_from_tensor,
            serialized({"operation": "nothing"}),
            LOADER,
            flush_cache=self._flushes(),
            weight_version=version,
        )

    def _gathered(self, weights: Iterator[tuple[str, Tensor]]) -> list[tuple[str, Tensor]]:
        """Return the first weights, about one bucket of them, gathered while engines still serve requests."""
        found, size = [], 0
        for name, tensor in weights:
            found.append((name, tensor))
            size += tensor.nbytes
            if size >= self._args.update_weight_buffer_size:
                break
        return found

    def _leave(self, *, broken: bool) -> None:
        if self._writer is not None:
            self._writer.close()
        self._writer = None
