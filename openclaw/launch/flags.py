"""Build the trainer's flags of a run, in the groups that users know: ``CKPT_ARGS``, ``ROLLOUT_ARGS``, ...

Guarantees: every value comes from a variable, the profile, the method or the task, or is a constant here for all runs. The
user's own flags come last, so that they win.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from groundwork.exceptions import ConfigError
from groundwork.variables import Value
from openclaw.config.method_config import MethodConfig
from openclaw.config.runtime import RuntimeConfig
from openclaw.config.runtime_variables import GATE_PATH
from openclaw.launch.adapters import PER_OWNER
from openclaw.launch.logs import CORRECTED
from openclaw.launch.methods import HOME
from openclaw.launch.profiles import Profile
from openclaw.launch.task import TaskConfig, head_address
from slime.arguments.cluster import ADDRESS_VARIABLE, named_cluster
from slime.arguments.model_shape import shape_flags

DEFAULT_VOTES = 1
DUAL_CLIP = 3.0
"""Bounds the loss of a token with a negative advantage: without it a reply that the policy has since learned to give weighs e^5."""
NO_FUSES = "off"
CUSTOM = "CUSTOM_ARGS"
"""The group of the user's own flags, the last one."""
GROUPS = (
    *("MODEL_ARGS", "PLACEMENT_ARGS", "CKPT_ARGS", "ROLLOUT_ARGS", "METHOD_ARGS", "TASK_ARGS", "OPTIMIZER_ARGS"),
    *("PERF_ARGS", "SGLANG_ARGS", "PRM_ARGS", "LORA_ARGS", "WANDB_ARGS", "PROFILE_ARGS", CUSTOM),
)
"""All groups in the order of the command line."""
NOT_TYPED = ("default", "profile", "method", "task", "model", "lora", "adapters", "logs")
"""Sources of a value that the user did not set."""
# Flags that need the trainer's own pass for old log probabilities, which --use-rollout-logprobs skips.
OWN_PASS = frozenset({"--use-tis", "--get-mismatch-metrics", "--use-rollout-entropy", "--use-routing-replay"})
MEGATRON_RECOMPUTE = ("--recompute-granularity", "full", "--recompute-method", "uniform", "--recompute-num-layers", "1")

# The variable that sets a flag, for messages about the flag, and so that the variable wins over a file of flags. The flags of a
# method's variables are found from its declaration.
VARIABLE_OF_FLAG = {
    "num-gpus": "NUM_GPUS",
    "num-gpus-per-node": "NUM_GPUS",
    "gpu-memory-gb": "GPU_MEMORY_GB",
    "num-nodes": "NNODES",
    "head-address": "MASTER_ADDR",
    "actor-num-nodes": "NNODES",
    "actor-num-gpus-per-node": "ACTOR_GPUS",
    "rollout-num-gpus": "ROLLOUT_GPUS",
    "rollout-num-gpus-per-engine": "TP",
    "prm-num-gpus": "PRM_GPUS",
    "prm-num-gpus-per-engine": "PRM_TP",
    "prm-model-path": "PRM_MODEL_PATH",
    "prm-m": "PRM_M",
    "prm-temperature": "PRM_TEMPERATURE",
    "prm-max-new-tokens": "PRM_MAX_NEW_TOKENS",
    "hf-checkpoint": "HF_CKPT",
    "ref-load": "REF_LOAD",
    "save": "SAVE_CKPT",
    "save-interval": "SAVE_INTERVAL",
    "run-dir": "RUN_DIR",
    "resume": "RESUME",
    "load": "RESUME_CKPT",
    "num-rollout": "NUM_ROLLOUT",
    "rollout-batch-size": "BATCH_SIZE",
    "rollout-max-response-len": "MAX_RESPONSE_LENGTH",
    "rollout-max-context-len": "CONTEXT_LENGTH",
    "rollout-temperature": "OPENCLAW_TEMPERATURE",
    "max-weight-staleness": "MAX_WEIGHT_STALENESS",
    "sglang-context-length": "CONTEXT_LENGTH",
    "sglang-mem-fraction-static": "MEM_FRACTION_STATIC",
    "lr": "LEARNING_RATE",
    "weight-decay": "WEIGHT_DECAY",
    "clip-grad": "CLIP_GRAD_NORM",
    "seed": "SEED",
    "eps-clip": "PPO_CLIP_RATIO",
    "use-kl-loss": "KL_LOSS_COEF",
    "kl-loss-coef": "KL_LOSS_COEF",
    "opd-teacher": "OPENCLAW_OPD_TEACHER",
    "fuses": "OPENCLAW_FUSES",
    "before-push-path": "GATE",
    "canary-engine": "GATE_CANARY",
    "gradient-checkpointing": "USE_GRADIENT_CHECKPOINTING",
    "recompute-granularity": "USE_GRADIENT_CHECKPOINTING",
    "max-tokens-per-gpu": "MAX_TOKENS_PER_GPU",
    "use-lora": "USE_LORA",
    "lora-rank": "LORA_RANK",
    "lora-alpha": "LORA_ALPHA",
    "lora-dropout": "LORA_DROPOUT",
    "adapter-per-person": "ADAPTERS",
    "use-wandb": "USE_WANDB",
    "wandb-project": "WANDB_PROJECT",
    "rotary-base": "MODEL_ARGS_ROTARY_BASE",
    "norm-epsilon": "MODEL_ARGS_NORM_EPSILON",
}

