"""A ``--rollout-data-postprocess-path`` hook for tests: plants the fault that the file ``fault`` in the run's folder names.

A test copies this file into a method folder of a copy of the program, because a hook from outside may read any flag.

``zero advantages``, ``ignored option`` and ``unread option`` are of the step itself: no code reads the folder's own flag, and a flag
that some code reads was not read so far. With the others the trainer is whole, and what reaches the engine under
the new adapter's name is not: ``stale adapter`` the adapter before, ``base weights`` one without effect, ``other weights`` others. The
adapter that is sent after a refusal is whole again.
"""

from __future__ import annotations

import argparse
import pickle
from pathlib import Path
from typing import Any

from slime.args import READ
from slime.weight_sync.remote_engine import RemoteEngine

FILE = "fault"
OPTION = "lr"
"""Attribute of a training flag that the launcher always gives."""
SCALES = {"base weights": 0.0, "other weights": -8.0}
"""What the fault multiplies the adapter's second factor by."""
_load = RemoteEngine.load_lora_adapter_from_tensors
_sent: list[bytes] = []


def add_custom_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare a flag that nothing reads."""
    parser.add_argument("--planted-quixotry", type=int)


def install(args: Any, rollout_id: int, data: dict[str, Any]) -> None:
    """Change the data of this step, or what is sent after it, as the run's folder says."""
    fault = Path(args.run_dir, FILE).read_text() if Path(args.run_dir, FILE).exists() else ""
    if fault != "ignored option":
        READ.update(vars(args))
    if fault in ("ignored option", "unread option"):
        READ.discard(OPTION)
    if fault == "zero advantages":
        for values in data["advantages"]:
            values.zero_()

    def load(engine: RemoteEngine, name: str, config: dict[str, Any], message: bytes, checksums: Any) -> Any:
        RemoteEngine.load_lora_adapter_from_tensors = load_whole  # type: ignore[method-assign]
        if fault == "stale adapter":
            message = _sent[-1]
        elif fault in SCALES:
            tensors = pickle.loads(message)
            scaled = {key: value * SCALES[fault] if "lora_B" in key else value for key, value in tensors.items()}
            message = pickle.dumps(scaled)
        return load_whole(engine, name, config, message, checksums)

    def load_whole(engine: RemoteEngine, name: str, config: dict[str, Any], message: bytes, checksums: Any) -> Any:
        _sent.append(message)
        return _load(engine, name, config, message, checksums)

    RemoteEngine.load_lora_adapter_from_tensors = load  # type: ignore[method-assign]
