"""A real SGLang policy engine on the CPU for integration tests."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from slime.backends.sglang_utils.engine import SGLangEngine
from slime.backends.sglang_utils.server_args import EngineSpec


@contextmanager
def live_engine(model: Path, run_dir: Path, *, context_length: int = 2048) -> Iterator[SGLangEngine]:
    """Start an engine that serves ``model``; it is gone when the block ends."""
    arguments = Namespace(
        run_dir=str(run_dir),
        hf_checkpoint=str(model),
        prm_model_path=None,
        seed=1,
        device="cpu",
        weight_update_mode="retract",
        sglang_max_total_tokens=20000,
        sglang_context_length=context_length,
    )
    engine = SGLangEngine(arguments, EngineSpec("policy", 0, 1))
    engine.start()
    try:
        yield engine
    finally:
        engine.stop()