Words = list[object]


@dataclass(frozen=True, kw_only=True)
class FlagInputs:
    """Everything that determines the flags.

    Attributes:
        name: name of the run's folder under ``runs/``.
        own: the method's or the task's configuration.
        profile: profile of the machine.
        values: values of the launcher's variables, by field.
        runtime: configuration of the runtime process; None for a task, which has none.
        counts: GPUs per role on each machine.
        model: shape in ``slime/scripts/models``, or None.
        extra: the user's flags; some of them suppress a flag here.
        environment: the caller's variables.
        judge: whether a judge scores each step of a task.
        evaluates_only: whether the run only evaluates, without a trainer.
    """

    name: str
    own: MethodConfig | TaskConfig
    profile: Profile
    values: Mapping[str, Value]
    runtime: RuntimeConfig | None
    counts: Mapping[str, int]
    model: str | None
    extra: Sequence[str]
    environment: Mapping[str, str]
    judge: bool = False
    evaluates_only: bool = False

    @property
    def run_dir(self) -> Path:
        """Return the run's folder."""
        given = self.values["run_dir"]
        return Path(str(given)) if given else HOME / "runs" / self.name

    @property
    def nodes(self) -> int:
        """Return the number of machines."""
        return int(str(self.values["nnodes"]))


def flag_sections(inputs: FlagInputs) -> dict[str, tuple[str, ...]]:
    """Return the words of each non-empty group, in the order in which the trainer reads them.

    Raises:
        ConfigError: the model shape does not exist.
    """
    v = inputs.values
    if inputs.evaluates_only:
        return _as_words(_evaluation_sections(inputs))
    rows: dict[str, Sequence[object]] = {
        "MODEL_ARGS": shape_flags(inputs.model),
        "PLACEMENT_ARGS": _placement_flags(inputs),
        "CKPT_ARGS": _checkpoint_flags(inputs),
        **(_task_sections(inputs, inputs.own) if isinstance(inputs.own, TaskConfig) else _method_sections(inputs)),
        "OPTIMIZER_ARGS": [
            *("--optimizer", "adam", "--lr", v["learning_rate"], "--lr-decay-style", "constant"),
            *("--weight-decay", v["weight_decay"], "--adam-beta1", 0.9, "--adam-beta2", 0.98),
            *("--clip-grad", v["clip_grad_norm"], "--seed", v["seed"]),
        ],
        "PERF_ARGS": []
        if inputs.profile.service
        else [
            *("--use-dynamic-batch-size", "--max-tokens-per-gpu", v["max_tokens_per_gpu"]),
            *("--log-probs-chunk-size", 1024),
            *(_recompute_flags(inputs.extra) if v["gradient_checkpointing"] else []),
        ],
        "LORA_ARGS": _lora_flags(inputs) if v["use_lora"] else [],
        "WANDB_ARGS": ["--use-wandb", "--wandb-project", v["wandb_project"], "--wandb-group", inputs.name]
        if v["use_wandb"]
        else [],
        "PROFILE_ARGS": inputs.profile.flags,
        CUSTOM: inputs.extra,
    }
    return _as_words(rows)


