"""`--check-weight-update-equal`: after a push, every tensor of every engine equals the trainer's, bit for bit.

Each engine rank reports a checksum per tensor through a store that the trainer hosts, and the trainer compares. No
weight is sent again.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable
from datetime import timedelta

from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]

from slime.args import Arguments
from slime.exceptions import WeightsDifferError
from slime.utils.tcp_store import hosted_store
from slime.weight_sync.checksums import MODULUS, Checksums
from slime.weight_sync.requests import serialized

Found = dict[str, list[tuple[int, int]]]


class EqualityCheck:
    """Owns the store; one per trainer, on rank 0."""

    def __init__(self, args: Arguments, address: str) -> None:
        self._timeout = timedelta(minutes=args.distributed_timeout_minutes)
        self._address = address
        self._store: TCPStore | None = None
        self._name = ""
        self._checks = 0

    def compare(self, expected: Checksums, ranks: list[int], ask: Callable[[list[bytes]], None]) -> None:
        """Ask all engines for their checksums; an update session must be open.

        Args:
            expected: checksums of the trainer.
            ranks: number of ranks of each engine.
            ask: function that sends each engine its request.

        Raises:
            WeightsDifferError: a tensor differs; the message names the first.
        """
        if self._store is None:
            self._store = hosted_store(self._address, timeout=self._timeout)
            self._name = secrets.token_hex(8)
        self._checks += 1
        request = {
            "operation": "checksums",
            "shapes": expected.shapes,
            "dtypes": expected.dtypes,
            "store": [self._address, self._store.port, self._name],
        }
        names = [f"check-{self._checks}/engine-{engine}" for engine in range(len(ranks))]
        ask([serialized(request | {"key": name}) for name in names])
        for engine, count in enumerate(ranks):
            keys = [f"{names[engine]}/{rank}" for rank in range(count)]
            parts = [json.loads(self._store.get(key)) for key in keys]
            for key in keys:
                self._store.delete_key(key)
            check(
                expected,
                {name: [tuple(part[name]) for part in parts if name in part] for name in expected.found},
                engine,
            )

    def close(self) -> None:
        """End the store."""
        self._store = None


def check(expected: Checksums, found: Found, engine: int) -> None:
    """Compare the checksums of an engine's ranks; several ranks may hold the same part of a tensor.

    Raises:
        WeightsDifferError: see :meth:`EqualityCheck.compare`.
    """
    for name, (value, elements) in expected.found.items():
        held = sum(count for _, count in found[name])
        copies, rest = divmod(held, elements) if elements else (1, 0)
        if copies == 0 or rest:
            raise WeightsDifferError(f"engine {engine} holds {held} of the {elements} elements of {name}")
        if sum(part for part, _ in found[name]) % MODULUS != copies * value % MODULUS:
            raise WeightsDifferError(f"{name} on engine {engine} differs from the trainer's after the push")
