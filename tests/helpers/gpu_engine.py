"""A policy engine on the GPU that the trainer of the test uses too."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from slime.args import Arguments
from slime.arguments import build_parser
from slime.arguments.placement import EngineSpec
from slime.backends.sglang_utils.engine import SGLangEngine
from tests.helpers.engine_streams import TEMPERATURE

GPU = torch.device("cuda", 0)
NOISE = 1e-3
ENGINE = {
    "sglang_dtype": "bfloat16",
    "sglang_mem_fraction_static": 0.3,
    "sglang_max_total_tokens": 40_000,
    "sglang_context_length": 8192,
    "sglang_cuda_graph_max_bs_decode": 8,
}
"""Room for the trainer beside it, and few graphs to capture: those of the batches that the tests have."""


def run_on_gpu(model: Path, run_dir: Path, **changes: Any) -> Arguments:
    """Return the arguments of a run whose engine serves ``model`` beside the trainer and whose pushes are checked.

    ``changes`` replace values; a CPU's run of the same body changes device and dtype.
    """
    own = {
        "device": "cuda",
        "run_dir": str(run_dir),
        "hf_checkpoint": str(model),
        "train_dtype": "bfloat16",
        "rollout_num_gpus": 1,
        "check_weight_update_equal": True,
        "distributed_timeout_minutes": 2,
        "rollout_temperature": TEMPERATURE,
        "use_dynamic_batch_size": True,
        "max_tokens_per_gpu": 200,
        "num_rollout": 10,
        "lr": 1e-3,
        "eps_clip_high": 0.28,
    }
    values = own | ENGINE | changes
    return build_parser().parse_args([]).changed(**values)


@contextmanager
def engine_on_gpu(args: Arguments) -> Iterator[SGLangEngine]:
    """Start the policy engine of ``args`` on GPU 0."""
    engine = SGLangEngine(args, EngineSpec("policy", 0, 1, (0,)))
    try:
        engine.start()
        yield engine
    finally:
        engine.stop()


def other_weights(model: Any) -> dict[str, torch.Tensor]:
    """Return weights near those of ``model``, as far away as some training steps; the same at every call."""
    generator = torch.Generator(device=model.device).manual_seed(3)
    found = {}
    for name, value in model.state_dict().items():
        noise = torch.randn(value.shape, generator=generator, device=value.device) * NOISE
        found[name] = (value.float() + noise).to(value.dtype)
    if model.config.tie_word_embeddings:
        found["lm_head.weight"] = found["model.embed_tokens.weight"]
    return found