def _as_words(rows: Mapping[str, Sequence[object]]) -> dict[str, tuple[str, ...]]:
    return {title: tuple(map(str, rows[title])) for title in GROUPS if rows.get(title)}


def _method_sections(inputs: FlagInputs) -> dict[str, Sequence[object]]:
    """Return the groups that a method on live conversations has of its own."""
    own, runtime = live_of(inputs)
    return {
        "ROLLOUT_ARGS": _rollout_flags(inputs),
        "METHOD_ARGS": _method_flags(inputs),
        "SGLANG_ARGS": [] if inputs.profile.service else _engine_flags(inputs, runtime.context_length),
        "PRM_ARGS": _judge_flags(inputs) if own.asks_judge and not runtime.judged_elsewhere else [],
    }


def _task_sections(inputs: FlagInputs, own: TaskConfig) -> dict[str, Sequence[object]]:
    """Return the groups that a task has of its own."""
    return {
        "ROLLOUT_ARGS": [*own.rollout_flags(inputs), *_staleness_flags(inputs)],
        "TASK_ARGS": [*own.loss_flags(inputs), *_fuse_flags(inputs)],
        "SGLANG_ARGS": _engine_flags(inputs, own.engine_context),
        "PRM_ARGS": own.judge_flags(inputs) if inputs.judge else [],
    }


def _evaluation_sections(inputs: FlagInputs) -> dict[str, Sequence[object]]:
    """Return the groups of a run that only evaluates a task: all GPUs serve, unless the user gave a number."""
    v, own = inputs.values, inputs.own
    if not isinstance(own, TaskConfig):
        raise ConfigError("--evaluate is for a task; leave it out, or name one with --task")
    return {
        "PLACEMENT_ARGS": [
            *("--num-gpus-per-node", v["num_gpus"], "--rollout-num-gpus", inputs.counts["rollout"]),
            *("--rollout-num-gpus-per-engine", v["tp"]),
        ],
        "CKPT_ARGS": ["--hf-checkpoint", v["hf_ckpt"], "--run-dir", inputs.run_dir],
        "TASK_ARGS": own.only_evaluation(inputs),
        "SGLANG_ARGS": _engine_flags(inputs, own.engine_context),
        CUSTOM: inputs.extra,
    }


def live_of(inputs: FlagInputs) -> tuple[MethodConfig, RuntimeConfig]:
    """Return the configurations of method and runtime of a run on live conversations."""
    assert isinstance(inputs.own, MethodConfig)
    assert inputs.runtime is not None
    return inputs.own, inputs.runtime


def own_words(inputs: FlagInputs) -> Sequence[str]:
    """Return the flags that the method's or the task's own variables decide."""
    if isinstance(inputs.own, MethodConfig):
        return inputs.own.launch_flags()
    sections = _task_sections(inputs, inputs.own)
    return [str(word) for title in sections for word in sections[title]]


def flags_of_typed(inputs: FlagInputs, sources: Mapping[str, str]) -> set[str]:
    """Return the flags that variables set which the user typed.

    Args:
        sources: where the value of each variable came from; a word of `NOT_TYPED` if the user did not set it.
    """
    typed = {name for name, source in sources.items() if source not in NOT_TYPED}
    typed |= {
        name for name in VARIABLE_OF_FLAG.values() if name.startswith("MODEL_ARGS_") and inputs.environment.get(name)
    }
    flags = {f"--{flag}" for flag, name in VARIABLE_OF_FLAG.items() if name in typed}
    for variable, value in inputs.own.values():
        if variable.name in typed:
            flags |= _changed_flags(inputs, variable.field, value)
    return flags


