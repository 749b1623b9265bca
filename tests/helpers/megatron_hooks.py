"""Hooks of the Megatron back end that count their calls where a test sees them: in the environment of the process."""

from __future__ import annotations

import os
from typing import Any

from slime.args import Arguments

CALLS = "MEGATRON_HOOK_CALLS"
_GIVEN: list[Arguments] = []


def calls() -> list[str]:
    """Return what was called in this process, in order."""
    return os.environ.get(CALLS, "").split()


def _note(text: str) -> None:
    os.environ[CALLS] = " ".join([*calls(), text])


def init(args: Arguments) -> None:
    """--custom-megatron-init-path."""
    from megatron.core import parallel_state

    _GIVEN[:] = [args]
    _note(f"init:tp{parallel_state.get_tensor_model_parallel_world_size()}")


def model_provider(pre_process: bool = True, post_process: bool = True) -> Any:
    """--custom-model-provider-path: the model of the checkpoint, built here."""
    import torch
    from megatron.core.models.gpt.gpt_model import GPTModel

    from slime.backends.megatron_utils.config import read_config, rope_theta, shape_of, transformer_config
    from slime.backends.megatron_utils.model import _block_spec

    _note("provider")
    args = _GIVEN[0]
    hf = read_config(args.hf_checkpoint)
    config = transformer_config(args, hf, torch.float32)
    return GPTModel(
        config,
        _block_spec(args, config),
        vocab_size=shape_of(hf).vocab_size,
        max_sequence_length=512,
        position_embedding_type="rope",
        rotary_base=rope_theta(hf),  # pyright: ignore[reportArgumentType]
        share_embeddings_and_output_weights=shape_of(hf).tied,
        pre_process=pre_process,
        post_process=post_process,
    )


def before_log_prob(args: Arguments, model: Any, store_prefix: str) -> None:
    """--custom-megatron-before-log-prob-hook-path."""
    _note(f"{store_prefix}log_probs:{len(model)}")


def before_train_step(
    args: Arguments, rollout_id: int, step_id: int, model: Any, optimizer: Any, opt_param_scheduler: Any
) -> None:
    """--custom-megatron-before-train-step-hook-path."""
    _note(f"step:{rollout_id}:{step_id}:{opt_param_scheduler.steps}")
