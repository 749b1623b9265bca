"""Build the trainer's flags of a run, in the groups that users know: ``CKPT_ARGS``, ``ROLLOUT_ARGS``, ...

Guarantees: every value comes from a variable, the profile or the method, or is a constant here for all runs. The user's own
flags come last, so that they win.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from openclaw.config.gate_variables import GATE_PATH
from openclaw.config.method_config import MethodConfig
from openclaw.config.runtime import RuntimeConfig
from openclaw.config.variable import Value
from openclaw.exceptions import ConfigError
from openclaw.launch.logs import CORRECTED
from openclaw.launch.methods import REPOSITORY
from openclaw.launch.profiles import Profile
from slime.arguments.machines import ADDRESS_VARIABLE, named_cluster
from slime.arguments.model_shape import shape_flags
from slime.exceptions import ConfigurationError

DEFAULT_VOTES = 1
DUAL_CLIP = 3.0
"""Bounds the loss of a token with a negative advantage: without it a reply that the policy has since learned to give weighs e^5."""
NO_FUSES = "off"
# Flags that need the trainer's own pass for old log probabilities, which --use-rollout-logprobs skips.
OWN_PASS = frozenset({"--use-tis", "--get-mismatch-metrics", "--use-rollout-entropy", "--use-routing-replay"})
MEGATRON_RECOMPUTE = ("--recompute-granularity", "full", "--recompute-method", "uniform", "--recompute-num-layers", "1")

Words = list[object]


@dataclass(frozen=True, kw_only=True)
class FlagInputs:
    """Everything that determines the flags.

    Attributes:
        name: name of the run's folder under ``runs/``.
        own: the method's configuration.
        profile: profile of the machine.
        values: values of the launcher's variables, by field.
        runtime: configuration of the runtime process.
        counts: GPUs per role on each machine.
        model: shape in ``slime/scripts/models``, or None.
        extra: the user's flags; some of them suppress a flag here.
        environment: the caller's variables.
    """

    name: str
    own: MethodConfig
    profile: Profile
    values: Mapping[str, Value]
    runtime: RuntimeConfig
    counts: Mapping[str, int]
    model: str | None
    extra: Sequence[str]
    environment: Mapping[str, str]

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
    rows: dict[str, Sequence[object]] = {
        "MODEL_ARGS": _model_flags(inputs.model),
        "PLACEMENT_ARGS": _placement_flags(inputs),
        "CKPT_ARGS": _checkpoint_flags(inputs),
        "ROLLOUT_ARGS": _rollout_flags(inputs),
        "METHOD_ARGS": _method_flags(inputs),
        "OPTIMIZER_ARGS": [
            *("--optimizer", "adam", "--lr", v["learning_rate"], "--lr-decay-style", "constant"),
            *("--weight-decay", v["weight_decay"], "--adam-beta1", 0.9, "--adam-beta2", 0.98),
            *("--clip-grad", v["clip_grad_norm"], "--seed", v["seed"]),
        ],
        "PERF_ARGS": [
            *("--use-dynamic-batch-size", "--max-tokens-per-gpu", v["max_tokens_per_gpu"]),
            *("--log-probs-chunk-size", 1024),
            *(_recompute_flags(inputs.extra) if v["gradient_checkpointing"] else []),
        ],
        "SGLANG_ARGS": [
            *("--sglang-mem-fraction-static", v["mem_fraction_static"]),
            *("--sglang-context-length", inputs.runtime.context_length),
        ],
        "PRM_ARGS": _judge_flags(inputs) if inputs.own.asks_judge and not inputs.runtime.judged_elsewhere else [],
        "LORA_ARGS": _lora_flags(v) if v["use_lora"] else [],
        "WANDB_ARGS": ["--use-wandb", "--wandb-project", v["wandb_project"], "--wandb-group", inputs.name]
        if v["use_wandb"]
        else [],
        "PROFILE_ARGS": inputs.profile.flags,
        "CUSTOM_ARGS": inputs.extra,
    }
    return {title: tuple(map(str, words)) for title, words in rows.items() if words}


def _model_flags(model: str | None) -> Sequence[str]:
    """Return the flags of a model shape; none without a model.

    Raises:
        ConfigError: the shape is unknown; the message lists the known ones.
    """
    if not model:
        return ()
    try:
        return shape_flags(model)
    except ConfigurationError as error:
        raise ConfigError(str(error)) from error


def _placement_flags(inputs: FlagInputs) -> Words:
    v, nodes = inputs.values, inputs.nodes
    joins = _names_a_cluster(inputs.environment, inputs.extra) and nodes == 1
    head = ["--num-nodes", nodes, "--head-address", f"{v['master_addr']}:{v['master_port']}"] if nodes > 1 else []
    return [
        *("--device", inputs.profile.device, *([] if joins else ["--num-gpus", v["num_gpus"]])),
        *("--num-gpus-per-node", v["num_gpus"]),
        *(["--gpu-memory-gb", v["gpu_memory_gb"]] if v["gpu_memory_gb"] else []),
        *head,
        *("--actor-num-nodes", nodes, "--actor-num-gpus-per-node", inputs.counts["actor"]),
        *("--rollout-num-gpus", nodes * inputs.counts["rollout"], "--rollout-num-gpus-per-engine", v["tp"]),
        *("--train-backend", "fsdp"),
    ]


def _checkpoint_flags(inputs: FlagInputs) -> Words:
    v, hf = inputs.values, inputs.values["hf_ckpt"]
    run_dir = Path(str(v["run_dir"])) if v["run_dir"] else REPOSITORY / "runs" / inputs.name
    save = v["save_ckpt"] or run_dir / "checkpoints"
    return [
        *("--hf-checkpoint", hf, "--ref-load", v["ref_load"] or hf),
        *("--save", save, "--save-interval", v["save_interval"], "--run-dir", run_dir),
        *(["--resume"] if v["resume"] else []),
    ]


def _rollout_flags(inputs: FlagInputs) -> Words:
    v, runtime, function = inputs.values, inputs.runtime, inputs.own.rollout_function
    staleness = v["max_weight_staleness"]
    return [
        *(["--rollout-function-path", function] if function else []),
        *("--data-source-path", "openclaw.training.rollout.LedgerDataSource", "--disable-rollout-global-dataset"),
        *("--num-rollout", v["num_rollout"], "--rollout-batch-size", v["batch_size"]),
        *("--n-samples-per-prompt", 1, "--num-steps-per-rollout", 1, "--reward-key", "score"),
        *("--rollout-max-response-len", v["max_response_length"]),
        *("--rollout-max-context-len", runtime.context_length, "--rollout-temperature", runtime.temperature),
        *([] if staleness is None else ["--max-weight-staleness", staleness]),
        *(CORRECTED if v["data_path"] else []),
    ]


def _method_flags(inputs: FlagInputs) -> Words:
    v, kl = inputs.values, inputs.values["kl_loss_coef"]
    return [
        *inputs.own.launch_flags(),
        *("--eps-clip", v["ppo_clip_ratio"], "--eps-clip-c", DUAL_CLIP, "--opd-teacher", inputs.runtime.opd_teacher),
        *([] if OWN_PASS.intersection(inputs.extra) else ["--use-rollout-logprobs"]),
        *(["--use-kl-loss", "--kl-loss-coef", kl, "--kl-loss-type", "k3"] if kl else []),
        *(["--fuses", *fuses] if (fuses := str(v["fuses"]).split()) and fuses != [NO_FUSES] else []),
        *(["--before-push-path", GATE_PATH] if v["gate"] and inputs.own.rollout_function else []),
        *(["--canary-engine"] if inputs.runtime.gate_canary is not None else []),
    ]


def _judge_flags(inputs: FlagInputs) -> Words:
    v, runtime = inputs.values, inputs.runtime
    gpus = inputs.nodes * inputs.counts["prm"]
    return [
        *("--prm-enable", "--prm-num-gpus", gpus, "--prm-num-gpus-per-engine", v["prm_tp"]),
        *("--prm-model-path", v["prm_model_path"] or v["hf_ckpt"], "--prm-m", runtime.prm_m or DEFAULT_VOTES),
        *("--prm-temperature", runtime.prm_temperature, "--prm-max-new-tokens", runtime.prm_max_new_tokens),
    ]


def _lora_flags(values: Mapping[str, Value]) -> Words:
    return [
        *("--use-lora", "--lora-rank", values["lora_rank"], "--lora-alpha", values["lora_alpha"]),
        *("--lora-dropout", values["lora_dropout"]),
    ]


def _names_a_cluster(environment: Mapping[str, str], extra: Sequence[str]) -> bool:
    """Return whether a variable or a flag names an existing Ray cluster; the flag wins."""
    finder = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    finder.add_argument("--ray-address", default=environment.get(ADDRESS_VARIABLE))
    finder.add_argument("--head-address")
    found, _ = finder.parse_known_args(list(extra))
    return not found.head_address and named_cluster({ADDRESS_VARIABLE: found.ray_address or ""}) is not None


def _recompute_flags(extra: Sequence[str]) -> Sequence[str]:
    """Return the flags that recompute activations on the back end in ``extra``; none if ``extra`` sets them itself."""
    finder = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    finder.add_argument("--train-backend")
    finder.add_argument("--recompute-granularity")
    found, _ = finder.parse_known_args(list(extra))
    if found.train_backend != "megatron":
        return ("--gradient-checkpointing",)
    return () if found.recompute_granularity else MEGATRON_RECOMPUTE