def _changed_flags(inputs: FlagInputs, field: str, value: Value) -> set[str]:
    """Return the flags of a method or task that depend on one of its variables: those that another value changes."""
    other = not value if isinstance(value, bool) else value + 1 if isinstance(value, int | float) else f"{value}-other"
    changed = replace(inputs, own=replace(inputs.own, **{field: other}))
    first, second = (_by_flag(own_words(item)) for item in (inputs, changed))
    return {flag for flag in first | second if first.get(flag) != second.get(flag)}


def _by_flag(words: Sequence[str]) -> dict[str, list[str]]:
    """Return the values behind each flag of a command line."""
    flags: dict[str, list[str]] = {}
    flag = ""
    for word in words:
        if word.startswith("--"):
            flag = word
        flags.setdefault(flag, []).append(word)
    return flags


def _placement_flags(inputs: FlagInputs) -> Words:
    v, nodes = inputs.values, inputs.nodes
    if inputs.profile.service:
        return ["--device", inputs.profile.device, "--train-backend", inputs.profile.service]
    trains, rollout = nodes, nodes * inputs.counts["rollout"]
    address = f"{v['master_addr']}:{v['master_port']}"
    if isinstance(inputs.own, TaskConfig):
        address = head_address(v)
        if not inputs.own.spread:
            trains, rollout = 1, inputs.counts["rollout"]
        elif nodes > 1 and inputs.judge:
            nodes += 1
    joins = _names_a_cluster(inputs.environment, inputs.extra) and nodes == 1
    return [
        *("--device", inputs.profile.device, *([] if joins else ["--num-gpus", v["num_gpus"]])),
        *("--num-gpus-per-node", v["num_gpus"]),
        *(["--gpu-memory-gb", v["gpu_memory_gb"]] if v["gpu_memory_gb"] else []),
        *(["--num-nodes", nodes, "--head-address", address] if nodes > 1 else []),
        *("--actor-num-nodes", trains, "--actor-num-gpus-per-node", inputs.counts["actor"]),
        *("--rollout-num-gpus", rollout, "--rollout-num-gpus-per-engine", v["tp"]),
        *("--train-backend", "fsdp"),
    ]


def _checkpoint_flags(inputs: FlagInputs) -> Words:
    v, hf = inputs.values, inputs.values["hf_ckpt"]
    save = v["save_ckpt"] or inputs.run_dir / "checkpoints"
    return [
        *("--hf-checkpoint", hf, "--ref-load", v["ref_load"] or hf),
        *("--save", save, "--save-interval", v["save_interval"], "--run-dir", inputs.run_dir),
        *(["--resume"] if v["resume"] else []),
        *(["--load", v["resume_ckpt"]] if v["resume_ckpt"] else []),
    ]


def _rollout_flags(inputs: FlagInputs) -> Words:
    v, (own, runtime) = inputs.values, live_of(inputs)
    function = own.rollout_function
    return [
        *(["--rollout-function-path", function] if function else []),
        *("--data-source-path", "openclaw.training.rollout.LedgerDataSource", "--disable-rollout-global-dataset"),
        *("--num-rollout", v["num_rollout"], "--rollout-batch-size", v["batch_size"]),
        *("--n-samples-per-prompt", 1, "--num-steps-per-rollout", 1, "--reward-key", "score"),
        *("--rollout-max-response-len", v["max_response_length"]),
        *("--rollout-max-context-len", runtime.context_length, "--rollout-temperature", runtime.temperature),
        *_staleness_flags(inputs),
        *(CORRECTED if v["data_path"] else []),
    ]


