"""The launcher's environment variables, declared once.

Guarantees: every variable of a launch script is declared here with type, default and meaning, except the runtime's own
(`openclaw.config.runtime_variables.VARIABLES`). Defaults that differ between machines come from the profile.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from groundwork.exceptions import ConfigError
from groundwork.variables import EnvironmentConfig, Value, Variable, variable

DEFAULT_FUSES = (
    "train/ppo_kl>0.5 train/ppo_kl<-0.5 rollout/entropy_of_8_steps<0.01 train/entropy_loss>5"
    " rollout/response_len/of_limit>0.9 openclaw/degenerate_share>0.5"
)
"""Far from any healthy step: tiny runs stay within 0.006 of KL, 0.098 to 0.37 nats and a third of the longest reply."""


@dataclass(frozen=True, kw_only=True)
class LaunchVariables(EnvironmentConfig):
    """A field for each variable."""

    num_gpus: int = variable("NUM_GPUS", 8, "GPUs of the machine", minimum=1, aliases=("GPUS_PER_NODE",))
    gpu_memory_gb: float | None = variable(
        "GPU_MEMORY_GB",
        None,
        "GiB of one GPU, for the memory budget; default: what nvidia-smi says, else the profile's",
        above=0.0,
    )
    actor_gpus: str = variable(
        "ACTOR_GPUS", "4", "GPUs that train: a count, or a list 0,1,2,3", aliases=("TRAIN_GPUS",)
    )
    rollout_gpus: str = variable("ROLLOUT_GPUS", "2", "GPUs that serve the policy: a count, or a list")
    prm_gpus: str = variable("PRM_GPUS", "2", "GPUs that serve the judge: a count, or a list")
    nnodes: int = variable("NNODES", 1, "number of machines; the GPU counts above are per machine", minimum=1)
    node_rank: int = variable("NODE_RANK", 0, "rank of this machine among NNODES; 0 is the head", minimum=0)
    master_addr: str | None = variable("MASTER_ADDR", None, "address of the head, with NNODES above 1")
    master_port: int = variable("MASTER_PORT", 6379, "port of Ray on the head", minimum=1)
    node_addr: str | None = variable(
        "NODE_ADDR", None, "address of this machine; default: of the interface to the head"
    )
    tp: int = variable("TP", 2, "GPUs per policy engine", minimum=1)
    prm_tp: int = variable("PRM_TP", 2, "GPUs per judge engine", minimum=1)
    hf_ckpt: str = variable(
        "HF_CKPT",
        "models/Qwen3-4B",
        "policy checkpoint (Hugging Face folder)",
        aliases=("MODEL_PATH", "BASE_MODEL_PATH", "CKPT_PATH"),
    )
    ref_load: str | None = variable("REF_LOAD", None, "reference checkpoint; default: HF_CKPT")
    save_ckpt: str | None = variable(
        "SAVE_CKPT", None, "where checkpoints go; default: runs/<script>/checkpoints", aliases=("CKPT_SAVE_DIR",)
    )
    prm_model_path: str | None = variable(
        "PRM_MODEL_PATH", None, "judge checkpoint; default: HF_CKPT", aliases=("JUDGE_MODEL_PATH",)
    )
    data_path: str | None = variable(
        "DATA_PATH",
        None,
        "conversations to train from, instead of learning from live ones: a run's folder or ledger, or a file or folder of "
        "conversations or chat logs",
    )
    resume_ckpt: str | None = variable(
        "RESUME_CKPT",
        None,
        "checkpoint to start from; the run saves to SAVE_CKPT. RESUME=1 continues the run in SAVE_CKPT instead",
        aliases=("RESUME_LOAD",),
    )
    run_dir: str | None = variable("RUN_DIR", None, "logs, metrics and ledger; default: runs/<script>")
    resume: bool = variable("RESUME", False, "1: continue from the newest checkpoint in SAVE_CKPT")
    save_interval: int = variable(
        "SAVE_INTERVAL", 10, "steps between checkpoints; 1 with ADAPTERS=per-owner", minimum=1
    )
    num_rollout: int = variable(
        "NUM_ROLLOUT", 100_000_000, "optimizer steps until the run ends", minimum=1, aliases=("UPDATES",)
    )
    batch_size: int = variable("BATCH_SIZE", 16, "judged turns per optimizer step", minimum=1)
    learning_rate: float = variable(
        "LEARNING_RATE", 1e-05, "learning rate; default with USE_LORA: ten times as much", above=0.0
    )
    weight_decay: float = variable("WEIGHT_DECAY", 0.1, "weight decay", minimum=0.0)
    kl_loss_coef: float = variable(
        "KL_LOSS_COEF", 0.0, "weight of the KL to the reference; 0: the reference is not loaded", minimum=0.0
    )
    clip_grad_norm: float = variable("CLIP_GRAD_NORM", 1.0, "largest gradient norm", minimum=0.0)
    ppo_clip_ratio: float = variable("PPO_CLIP_RATIO", 0.2, "lower clip of the ratio", above=0.0)
    max_weight_staleness: int | None = variable(
        "MAX_WEIGHT_STALENESS",
        None,
        "do not train on replies sampled more than this many updates ago (reason stale); default: no bound",
        minimum=0,
    )
    fuses: str = variable(
        "OPENCLAW_FUSES",
        DEFAULT_FUSES,
        "bounds on metrics, separated by spaces, beyond which training pauses and serving goes on; off: none",
    )
    gate: bool = variable(
        "GATE",
        True,
        "1: an update serves only if probes and tasks do not speak against it, see gate.md; 0: every update serves",
    )
    gradient_checkpointing: bool = variable("USE_GRADIENT_CHECKPOINTING", True, "recompute activations")
    max_tokens_per_gpu: int = variable(
        "MAX_TOKENS_PER_GPU", 32768, "tokens per micro-batch and training GPU", minimum=16
    )
    max_response_length: int = variable("MAX_RESPONSE_LENGTH", 8192, "longest reply in tokens", minimum=1)
    mem_fraction_static: float = variable(
        "MEM_FRACTION_STATIC", 0.8, "share of GPU memory for weights and KV cache", maximum=1.0, above=0.0
    )
    seed: int = variable("SEED", 1234, "random seed")
    use_lora: bool = variable("USE_LORA", False, "train LoRA adapters")
    lora_rank: int = variable("LORA_RANK", 16, "LoRA rank", minimum=1)
    lora_alpha: int = variable("LORA_ALPHA", 32, "LoRA scale", minimum=1)
    lora_dropout: float = variable("LORA_DROPOUT", 0.0, "LoRA dropout", minimum=0.0, maximum=1.0)
    adapters: str = variable(
        "ADAPTERS",
        "off",
        "whose adapter answers and learns: off, shared (one for everybody, as USE_LORA=1 alone) or per-owner (one for each person, "
        "see adapters.md)",
        choices=("off", "shared", "per-owner"),
    )
    use_wandb: bool = variable("USE_WANDB", False, "log to Weights & Biases (key in WANDB_API_KEY or WANDB_KEY)")
    wandb_project: str = variable("WANDB_PROJECT", "openclaw_rl", "W&B project")
    other_variables: str | None = variable(
        "OPENCLAW_OTHER_VARIABLES",
        None,
        "names of variables that other programs read, separated by spaces, though they look like mistyped names of this project",
    )


LAUNCH_VARIABLES = LaunchVariables.variables()


@dataclass(frozen=True)
class Resolved:
    """A variable's value and its source: the name it was set under, ``profile`` or ``default``."""

    variable: Variable
    value: Value
    source: str


