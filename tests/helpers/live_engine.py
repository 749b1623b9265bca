"""A real SGLang policy engine on the CPU for integration tests."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from slime.backends.sglang_utils.engine import SGLangEngine
from slime.backends.sglang_utils.server_args import EngineSpec
from slime.utils.process import group_alive

CONTEXT_LENGTH = 4096


def engine_arguments(model: Path, run_dir: Path) -> Namespace:
    """Return the arguments of a run whose policy engine serves ``model`` on a CPU."""
    return Namespace(
        run_dir=str(run_dir),
        hf_checkpoint=str(model),
        prm_model_path=None,
        seed=1,
        device="cpu",
        weight_update_mode="retract",
        check_weight_update_equal=True,
        sglang_max_total_tokens=20000,
        sglang_context_length=CONTEXT_LENGTH,
    )


@contextmanager
def live_engine(args: Namespace) -> Iterator[SGLangEngine]:
    """Start the policy engine of ``args``; it is gone with all its processes when the block ends."""
    engine = SGLangEngine(args, EngineSpec("policy", 0, 1))
    engine.start()
    try:
        yield engine
    finally:
        pid = engine.status()["pid"]
        engine.stop()
    assert not group_alive(pid), "the engine left processes behind"


def model_of(version: str, models: list[Any]) -> Any:
    """Return which of two models sampled a token: an engine starts with the first, updates alternate."""
    return models[0 if version == "default" else int(version) % len(models)]
