"""The plan of a run: every variable, every flag, the environment and the command; pure, so that ``--dry-run`` is the truth.

Guarantees: `make_plan` starts nothing and imports neither torch nor Ray. What `openclaw.launch.main` executes is exactly
``Plan.command`` with ``Plan.environment``.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from openclaw.config.method_config import MethodConfig
from openclaw.config.runtime import RuntimeConfig
from openclaw.config.runtime_variables import VARIABLES
from openclaw.config.variable import Value, Variable
from openclaw.exceptions import ConfigError
from openclaw.launch.guide_files import read_guide_file
from openclaw.launch.memory import plan_budget
from openclaw.launch.methods import REPOSITORY, find_method
from openclaw.launch.nodes import check_nodes, node_command
from openclaw.launch.profiles import Profile
from openclaw.launch.variables import Resolved, check_replaced, parse_gpus, resolve
from openclaw.training.live_losses import unfed_loss
from slime.args import Arguments
from slime.arguments.cluster import check_asynchronous
from slime.arguments.critic import critic_gpus
from slime.arguments.machines import ADDRESS_VARIABLE, OWN_CLUSTER, named_cluster
from slime.arguments.memory_budget import Budget
from slime.arguments.model_shape import shape_flags
from slime.arguments.parser import parser_for, read_arguments
from slime.exceptions import ConfigurationError
from slime.utils.forwarded_environment import FORWARD_VARIABLE

DEFAULT_VOTES = 1
# Flags that need the trainer's own pass of old log probabilities, which --use-rollout-logprobs skips.
OWN_PASS = frozenset({"--use-tis", "--get-mismatch-metrics", "--use-rollout-entropy", "--use-routing-replay"})
MEGATRON_RECOMPUTE = ("--recompute-granularity", "full", "--recompute-method", "uniform", "--recompute-num-layers", "1")
GPU_ROLES = ("actor", "rollout", "prm")
PATH_FIELDS = ("hf_ckpt", "ref_load", "save_ckpt", "prm_model_path", "run_dir")
# Flags that problems name, and the variable that sets them.
VARIABLE_OF_FLAG = {
    "num-gpus": "NUM_GPUS",
    "actor-num-gpus-per-node": "ACTOR_GPUS",
    "rollout-num-gpus": "ROLLOUT_GPUS",
    "rollout-num-gpus-per-engine": "TP",
    "prm-num-gpus": "PRM_GPUS",
    "prm-num-gpus-per-engine": "PRM_TP",
    "prm-max-new-tokens": "PRM_MAX_NEW_TOKENS",
    "sglang-context-length": "CONTEXT_LENGTH",
    "rollout-max-context-len": "CONTEXT_LENGTH",
    "rollout-max-response-len": "MAX_RESPONSE_LENGTH",
    "hf-checkpoint": "HF_CKPT",
    "ref-load": "REF_LOAD",
    "prm-model-path": "PRM_MODEL_PATH",
    "save": "SAVE_CKPT",
    "resume": "RESUME=1",
    "rotary-base": "MODEL_ARGS_ROTARY_BASE",
}


@dataclass(frozen=True)
class Plan:
    """Everything about a run that is known before it starts."""

    profile: Profile
    method: str
    own: MethodConfig
    variables: Mapping[str, Resolved]
    runtime: RuntimeConfig
    sections: Mapping[str, tuple[str, ...]]
    args: Arguments
    problems: tuple[str, ...]
    command: tuple[str, ...]
    environment: Mapping[str, str]
    gpu_ids: tuple[int, ...] | None
    runtime_sources: Mapping[str, str]
    budget: Budget

    @property
    def gpus_needed(self) -> int:
        """GPUs that the roles use together."""
        return sum(count for _, count in self.roles)

    @property
    def roles(self) -> tuple[tuple[str, int], ...]:
        """The roles in the order of their GPUs, each with how many it uses."""
        args = self.args
        return (
            ("actor", args.actor_num_nodes * args.actor_num_gpus_per_node),
            ("critic", critic_gpus(args)),
            ("rollout", args.rollout_num_gpus),
            ("judge", args.prm_num_gpus),
        )


def model_flags(model: str | None) -> tuple[str, ...]:
    """Return the flags of a model shape; nothing without a model.

    Raises:
        ConfigError: naming the shapes there are.
    """
    try:
        return shape_flags(model)
    except ConfigurationError as error:
        raise ConfigError(str(error)) from error


def model_folder(model: str) -> str:
    """Return where the checkpoint of a shape is looked for unless ``HF_CKPT`` says: ``models/Qwen3-4B`` for ``qwen3-4B``."""
    return "models/" + model.replace("qwen", "Qwen").replace("-vl-", "-VL-")


def with_variables(problem: str) -> str:
    """Return a problem about flags with the variables that set them."""
    names = [VARIABLE_OF_FLAG[flag] for flag in re.findall(r"--([a-z-]+)", problem) if flag in VARIABLE_OF_FLAG]
    if " actor + " in problem:
        names = ["ACTOR_GPUS", "ROLLOUT_GPUS", "PRM_GPUS", *names]
    return f"{problem} (variables: {', '.join(dict.fromkeys(names))})" if names else problem


def _paths(variables: Mapping[str, Resolved]) -> dict[str, Value]:
    """Return the values with absolute paths: user paths resolve against the working directory, defaults against the repository."""
    values = {field: entry.value for field, entry in variables.items()}
    for field in PATH_FIELDS:
        if values[field]:
            base = REPOSITORY if variables[field].source in ("default", "profile", "model") else Path.cwd()
            values[field] = str((base / Path(str(values[field])).expanduser()).resolve())
    return values


def _gpu_entries(variables: Mapping[str, Resolved]) -> list[Resolved]:
    return [variables[f"{role}_gpus"] for role in GPU_ROLES]


def _gpus(variables: Mapping[str, Resolved]) -> tuple[dict[str, int], tuple[int, ...] | None]:
    """Return the GPU count per role, and the GPU numbers in the order actor, rollout, judge when they were listed."""
    counts, lists = {}, []
    for role, entry in zip(GPU_ROLES, _gpu_entries(variables), strict=True):
        counts[role], numbers = parse_gpus(entry.variable.name, str(entry.value))
        lists.append(numbers)
    if all(numbers is None for numbers in lists):
        return counts, None
    if any(numbers is None for numbers in lists):
        given = ", ".join(f"{entry.variable.name}={entry.value}" for entry in _gpu_entries(variables))
        raise ConfigError(
            f"ACTOR_GPUS, ROLLOUT_GPUS and PRM_GPUS: write all three as counts or all three as lists (one GPU: 7,), and not {given}"
        )
    ids = tuple(number for numbers in lists for number in numbers or ())
    if len(set(ids)) != len(ids):
        raise ConfigError("ACTOR_GPUS, ROLLOUT_GPUS and PRM_GPUS share a GPU; give each role its own")
    if list(ids) != sorted(ids):
        raise ConfigError(
            "roles take GPUs in ascending order: ACTOR_GPUS the lowest numbers, then ROLLOUT_GPUS, then PRM_GPUS"
        )
    return counts, ids


def runtime_sources(
    declared: Sequence[Variable],
    environment: Mapping[str, str],
    by_profile: Mapping[str, str],
    by_method: Mapping[str, str],
) -> dict[str, str]:
    """Return where each variable's value comes from: the name it was set under, profile, method or default."""
    sources = {}
    for variable in declared:
        found = [name for name in variable.names if environment.get(name)]
        origin = "profile" if variable.name in by_profile else "method" if variable.name in by_method else "default"
        sources[variable.name] = found[0] if found else origin
    return sources


