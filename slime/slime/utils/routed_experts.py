"""Decode the experts that an engine reports with its answer into ``Sample.rollout_routed_experts``.

Guarantee: a row is exactly what the engine reported, checked against the model's experts, or an error; none is
recomputed.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slime.args import Arguments
from slime.exceptions import EngineError
from slime.utils.model_config import number_of_experts, read_config, text_config

if TYPE_CHECKING:
    from slime.utils.types import Sample

_SENT = "<i4"


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
        args: arguments of the run.
        sample: the sample, already with the answer's tokens.
        meta: metadata of the answer; an answer aborted before it ran has no experts, and the next one brings its rows.
        seen: prompt and answer tokens that the engine counted; ``sample`` may have fewer.

    Raises:
        EngineError: the rows do not match tokens and model.
    """
    encoded = meta.get("routed_experts")
    if not args.use_rollout_routing_replay or encoded is None:
        return
    import numpy as np  # only here: every command line imports this module

    shape, held = expert_shape(args.hf_checkpoint), sample.rollout_routed_experts
    rows = max(0, seen - 1 - (0 if held is None else len(held)))
    sent = np.frombuffer(base64.b64decode(encoded), dtype=_SENT)
    if sent.size != rows * shape.layers * shape.per_token:
        raise EngineError(
            f"sample {sample.index}: the engine sent {sent.size} experts for {rows} tokens in {shape.layers} layers with "
            f"{shape.per_token} each"
        )
    if sent.size and not 0 <= sent.min() <= sent.max() < shape.experts:
        raise EngineError(f"sample {sample.index}: the engine sent an expert id outside the model's {shape.experts}")
    new = sent.reshape(rows, shape.layers, shape.per_token).astype(np.int16)
    new = new if held is None else np.concatenate([held, new])
    sample.rollout_routed_experts = new[: len(sample.tokens) - 1]
