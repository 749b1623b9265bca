"""The launcher's environment variables, declared once.

Guarantees: every variable of a launch script is declared here with type, default and meaning, except the runtime's own
(`openclaw.config.runtime_variables.VARIABLES`). Defaults that differ between machines come from the profile.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from openclaw.config.variable import Value, Variable
from openclaw.exceptions import ConfigError

LAUNCH_VARIABLES: tuple[Variable, ...] = (
    Variable("NUM_GPUS", "num_gpus", int, 8, "GPUs of the machine", minimum=1, aliases=("GPUS_PER_NODE",)),
    Variable(
        "GPU_MEMORY_GB",
        "gpu_memory_gb",
        float,
        None,
        "GiB of one GPU, for the memory budget; default: what nvidia-smi says, else the profile's",
        above=0.0,
    ),
    Variable(
        "ACTOR_GPUS", "actor_gpus", str, "4", "GPUs that train: a count, or a list 0,1,2,3", aliases=("TRAIN_GPUS",)
    ),
    Variable("ROLLOUT_GPUS", "rollout_gpus", str, "2", "GPUs that serve the policy: a count, or a list"),
    Variable("PRM_GPUS", "prm_gpus", str, "2", "GPUs that serve the judge: a count, or a list"),
    Variable("NNODES", "nnodes", int, 1, "number of machines; the GPU counts above are per machine", minimum=1),
    Variable("NODE_RANK", "node_rank", int, 0, "rank of this machine among NNODES; 0 is the head", minimum=0),
    Variable("MASTER_ADDR", "master_addr", str, None, "address of the head, with NNODES above 1"),
    Variable("MASTER_PORT", "master_port", int, 6379, "port of Ray on the head", minimum=1),
    Variable("NODE_ADDR", "node_addr", str, None, "address of this machine; default: of the interface to the head"),
    Variable("TP", "tp", int, 2, "GPUs per policy engine", minimum=1),
    Variable("PRM_TP", "prm_tp", int, 2, "GPUs per judge engine", minimum=1),
    Variable(
        "HF_CKPT",
        "hf_ckpt",
        str,
        "models/Qwen3-4B",
        "policy checkpoint (Hugging Face folder)",
        aliases=("MODEL_PATH", "BASE_MODEL_PATH"),
    ),
    Variable("REF_LOAD", "ref_load", str, None, "reference checkpoint; default: HF_CKPT"),
    Variable(
        "SAVE_CKPT",
        "save_ckpt",
        str,
        None,
        "where checkpoints go; default: runs/<script>/checkpoints",
        aliases=("CKPT_SAVE_DIR",),
    ),
    Variable(
        "PRM_MODEL_PATH",
        "prm_model_path",
        str,
        None,
        "judge checkpoint; default: HF_CKPT",
        aliases=("JUDGE_MODEL_PATH",),
    ),
    Variable("RUN_DIR", "run_dir", str, None, "logs, metrics and ledger; default: runs/<script>"),
    Variable("RESUME", "resume", bool, False, "1: continue from the newest checkpoint in SAVE_CKPT"),
    Variable("SAVE_INTERVAL", "save_interval", int, 10, "steps between checkpoints", minimum=1),
    Variable(
        "NUM_ROLLOUT",
        "num_rollout",
        int,
        100_000_000,
        "optimizer steps until the run ends",
        minimum=1,
        aliases=("UPDATES",),
    ),
    Variable("BATCH_SIZE", "batch_size", int, 16, "judged turns per optimizer step", minimum=1),
    Variable("LEARNING_RATE", "learning_rate", float, 1e-5, "learning rate", above=0.0),
    Variable("WEIGHT_DECAY", "weight_decay", float, 0.1, "weight decay", minimum=0.0),
    Variable(
        "KL_LOSS_COEF",
        "kl_loss_coef",
        float,
        0.0,
        "weight of the KL to the reference; 0: the reference is not loaded",
        minimum=0.0,
    ),
    Variable("CLIP_GRAD_NORM", "clip_grad_norm", float, 1.0, "largest gradient norm", minimum=0.0),
    Variable("PPO_CLIP_RATIO", "ppo_clip_ratio", float, 0.2, "lower clip of the ratio", above=0.0),
    Variable(
        "MAX_WEIGHT_STALENESS",
        "max_weight_staleness",
        int,
        None,
        "do not train on replies sampled more than this many updates ago (reason stale); default: no bound",
        minimum=0,
    ),
    Variable("USE_GRADIENT_CHECKPOINTING", "gradient_checkpointing", bool, True, "recompute activations"),
    Variable(
        "MAX_TOKENS_PER_GPU", "max_tokens_per_gpu", int, 32768, "tokens per micro-batch and training GPU", minimum=16
    ),
    Variable("MAX_RESPONSE_LENGTH", "max_response_length", int, 8192, "longest reply in tokens", minimum=1),
    Variable(
        "MEM_FRACTION_STATIC",
        "mem_fraction_static",
        float,
        0.8,
        "share of GPU memory for weights and KV cache",
        above=0.0,
        maximum=1.0,
    ),
    Variable("SEED", "seed", int, 1234, "random seed"),
    Variable("USE_LORA", "use_lora", bool, False, "train LoRA adapters"),
    Variable("LORA_RANK", "lora_rank", int, 16, "LoRA rank", minimum=1),
    Variable("LORA_ALPHA", "lora_alpha", int, 32, "LoRA scale", minimum=1),
    Variable("LORA_DROPOUT", "lora_dropout", float, 0.0, "LoRA dropout", minimum=0.0, maximum=1.0),
    Variable("USE_WANDB", "use_wandb", bool, False, "log to Weights & Biases (key in WANDB_API_KEY or WANDB_KEY)"),
    Variable("WANDB_PROJECT", "wandb_project", str, "openclaw_rl", "W&B project"),
)

# Variables of other guides without a meaning here, and what to use instead.
REPLACED: dict[str, str] = {
    "GRAD_ACCUM_STEPS": "gradients accumulate over the whole batch; MAX_TOKENS_PER_GPU bounds a micro-batch",
    "MAJORITY_VOTE_THRESHOLD": "the majority of the votes decides; unset it",
    "VALUE_CLIP": "no method here has a critic; unset it",
    "RESUME_CKPT": "write SAVE_CKPT=FOLDER RESUME=1 with the folder that holds the checkpoints",
    "DATA_PATH": "training from recorded conversations is not implemented yet; unset it",
    "OPENCLAW_RECORD_ENABLED": "the ledger (OPENCLAW_LEDGER) always records every turn; unset it",
    "OPENCLAW_RECORD_FILE": "the ledger records every turn; set its path with OPENCLAW_LEDGER",
    "OPENCLAW_PRM_RECORD_FILE": "the ledger records every verdict; set its path with OPENCLAW_LEDGER",
    "OPENCLAW_DEBUG": "write ROLLOUT_LOG_LEVEL=DEBUG",
}
# Read by the environments of method folders; the built-in methods learn from conversations.
OF_ENVIRONMENTS = (
    *("ENV_TYPE", "TASK_TYPE", "MAX_STEPS", "PARALLEL_ENVS", "SCREENSHOT_BACKEND", "TOOLS_CONFIG", "SWE_BENCH_PATH"),
)


def check_replaced(environment: Mapping[str, str], *, built_in: bool = True) -> None:
    """Raise ConfigError for set variables that this launcher, or a built-in method, does not support."""
    lines = [f"{name} is set, but {instead}" for name, instead in REPLACED.items() if environment.get(name)]
    if built_in:
        lines += [
            f"{name} is set, but this method learns from conversations; unset it, or run a folder with environments"
            for name in OF_ENVIRONMENTS
            if environment.get(name)
        ]
    if lines:
        raise ConfigError("\n  - ".join(["unsupported variables:", *lines]))


@dataclass(frozen=True)
class Resolved:
    """A variable's value and its source: the name it was set under, ``profile`` or ``default``."""

    variable: Variable
    value: Value
    source: str


def resolve(environment: Mapping[str, str], profile: Mapping[str, Value]) -> dict[str, Resolved]:
    """Return ``{field: Resolved}``; the environment wins over the profile, the profile over the default.

    Raises:
        ConfigError: naming the unusable variable, and what to type.
    """
    resolved = {}
    for variable in LAUNCH_VARIABLES:
        value, source = variable.read(environment)
        if source == "default" and variable.name in profile:
            value, source = profile[variable.name], "profile"
        resolved[variable.field] = Resolved(variable, value, source)
    return resolved


def parse_gpus(name: str, text: str) -> tuple[int, tuple[int, ...] | None]:
    """Return the count, and the GPU numbers if ``text`` is a list.

    Raises:
        ConfigError: if it is neither.
    """
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not words or not all(word.isdigit() for word in words):
        raise ConfigError(f"{name}={text!r} is neither a count nor a list of GPU numbers; write 4 or 0,1,2,3")
    if "," not in text:
        return int(words[0]), None
    numbers = tuple(map(int, words))
    if len(set(numbers)) != len(numbers):
        raise ConfigError(f"{name}={text!r} names a GPU twice; list each GPU once")
    return len(numbers), numbers