def with_aliases(aliases: Mapping[str, tuple[str, ...]]) -> tuple[Variable, ...]:
    """Return the launcher's variables with further names."""
    return tuple(
        replace(item, aliases=(*item.aliases, *aliases.get(item.name, ()))) if item.name in aliases else item
        for item in LAUNCH_VARIABLES
    )


def resolve(
    environment: Mapping[str, str],
    profile: Mapping[str, Value],
    own: Mapping[str, Value] | None = None,
    aliases: Mapping[str, tuple[str, ...]] | None = None,
    source: str = "method",
) -> dict[str, Resolved]:
    """Return ``{field: Resolved}``; the environment wins over the profile, that over ``own``, and that over the default.

    Args:
        environment: the caller's variables.
        profile: defaults of the machine, by name of the variable.
        own: defaults of the method or task.
        aliases: further names of variables.
        source: what ``own`` is of.

    Raises:
        ConfigError: naming the unusable variable, and what to type.
    """
    resolved = {}
    for item in with_aliases(aliases or {}):
        value, came_from = item.read(environment)
        for name, defaults in (("profile", profile), (source, own or {})):
            if came_from == "default" and item.name in defaults:
                value, came_from = defaults[item.name], name
        resolved[item.field] = Resolved(item, value, came_from)
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
