"""What the trainer's gradients are checked on, and the check, for every device and number of ranks."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

import torch

from lab.testkit import trainer
from slime.args import Arguments
from tests.helpers import forced_experts
from tests.helpers.reference_loss import reference
from tests.helpers.tolerance import MODEL, assert_near

CASES: dict[str, dict[str, Any]] = {
    "packed": {"use_rollout_logprobs": True, "use_opd": True},
    "padded": {"pack_sequences": False, "use_rollout_logprobs": True},
    "recomputed old, tis, entropy": {"use_tis": True, "entropy_coef": 0.01, "use_opd": True},
    "checkpointing, per token": {
        "gradient_checkpointing": True,
        "calculate_per_token_loss": True,
        "use_rollout_logprobs": True,
    },
    "checkpointing, one layer keeps attention, one is unchecked": {
        "gradient_checkpointing": True,
        "unchecked_layers": 1,
        "kept_attention_layers": 1,
    },
    "eager attention": {"attn_implementation": "eager"},
    "lora, kl": {"use_lora": True, "use_kl_loss": True, "kl_loss_coef": 0.1, "use_opd": True},
    "lora, padded, checkpointing": {"use_lora": True, "pack_sequences": False, "gradient_checkpointing": True},
    "lora as one function, checkpointing": {"use_lora": True, "lora_kernel": "fused", "gradient_checkpointing": True},
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
    "top-K, one micro-batch for two ranks": {
        "loss_type": "custom_loss",
        "custom_loss_function_path": "slime.algorithms.losses.topk_distillation.topk_distillation_loss",
        "compute_advantages_and_returns": False,
        "max_tokens_per_gpu": 10_000,
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
    "cpu offload": {"fsdp_cpu_offload": True, "use_rollout_logprobs": True},
    "cpu offload, lora, kl": {"fsdp_cpu_offload": True, "use_lora": True, "use_kl_loss": True, "kl_loss_coef": 0.1},
    "one micro-batch for two ranks": {"max_tokens_per_gpu": 10_000, "use_rollout_logprobs": True},
}

TOPK_LOSS = "slime.algorithms.losses.topk_distillation"
# Every loss that both back ends train, once in a plain form; the critic of ``ppo`` has tests of its own.
LOSSES: dict[str, dict[str, Any]] = {
    "grpo": {"use_rollout_logprobs": True, "use_opd": True},
    "gspo": {"advantage_estimator": "gspo", "use_rollout_logprobs": True},
    "cispo": {"advantage_estimator": "cispo", "use_rollout_logprobs": True},
    "reinforce_plus_plus": {
        "advantage_estimator": "reinforce_plus_plus",
        "normalize_advantages": True,
        "gamma": 0.9,
        "kl_coef": 0.1,
        "use_rollout_logprobs": True,
    },
    "reinforce_plus_plus_baseline": {
        "advantage_estimator": "reinforce_plus_plus_baseline",
        "normalize_advantages": True,
        "kl_coef": 0.1,
        "use_rollout_logprobs": True,
    },
    "step_wise": {"advantage_estimator": "step_wise", "use_rollout_logprobs": True},
    "on_policy_distillation": {"advantage_estimator": "on_policy_distillation", "use_rollout_logprobs": True},
    "sft_loss": {"loss_type": "sft_loss"},
    "custom_loss": {
        "loss_type": "custom_loss",
        "custom_loss_function_path": "tests.helpers.custom_losses.surrogate",
        "use_rollout_logprobs": True,
    },
    "top-K, reverse": {
        "loss_type": "custom_loss",
        "custom_loss_function_path": f"{TOPK_LOSS}.topk_distillation_loss",
        "compute_advantages_and_returns": False,
    },
    "top-K, forward": {
        "loss_type": "custom_loss",
        "custom_loss_function_path": f"{TOPK_LOSS}.forward_topk_distillation_loss",
        "compute_advantages_and_returns": False,
    },
}
TOP = 4


def data_of(args: Arguments) -> dict[str, Any]:
    """The training data, with what the loss and the estimator of ``args`` ask for besides."""
    data = trainer.train_data()
    rng = random.Random(9)
    responses = data["response_lengths"]
    if args.advantage_estimator == "on_policy_distillation":
        data["teacher_log_probs"] = [[-5.0 - rng.random() for _ in range(length)] for length in responses]
    if args.advantage_estimator == "step_wise":
        data["step_wise_step_token_spans"] = [[[0, length // 2], [length // 2, length]] for length in responses]
        data["step_wise_step_rewards"] = [[rng.gauss(0.0, 1.0), rng.gauss(0.0, 1.0)] for _ in responses]
        data["step_wise_step_indices"] = [[0, 1] for _ in responses]
    if (args.custom_loss_function_path or "").startswith(TOPK_LOSS):
        data["teacher_topk_indices"] = [[rng.sample(range(600), TOP) for _ in range(n)] for n in responses]
        shares = [[[rng.uniform(0.05, 0.2) for _ in range(TOP)] for _ in range(n)] for n in responses]
        data["teacher_topk_log_probs"] = [[[math.log(x) for x in row] for row in rows] for rows in shares]
    if args.use_rollout_routing_replay:
        data[forced_experts.EXPERTS] = forced_experts.random_experts(args.hf_checkpoint, data["tokens"])
    return data


def check(model: Path, name: str, outcome: Any) -> None:
    """Compare ``(metrics, gradients, adapters)`` of a case's step with the float64 reference."""
    check_case(trainer.trainer_args(model, **CASES[name]), outcome)


def check_case(args: Arguments, outcome: Any, dtype: torch.dtype = torch.float32, roundings: int = MODEL) -> None:
    """As :func:`check`, for arguments, and a step that computed in ``dtype`` and rounded to it ``roundings`` times."""
    metrics, gradients, adapters = outcome
    loss, expected = reference(args, data_of(args), adapters or None)
    precision = {"dtype": dtype, "roundings": roundings}
    assert_near(metrics["train/loss"], loss, what="loss", **precision)
    assert_near(gradients, expected, what="gradients", **precision)
    norm = float(torch.stack([value.norm() for value in expected.values()]).norm())
    assert_near(metrics["train/grad_norm"], norm, what="norm", magnitude=10 * norm, **precision)