def _staleness_flags(inputs: FlagInputs) -> Words:
    staleness = inputs.values["max_weight_staleness"]
    return [] if staleness is None else ["--max-weight-staleness", staleness]


def _fuse_flags(inputs: FlagInputs) -> Words:
    fuses = str(inputs.values["fuses"]).split()
    return ["--fuses", *fuses] if fuses and fuses != [NO_FUSES] else []


def _engine_flags(inputs: FlagInputs, context: int | None) -> Words:
    share = ["--sglang-mem-fraction-static", inputs.values["mem_fraction_static"]]
    return share if context is None else [*share, "--sglang-context-length", context]


def _method_flags(inputs: FlagInputs) -> Words:
    v, kl, (own, runtime) = inputs.values, inputs.values["kl_loss_coef"], live_of(inputs)
    estimator = ["--kl-loss-type", "k3"]
    if inputs.profile.service:
        estimator = ["--kl-loss-type", "k1", "--use-unbiased-kl"]
    return [
        *own.launch_flags(),
        *("--eps-clip", v["ppo_clip_ratio"], "--opd-teacher", runtime.opd_teacher),
        *([] if inputs.profile.service else ["--eps-clip-c", DUAL_CLIP]),
        *([] if OWN_PASS.intersection(inputs.extra) else ["--use-rollout-logprobs"]),
        *(["--use-kl-loss", "--kl-loss-coef", kl, *estimator] if kl else []),
        *_fuse_flags(inputs),
        *(["--before-push-path", GATE_PATH] if v["gate"] and own.rollout_function else []),
        *(["--canary-engine"] if runtime.gate_canary is not None else []),
    ]


def _judge_flags(inputs: FlagInputs) -> Words:
    v, (_, runtime) = inputs.values, live_of(inputs)
    gpus = inputs.nodes * inputs.counts["prm"]
    own_tokenizer = ["--prm-model-path", v["prm_model_path"]] if v["prm_model_path"] else []
    engines = [
        *("--prm-num-gpus", gpus, "--prm-num-gpus-per-engine", v["prm_tp"]),
        *("--prm-model-path", v["prm_model_path"] or v["hf_ckpt"]),
    ]
    return [
        *(
            "--prm-enable",
            *(own_tokenizer if inputs.profile.service else engines),
            "--prm-m",
            runtime.prm_m or DEFAULT_VOTES,
        ),
        *("--prm-temperature", runtime.prm_temperature, "--prm-max-new-tokens", runtime.prm_max_new_tokens),
    ]


def _lora_flags(inputs: FlagInputs) -> Words:
    values = inputs.values
    if inputs.profile.service:
        return ["--use-lora", "--lora-rank", values["lora_rank"]]
    return [
        *("--use-lora", "--lora-rank", values["lora_rank"], "--lora-alpha", values["lora_alpha"]),
        *("--lora-dropout", values["lora_dropout"]),
        *(["--adapter-per-person"] if values["adapters"] == PER_OWNER else []),
    ]


def _names_a_cluster(environment: Mapping[str, str], extra: Sequence[str]) -> bool:
    """Return whether a variable or a flag names an existing Ray cluster; the flag wins."""
    finder = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    finder.add_argument("--ray-address", default=environment.get(ADDRESS_VARIABLE))
    finder.add_argument("--head-address")
    result, _ = finder.parse_known_args(list(extra))
    return not result.head_address and named_cluster({ADDRESS_VARIABLE: result.ray_address or ""}) is not None


def _recompute_flags(extra: Sequence[str]) -> Sequence[str]:
    """Return the flags that recompute activations on the back end in ``extra``; none if ``extra`` sets them itself."""
    finder = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    finder.add_argument("--train-backend")
    finder.add_argument("--recompute-granularity")
    result, _ = finder.parse_known_args(list(extra))
    if result.train_backend != "megatron":
        return ("--gradient-checkpointing",)
    return () if result.recompute_granularity else MEGATRON_RECOMPUTE
