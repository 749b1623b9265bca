"""A trainer's rank 0 that stops in the middle of a push, for a test to kill: ``python -m tests.helpers.dying_trainer FOLDER PORT FLAGS``.

It pushes version 1 to the engine at 127.0.0.1:PORT, then half of version 2, says ``middle`` and waits. FLAGS are JSON.
"""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

from torch import Tensor

from benchmarks.weight_receiver import local_handle
from slime.arguments.placement import EngineSpec
from slime.backends.sglang_utils.external import ExternalEngine
from slime.weight_sync.pushes import make_weight_sync
from tests.helpers.weight_receivers import CPU, rank_zero, sync_args, weights


def half(version: int) -> Iterator[tuple[str, Tensor]]:
    """The weights of ``version`` up to the middle, then never the rest."""
    found = list(weights(version).items())
    yield from found[: len(found) // 2]
    print("middle", flush=True)
    signal.pause()


def main() -> None:
    """See the module."""
    folder, port, flags = Path(sys.argv[1]), int(sys.argv[2]), json.loads(sys.argv[3])
    args = sync_args(folder, **flags)
    engine = ExternalEngine(args, EngineSpec("policy", 0, 1), f"127.0.0.1:{port}")
    engine.start()
    with rank_zero():
        sync = make_weight_sync(args, device=CPU, address="127.0.0.1")
        sync.connect([local_handle(engine)])
        sync.push(iter(weights(1).items()), "1")
        sync.push(half(2), "2")


if __name__ == "__main__":
    main()