def _sections(
    own: MethodConfig,
    profile: Profile,
    v: Mapping[str, Value],
    runtime: RuntimeConfig,
    counts: Mapping[str, int],
    name: str,
    joins: bool,
    extra: Sequence[str],
) -> dict[str, tuple[str, ...]]:
    """Return the flags by the names under which users know the groups.

    ``joins``: whether a Ray cluster that exists; ``extra``: flags of the user, for which some of these make room.
    """
    run_dir = Path(str(v["run_dir"])) if v["run_dir"] else REPOSITORY / "runs" / name
    save = v["save_ckpt"] or run_dir / "checkpoints"
    hf = v["hf_ckpt"]
    kl, staleness = v["kl_loss_coef"], v["max_weight_staleness"]
    nodes = int(str(v["nnodes"]))
    several = ["--num-nodes", nodes, "--head-address", f"{v['master_addr']}:{v['master_port']}"] if nodes > 1 else []
    rows: dict[str, list[object]] = {
        "PLACEMENT_ARGS": [
            *("--device", profile.device, *([] if joins else ["--num-gpus", v["num_gpus"]])),
            *("--num-gpus-per-node", v["num_gpus"]),
            *(["--gpu-memory-gb", v["gpu_memory_gb"]] if v["gpu_memory_gb"] else []),
            *several,
            *("--actor-num-nodes", nodes, "--actor-num-gpus-per-node", counts["actor"]),
            *("--rollout-num-gpus", nodes * counts["rollout"], "--rollout-num-gpus-per-engine", v["tp"]),
            *("--train-backend", "fsdp"),
        ],
        "CKPT_ARGS": [
            *("--hf-checkpoint", hf, "--ref-load", v["ref_load"] or hf),
            *("--save", save, "--save-interval", v["save_interval"], "--run-dir", run_dir),
            *(["--resume"] if v["resume"] else []),
        ],
        "ROLLOUT_ARGS": [
            *(["--rollout-function-path", own.rollout_function] if own.rollout_function else []),
            *("--data-source-path", "openclaw.training.rollout.LedgerDataSource", "--disable-rollout-global-dataset"),
            *("--num-rollout", v["num_rollout"], "--rollout-batch-size", v["batch_size"]),
            *("--n-samples-per-prompt", 1, "--num-steps-per-rollout", 1, "--reward-key", "score"),
            *("--rollout-max-response-len", v["max_response_length"]),
            *("--rollout-max-context-len", runtime.context_length, "--rollout-temperature", runtime.temperature),
            *([] if staleness is None else ["--max-weight-staleness", staleness]),
        ],
        "METHOD_ARGS": [
            *own.launch_flags(),
            *("--eps-clip", v["ppo_clip_ratio"], "--opd-teacher", runtime.opd_teacher),
            *([] if OWN_PASS.intersection(extra) else ["--use-rollout-logprobs"]),
            *(["--use-kl-loss", "--kl-loss-coef", kl, "--kl-loss-type", "low_var_kl"] if kl else []),
        ],
        "OPTIMIZER_ARGS": [
            *("--optimizer", "adam", "--lr", v["learning_rate"], "--lr-decay-style", "constant"),
            *("--weight-decay", v["weight_decay"], "--adam-beta1", 0.9, "--adam-beta2", 0.98),
            *("--clip-grad", v["clip_grad_norm"], "--seed", v["seed"]),
        ],
        "PERF_ARGS": [
            *("--use-dynamic-batch-size", "--max-tokens-per-gpu", v["max_tokens_per_gpu"]),
            *("--log-probs-chunk-size", 1024),
            *(_recompute_flags(extra) if v["gradient_checkpointing"] else []),
        ],
        "SGLANG_ARGS": [
            *(
                "--sglang-mem-fraction-static",
                v["mem_fraction_static"],
                "--sglang-context-length",
                runtime.context_length,
            ),
        ],
        "PRM_ARGS": [
            *("--prm-enable", "--prm-num-gpus", nodes * counts["prm"], "--prm-num-gpus-per-engine", v["prm_tp"]),
            *("--prm-model-path", v["prm_model_path"] or hf, "--prm-m", runtime.prm_m or DEFAULT_VOTES),
            *("--prm-temperature", runtime.prm_temperature, "--prm-max-new-tokens", runtime.prm_max_new_tokens),
        ],
        "LORA_ARGS": [
            *("--use-lora", "--lora-rank", v["lora_rank"], "--lora-alpha", v["lora_alpha"]),
            *("--lora-dropout", v["lora_dropout"]),
        ]
        if v["use_lora"]
        else [],
        "WANDB_ARGS": ["--use-wandb", "--wandb-project", v["wandb_project"], "--wandb-group", name]
        if v["use_wandb"]
        else [],
        "PROFILE_ARGS": list(profile.flags),
    }
    return {title: tuple(map(str, words)) for title, words in rows.items() if words}


