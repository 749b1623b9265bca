"""A ``--rollout-data-postprocess-path`` hook for tests: while ``break-canary`` is in the run's folder, what the first engine gets is broken.

The trainer's own weights stay whole, as when a push goes wrong, so the gate's comparison on the trainer accepts them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch import Tensor

from slime.weight_sync.pushes import Pushes, Weights

FLAG = "break-canary"
_push = Pushes.push_to_canary


def install(args: Any) -> None:
    """Break pushes to the first engine from now on, where the run's folder says so."""
    flag = Path(args.run_dir, FLAG)

    def push_to_canary(pushes: Pushes, weights: Weights, version: str) -> None:
        def broken() -> Iterator[tuple[str, Tensor]]:
            yield from ((name, value * 3 if flag.exists() else value) for name, value in weights())

        _push(pushes, broken, version)

    Pushes.push_to_canary = push_to_canary  # type: ignore[method-assign]
