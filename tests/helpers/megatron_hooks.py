"""Hooks of the Megatron back end that count their calls where a test sees them: in the environment of the process."""

from __future__ import annotations

import os
from argparse import Namespace
from typing import Any

CALLS = "MEGATRON_HOOK_CALLS"


def calls() -> list[str]:
    """Return what was called in this process, in order."""
    return os.environ.get(CALLS, "").split()


def _note(text: str) -> None:
    os.environ[CALLS] = " ".join([*calls(), text])


def init(args: Namespace) -> None:
    """--custom-megatron-init-path."""
    from megatron.core import parallel_state

    _note(f"init:tp{parallel_state.get_tensor_model_parallel_world_size()}")


def before_log_prob(args: Namespace, model: Any, store_prefix: str) -> None:
    """--custom-megatron-before-log-prob-hook-path."""
    _note(f"{store_prefix}log_probs:{len(model)}")


def before_train_step(
    args: Namespace, rollout_id: int, step_id: int, model: Any, optimizer: Any, opt_param_scheduler: Any
) -> None:
    """--custom-megatron-before-train-step-hook-path."""
    _note(f"step:{rollout_id}:{step_id}:{opt_param_scheduler.steps}")
