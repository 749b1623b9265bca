"""A trainer's rank 0 that stops in the middle of a push, for a test to kill: ``python -m tests.helpers.dying_trainer FOLDER PORT FLAGS [slots]``.

It pushes version 1 to the engine at 127.0.0.1:PORT, then version 2 without its last weight, says ``middle`` and waits. FLAGS are JSON; ``slots``: like a trainer on a GPU,
through two segments.
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
from slime.weight_sync.shared_memory import SharedMemoryWeightSync
from tests.helpers.weight_receivers import CPU, rank_zero, sync_args, weights


def most(version: int) -> Iterator[tuple[str, Tensor]]:
    """The weights of ``version``, and never the last."""
    yield from list(weights(version).items())[:-1]
    print("middle", flush=True)
    signal.pause()


def main() -> None:
    """See the module."""
    folder, port, flags = Path(sys.argv[1]), int(sys.argv[2]), json.loads(sys.argv[3])
    args = sync_args(folder, **flags)
    engine = ExternalEngine(args, EngineSpec("policy", 0, 1), f"127.0.0.1:{port}")
    engine.start()
    make = SharedMemoryWeightSync if sys.argv[4:] == ["slots"] else make_weight_sync
    with rank_zero():
        sync = make(args, device=CPU, address="127.0.0.1")
        sync.connect([local_handle(engine)])
        sync.push(iter(weights(1).items()), "1")
        sync.push(most(2), "2")


if __name__ == "__main__":
    main()