def _with_guide_file(
    method: str, environment: Mapping[str, str], extra: Sequence[str]
) -> tuple[Mapping[str, str], list[str]]:
    """Return environment and flags with what a guide's file behind ``--config`` says below them."""
    finder = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    finder.add_argument("--config")
    found, rest = finder.parse_known_args(list(extra))
    guide = read_guide_file(found.config, method) if found.config else None
    if guide is None:
        return environment, list(extra)
    given = {key: value for key, value in environment.items() if value}
    return guide.variables | given, [*guide.flags, *rest]


def _joins(environment: Mapping[str, str], extra: Sequence[str]) -> bool:
    """Whether a variable or a flag names a Ray cluster that exists; the flag wins."""
    finder = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    finder.add_argument("--ray-address", default=environment.get(ADDRESS_VARIABLE))
    finder.add_argument("--head-address")
    found, _ = finder.parse_known_args(list(extra))
    return not found.head_address and named_cluster({ADDRESS_VARIABLE: found.ray_address or ""}) is not None


def _recompute_flags(extra: Sequence[str]) -> Sequence[str]:
    """Flags that recompute activations on the back end that ``extra`` names; none where it says how itself."""
    finder = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    finder.add_argument("--train-backend")
    finder.add_argument("--recompute-granularity")
    found, _ = finder.parse_known_args(list(extra))
    if found.train_backend != "megatron":
        return ("--gradient-checkpointing",)
    return () if found.recompute_granularity else MEGATRON_RECOMPUTE


