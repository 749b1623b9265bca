"""What the trainer's gradients are checked on, and the check, for every device and number of ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.helpers import trainer
from tests.helpers.reference_loss import reference

CASES: dict[str, dict[str, Any]] = {
    "packed": {"use_rollout_logprobs": True, "use_opd": True},
    "padded": {"pack_sequences": False, "use_rollout_logprobs": True},
    "recomputed old, tis, entropy": {"use_tis": True, "entropy_coef": 0.01, "use_opd": True},
    "checkpointing, per token": {
        "gradient_checkpointing": True,
        "calculate_per_token_loss": True,
        "use_rollout_logprobs": True,
    },
    "eager attention": {"attn_implementation": "eager"},
    "lora, kl": {"use_lora": True, "use_kl_loss": True, "kl_loss_coef": 0.1, "use_opd": True},
    "lora, padded, checkpointing": {"use_lora": True, "pack_sequences": False, "gradient_checkpointing": True},
    "sft": {"loss_type": "sft_loss"},
    "sft, padded": {"loss_type": "sft_loss", "pack_sequences": False, "gradient_checkpointing": True},
    "sft, lora": {"loss_type": "sft_loss", "use_lora": True},
    "custom": {
        "loss_type": "custom_loss",
        "custom_loss_function_path": "tests.helpers.custom_losses.surrogate",
        "use_opd": True,
    },
    "custom, padded, lora": {
        "loss_type": "custom_loss",
        "custom_loss_function_path": "tests.helpers.custom_losses.surrogate",
        "pack_sequences": False,
        "use_lora": True,
    },
    "gspo, opsm": {"advantage_estimator": "gspo", "use_rollout_logprobs": True, "use_opsm": True},
    "reinforce++, whitened, kl in the reward": {
        "advantage_estimator": "reinforce_plus_plus",
        "normalize_advantages": True,
        "gamma": 0.9,
        "kl_coef": 0.1,
        "use_rollout_logprobs": True,
    },
    "cispo, rejection": {
        "advantage_estimator": "cispo",
        "use_tis": True,
        "tis_clip": 2.5,
        "tis_clip_low": 0.1,
        "custom_tis_function_path": "slime.algorithms.losses.rejection.token_rejection",
    },
    "one micro-batch for two ranks": {"max_tokens_per_gpu": 10_000, "use_rollout_logprobs": True},
}


def check(model: Path, name: str, outcome: Any, tolerance: float = 1e-5) -> None:
    """Compare ``(metrics, gradients, adapters)`` of a step with the float64 reference.

    ``tolerance`` is relative to the loss, and to the largest gradient or 1.
    """
    metrics, gradients, adapters = outcome
    args = trainer.trainer_args(model, **CASES[name])
    loss, expected = reference(args, trainer.train_data(), adapters or None)
    assert metrics["train/loss"] == pytest.approx(loss, rel=tolerance, abs=tolerance / 10)
    assert set(gradients) == set(expected)
    largest = max(float(value.abs().max()) for value in expected.values())
    for parameter, gradient in gradients.items():
        difference = float((gradient.double() - expected[parameter]).abs().max())
        assert difference <= tolerance * max(largest, 1.0), (parameter, difference, largest)
    norm = torch.stack([value.norm() for value in expected.values()]).norm()
    assert metrics["train/grad_norm"] == pytest.approx(float(norm), rel=10 * tolerance)
