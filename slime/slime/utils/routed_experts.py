"""The experts that an engine reports with its answer, decoded into ``Sample.rollout_routed_experts``.

Guarantee: a row is what the engine reported, whole and within the model's experts, or an error; none is computed anew.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from slime.args import Arguments
from slime.exceptions import EngineError
from slime.utils.model_config import number_of_experts, read_config, text_config

if TYPE_CHECKING:
    from slime.utils.types import Sample

_SENT = np.dtype("<i4")


@dataclass(frozen=True)
class ExpertShape:
    """Layers of a model, experts per token, and experts to choose from."""

    layers: int
    per_token: int
    experts: int


@cache
def expert_shape(checkpoint: str) -> ExpertShape:
    """Return the shape of the Hugging Face folder ``checkpoint``, a mixture of experts."""
    config = text_config(read_config(Path(checkpoint)))
    return ExpertShape(config["num_hidden_layers"], config["num_experts_per_tok"], number_of_experts(config) or 0)


def take_experts(args: Arguments, sample: Sample, meta: Mapping[str, Any], seen: int) -> None:
    """Append the rows of an engine's answer to those of ``sample``.

    Args:
        args: of the run.
        sample: with the tokens of the answer.
        meta: of the answer; one that was broken off before it ran has no experts, and the next one will bring its rows.
        seen: tokens of prompt and answer that the engine speaks of, of which ``sample`` may have fewer.

    Raises:
        EngineError: when the rows do not fit tokens and model.
    """
    encoded = meta.get("routed_experts")
    if not args.use_rollout_routing_replay or encoded is None:
        return
    shape, held = expert_shape(args.hf_checkpoint), sample.rollout_routed_experts
    rows = max(0, seen - 1 - (0 if held is None else len(held)))
    sent = np.frombuffer(base64.b64decode(encoded), dtype=_SENT)
    if sent.size != rows * shape.layers * shape.per_token:
        raise EngineError(
            f"sample {sample.index}: the engine sent {sent.size} experts for {rows} tokens in {shape.layers} layers with "
            f"{shape.per_token} each"
        )
    if sent.size and not 0 <= sent.min() <= sent.max() < shape.experts:
        raise EngineError(f"sample {sample.index}: the engine sent an expert that is none of {shape.experts}")
    new = sent.reshape(rows, shape.layers, shape.per_token).astype(np.int16)
    new = new if held is None else np.concatenate([held, new])
    sample.rollout_routed_experts = new[: len(sample.tokens) - 1]
