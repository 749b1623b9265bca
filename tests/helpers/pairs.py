"""What goes with what: every loss on every back end, full and LoRA. The rows and columns of the table in instructions/backends.md."""

from __future__ import annotations

from tests.helpers.gradient_cases import LOSSES, TOPK_LOSS

COLUMNS: dict[str, list[str]] = {
    "FSDP2, full": [],
    "FSDP2, LoRA": ["--use-lora"],
    "Megatron, full": ["--train-backend", "megatron"],
    "Megatron, LoRA": ["--train-backend", "megatron", "--use-lora"],
}
WHITENED = ["--normalize-advantages"]
CUSTOM = ["--loss-type", "custom_loss", "--custom-loss-function-path"]
# Row of the table: its losses by the names of `LOSSES`, and the flags that ask for each.
ROWS: dict[str, dict[str, list[str]]] = {
    "`policy_loss`, every estimator but `ppo`": {
        "grpo": [],
        "gspo": ["--advantage-estimator", "gspo"],
        "cispo": ["--advantage-estimator", "cispo"],
        "reinforce_plus_plus": ["--advantage-estimator", "reinforce_plus_plus", *WHITENED],
        "reinforce_plus_plus_baseline": ["--advantage-estimator", "reinforce_plus_plus_baseline", *WHITENED],
        "step_wise": ["--advantage-estimator", "step_wise"],
        "on_policy_distillation": ["--advantage-estimator", "on_policy_distillation"],
    },
    "`policy_loss` with `--advantage-estimator ppo`, and its critic's value loss": {
        "ppo": ["--advantage-estimator", "ppo"]
    },
    "`sft_loss`": {"sft_loss": ["--loss-type", "sft_loss"]},
    "`custom_loss`": {"custom_loss": [*CUSTOM, "tests.helpers.custom_losses.surrogate"]},
    "top-K distillation": {
        "top-K, reverse": [*CUSTOM, f"{TOPK_LOSS}.topk_distillation_loss"],
        "top-K, forward": [*CUSTOM, f"{TOPK_LOSS}.forward_topk_distillation_loss"],
    },
}
_WHOLE_CRITIC = "--use-lora cannot be combined with --advantage-estimator ppo"
# Loss and column that are refused, and what the refusal says; every other pair is in test_loss_pairs, test_ppo_trainer or test_megatron_critic.
REFUSED: dict[tuple[str, str], str] = {
    ("ppo", "FSDP2, LoRA"): _WHOLE_CRITIC,
    ("ppo", "Megatron, LoRA"): _WHOLE_CRITIC,
}
TRAINED = [(loss, column) for loss in LOSSES for column in COLUMNS if (loss, column) not in REFUSED]