def make_plan(
    profile: Profile,
    method: str,
    model: str | None,
    extra: Sequence[str],
    environment: Mapping[str, str],
    name: str | None = None,
) -> Plan:
    """Resolve and validate a run.

    Args:
        profile: of the machine.
        method: a method of this repository, or the path of a method folder.
        model: file in ``slime/scripts/models`` whose shape is checked against the checkpoint, or None.
        extra: flags given after the script's own; the last one wins.
        environment: variables of the caller.
        name: of the run's folder under ``runs/``; default: profile and method.

    Raises:
        ConfigError: for a variable that cannot be used.
        SystemExit: for flags that do not parse.
    """
    environment, extra = _with_guide_file(method, environment, extra)
    found = find_method(method)
    check_replaced(environment, built_in=not found.config.has_environments)
    variables = resolve(environment, {**profile.variables, **found.config.profile_defaults.get(profile.name, {})})
    for field, entry in variables.items():
        if entry.source == "default" and entry.variable.name in found.config.defaults:
            variables[field] = replace(entry, value=found.config.defaults[entry.variable.name], source="method")
    if model and variables["hf_ckpt"].source == "default":
        variables["hf_ckpt"] = replace(variables["hf_ckpt"], value=model_folder(model), source="model")
    by_method, of_method_and_profile = found.runtime_defaults(profile.name, environment)
    by_profile = {**profile.runtime, **of_method_and_profile}
    by_method = {key: value for key, value in by_method.items() if key not in by_profile}
    runtime_environment = {**by_method, **by_profile, **{key: value for key, value in environment.items() if value}}
    runtime = RuntimeConfig.from_env(runtime_environment)
    own = found.config.from_env(runtime_environment)
    counts, ids = _gpus(variables)
    values = _paths(variables)
    if ids is not None:
        values["num_gpus"] = len(ids)
    sections = {"MODEL_ARGS": model_flags(model)} if model else {}
    joins = _joins(environment, extra) and int(str(values["nnodes"])) == 1
    name = name or f"{profile.name}-{Path(method).name}"
    sections |= _sections(own, profile, values, runtime, counts, name, joins, extra)
    if extra:
        sections["CUSTOM_ARGS"] = tuple(extra)
    words = [word for section in sections.values() for word in section]
    parser = parser_for(words)
    parser.prog = "launch"
    args, wrong = read_arguments(parser, words)
    problems = [with_variables(problem) for problem in wrong]
    if found.declared and (unfed := unfed_loss(args, found.without_topk)):
        problems.append(unfed)
    problems += check_asynchronous(args, "a method on live conversations")
    paths = [found.folder, REPOSITORY, REPOSITORY / "slime"]
    inherited = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path]
    child = {**runtime_environment, "PYTHONPATH": os.pathsep.join(dict.fromkeys([*map(str, paths), *inherited]))}
    may_travel = [name for each in found.config.variables() if not each.secret for name in each.names]
    if names := [name for name in may_travel if runtime_environment.get(name)]:
        child[FORWARD_VARIABLE] = " ".join([*environment.get(FORWARD_VARIABLE, "").split(), *names])
    if profile.device == "cpu":
        child.setdefault("OMP_NUM_THREADS", "1")
    check_nodes(values, ids, child)
    if ids is not None and critic_gpus(args):
        raise ConfigError(
            "lists of GPUs leave none for a critic; write ACTOR_GPUS, ROLLOUT_GPUS and PRM_GPUS as counts"
        )
    if ids is not None and args.ray_address:
        raise ConfigError(
            f"lists of GPUs are for a cluster that the run starts, and this one joins {args.ray_address}, which deals out its own; "
            f"write ACTOR_GPUS, ROLLOUT_GPUS and PRM_GPUS as counts, or give --ray-address {OWN_CLUSTER}"
        )
    if ids is not None:
        child["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, ids))
    elif args.share_gpu:
        actors = args.actor_num_nodes * args.actor_num_gpus_per_node
        ids = (0,) * (actors + critic_gpus(args) + args.rollout_num_gpus + args.prm_num_gpus)
    command = (sys.executable, str(REPOSITORY / "slime" / "train_async.py"), *words)
    if values["node_rank"]:
        command = node_command(args, values)
    sources = runtime_sources((*VARIABLES, *found.config.variables()), environment, by_profile, by_method)
    budget = plan_budget(profile, args, ids, problems)
    problems += budget.problems
    return Plan(
        *(profile, method, own, variables, runtime, sections, args, tuple(problems)),
        *(command, child, ids, sources, budget),
    )
