"""Settings of other guides: variables, keys of configuration files (``--config FILE``) and texts of flags.

Guarantees: each of them works, changes nothing and says so, or is refused with what to type instead; none is ignored in
silence. A file wins over the defaults of launcher, profile and method. The environment wins over a file, and flags win over
both.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from groundwork.command_line import CommandLine, as_list, nearest
from groundwork.exceptions import ConfigError
from groundwork.variables import TRUE_WORDS, Variable
from groundwork.yaml_file import read_yaml_mapping
from openclaw.config.runtime_variables import RuntimeVariables
from openclaw.launch.methods import FoundMethod, methods_of, recommended
from openclaw.launch.variables import LaunchVariables
from slime.arguments.model_shape import shape_named
from slime.arguments.parser import Parser
from slime.arguments.yaml_files import CONFIG_FLAG, file_flags, find_action, only_config

FLAG_TEXTS = (
    *("CKPT_ARGS", "ROLLOUT_ARGS", "EVAL_ARGS", "REWARD_ARGS", "GRPO_ARGS", "OPTIMIZER_ARGS", "PERF_ARGS", "LORA_ARGS"),
    *("SGLANG_ARGS", "PRM_ARGS", "CUSTOM_ARGS", "WANDB_ARGS", "MISC_ARGS"),
)
"""Variables that hold flags, in the order in which they are read. `scripts/launch.sh` makes a text of an array."""


class NoEffect(NamedTuple):
    """A setting that a run accepts though it changes nothing, and why."""

    why: str


class Only(NamedTuple):
    """A setting that accepts what is always so here, and why there is nothing else."""

    values: tuple[Any, ...]
    why: str


_CHECKPOINT = NoEffect("name the model with HF_CKPT=FOLDER, and the folder of checkpoints with SAVE_CKPT=FOLDER")
OF_SERVICE = {
    "tinker": ("TINKER_API_KEY", "TINKER_BASE_URL", "TINKER_PROJECT_ID"),
    "fireworks": ("FIREWORKS_API_KEY", "FIREWORKS_BASE_URL"),
}
"""What a run that trains at a service reads, by the service."""
_SERVICE = {
    name: NoEffect(f"this run does not train there; to train there type: python openclaw-{name}/run.py")
    for name in OF_SERVICE
}
_STEP = "a step takes the whole batch in as many micro-batches as it needs, and MAX_TOKENS_PER_GPU bounds their memory"
_CRITIC = "no method here has a critic"
_LEDGER = "the ledger (OPENCLAW_LEDGER) records every turn and verdict, and JSON lines lie beside it"
_ENVIRONMENTS = NoEffect("agents in environments read it, and this method learns from conversations")
_CLIENT = "the client of a conversation decides that"

NAMES: dict[str, NoEffect | Only] = {
    **dict.fromkeys(("CHECKPOINT_PATH", "CHECKPOINT_DIR", "CKPT_DIR"), _CHECKPOINT),
    "JUDGE_MODEL": NoEffect(
        "name the judge with PRM_MODEL_PATH=FOLDER, or OPENCLAW_JUDGE_MODEL with OPENCLAW_JUDGE_BASE_URL"
    ),
    **dict.fromkeys(("MODEL_NAME", "MODEL_NAME_OR_PATH"), NoEffect("name the model with HF_CKPT=FOLDER")),
    **{variable: _SERVICE[name] for name, variables in OF_SERVICE.items() for variable in variables},
    "TINKER_ENDPOINT": NoEffect("write TINKER_BASE_URL=URL"),
    **dict.fromkeys(("TRAIN_BATCH_SIZE", "GLOBAL_BATCH_SIZE", "ROLLOUT_BATCH_SIZE"), NoEffect("write BATCH_SIZE=N")),
    **dict.fromkeys(("NGPUS", "N_GPUS", "GPUS", "NUM_GPUS_PER_NODE"), NoEffect("write NUM_GPUS=N")),
    **dict.fromkeys(("TP_SIZE", "TENSOR_PARALLEL_SIZE"), NoEffect("write TP=N")),
    **dict.fromkeys(("MAX_MODEL_LEN", "MAX_SEQ_LEN", "MAX_LENGTH"), NoEffect("write CONTEXT_LENGTH=N")),
    **dict.fromkeys(("LR", "LEARN_RATE"), NoEffect("write LEARNING_RATE=NUMBER")),
    **dict.fromkeys(("EPOCHS", "NUM_EPOCHS"), NoEffect("add --epochs N to DATA_PATH")),
    **dict.fromkeys(("OUTPUT_DIR", "OUTPUT_PATH"), NoEffect("write RUN_DIR=FOLDER")),
    "TEMPERATURE": NoEffect("write OPENCLAW_TEMPERATURE=NUMBER"),
    "GRAD_ACCUM_STEPS": NoEffect(f"{_STEP}; for larger steps raise BATCH_SIZE"),
    "VALUE_CLIP": NoEffect(f"{_CRITIC}; one of --advantage-estimator ppo always clips its values (--value-clip)"),
    **dict.fromkeys(("OPENCLAW_RECORD_FILE", "OPENCLAW_PRM_RECORD_FILE"), NoEffect(_LEDGER)),
    "OPENCLAW_RECORD_ENABLED": Only(TRUE_WORDS, f"{_LEDGER}; unset it"),
}
"""Variables of other programs and guides that nothing reads here. They may be exported for another program."""

OF_ENVIRONMENTS: dict[str, NoEffect] = dict.fromkeys(
    ("ENV_TYPE", "TASK_TYPE", "MAX_STEPS", "PARALLEL_ENVS", "SCREENSHOT_BACKEND", "TOOLS_CONFIG", "SWE_BENCH_PATH"),
    _ENVIRONMENTS,
)
"""Variables of tasks, where a method learns from conversations."""
OF_CONVERSATIONS: dict[str, NoEffect] = {"DATA_PATH": NoEffect("the rows of a task are those of PROMPT_DATA")}
"""Variables of methods on conversations, where a run plays tasks."""
_READ_BY_OTHERS = {"HOST", "PORT", "SGLANG_API_KEY", "OPENCLAW_API_KEY", "OPENCLAW_EVAL_MODE"}
"""Of the gateway's variables those that shells, clients or evaluations read as well."""
OF_GROUP_JUDGE: set[str] = {
    name
    for field in ("judge_class", "judge_base_url", "judge_model", "judge_api_key", "judge_quorum", "judge_grammar")
    for name in RuntimeVariables.declared(field).names
}
"""Of the gateway's variables those that name and bound the judge of groups, where ``GROUP_JUDGE`` asks for one."""
OF_GATEWAY: dict[str, NoEffect] = dict.fromkeys(
    [name for each in RuntimeVariables.variables() for name in each.names if name not in _READ_BY_OTHERS],
    NoEffect("the gateway and the judge of conversations read it, and this run plays tasks"),
)
"""Variables of gateway and judge, where a run plays tasks and reads only some."""

SECTIONS = ("model", "training", "rollout", "evaluation", "rollout_config")
METHOD_KEY, MODEL_KEY = "training.method", "model.name"
JUDGE = LaunchVariables.declared("prm_model_path").name
JUDGE_URL = RuntimeVariables.declared("judge_base_url").name
JUDGE_MODEL = RuntimeVariables.declared("judge_model").name
JUDGE_KEY = RuntimeVariables.declared("judge_api_key").name
_ALWAYS = "is always so here"
_SCORED = "the script's method decides how replies are scored"

KEYS: dict[str, str | NoEffect | Only] = {
    MODEL_KEY: "SERVED_MODEL_NAME",
    "model.checkpoint_path": "HF_CKPT",
    "model.tokenizer_path": "OPENCLAW_TOKENIZER",
    "training.batch_size": "BATCH_SIZE",
    "training.gradient_accumulation_steps": NoEffect(f"{_STEP}; for larger steps raise batch_size"),
    "training.learning_rate": "LEARNING_RATE",
    "training.warmup_steps": "--lr-warmup-iters",
    "training.max_steps": "NUM_ROLLOUT",
    "training.ppo_clip_ratio": "PPO_CLIP_RATIO",
    "training.value_clip_ratio": NoEffect(_CRITIC),
    "training.gae_lambda": NoEffect(_CRITIC),
    "training.teacher_temperature": Only((1.0,), "the teacher's logprobs are those of its own distribution; remove it"),
    "training.hint_extraction_model": JUDGE,
    "rollout.num_workers": NoEffect("one gateway serves all conversations"),
    "rollout.max_turns": NoEffect(_CLIENT),
    "rollout.session_aware": Only((True,), _ALWAYS),
    "rollout.parallel_envs": NoEffect(_CLIENT),
    "evaluation.judge_model": JUDGE,
    "evaluation.majority_voting": Only((True,), f"{_ALWAYS}; for one vote write num_judges: 1"),
    "evaluation.num_judges": "PRM_M",
    "evaluation.consensus_threshold": "MAJORITY_VOTE_THRESHOLD",
    "evaluation.eval_frequency": "--eval-interval",
    "rollout_config.collection_mode": Only(("async", "session_aware"), f"{_ALWAYS}: async, by session"),
    "rollout_config.max_concurrent_sessions": "OPENCLAW_MAX_SESSIONS",
    "rollout_config.session_timeout": "OPENCLAW_SESSION_IDLE_SECONDS",
    "rollout_config.trajectory_format": Only(
        ("multi_turn",), "the ledger has one format; openclaw-rl inspect shows and exports it"
    ),
    "rollout_config.message_classification": NoEffect(
        "the client chooses per request, with the header X-Turn-Type: main or side"
    ),
    "rollout_config.reward_computation.type": Only(("next_state_feedback", "binary"), _SCORED),
    "rollout_config.reward_computation.aggregation": Only(("majority",), _ALWAYS),
    "rollout_config.reward_computation.num_samples": "PRM_M",
}
"""Key of a file: its variable (in capitals) or its flag. Methods add their own."""


def words_of_texts(environment: Mapping[str, str]) -> list[str]:
    """Return the flags that the variables of `FLAG_TEXTS` hold.

    Raises:
        ConfigError: a text is not a list of flags.
    """
    return [word for name in FLAG_TEXTS for word in words_in(name, environment)]


def words_in(name: str, environment: Mapping[str, str]) -> list[str]:
    """Return the flags that one variable holds, split as a shell does; a backslash may end a line.

    Raises:
        ConfigError: the text is not a list of flags.
    """
    text = environment.get(name, "")
    try:
        words = shlex.split(text.replace("\\\n", ""))
    except ValueError as error:
        raise ConfigError(f"{name}={text!r} is not a list of flags: {error}") from error
    if words and not words[0].startswith("-"):
        raise ConfigError(f"{name}={text!r} begins with no flag; write --FLAG VALUE ..., or unset it")
    return words


def other_name_problems(environment: Mapping[str, str]) -> list[str]:
    """Return a line per variable of other guides that asks for something else than what is always so."""
    return [
        f"{name}={value}: {meaning.why}"
        for name, meaning in NAMES.items()
        if isinstance(meaning, Only) and (value := environment.get(name)) and value.lower() not in meaning.values
    ]


@dataclass
class GuideFile:
    """The contents of files: variables, trainer flags, the shape of the model, and the keys without an effect."""

    variables: dict[str, str] = field(default_factory=dict)
    flags: list[str] = field(default_factory=list)
    shape: str | None = None
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class WithFile:
    """Environment and flags of a command line whose ``--config`` file was taken in.

    Attributes:
        environment: variables, with those of a guide's file below them.
        extra: flags, with those of a guide's file before them.
        path: a file of the trainer's own flags, which is not yet in ``extra``; None without one.
        shape: shape of the model that a guide's file names; None without one.
        notes: a line per key without an effect.
    """

    environment: Mapping[str, str]
    extra: Sequence[str]
    path: str | None = None
    shape: str | None = None
    notes: Sequence[str] = ()


def take_in_file(
    found: FoundMethod | None, declared: Sequence[Variable], environment: Mapping[str, str], extra: Sequence[str]
) -> WithFile:
    """Take every ``--config FILE`` out of the flags, and put the settings of guides' files below them.

    Args:
        found: the method; None for a task, whose file has flags of the trainer only.
        declared: every variable of the run; one that is set by any of its names wins over the file.
        environment: the caller's variables.
        extra: the user's flags.

    Raises:
        ConfigError: a file cannot be read, two hold flags of the trainer, or a line per key that cannot be honoured.
    """
    finder = CommandLine(prog="launch", add_help=False)
    finder.add_argument(CONFIG_FLAG, metavar="FILE", action="append", default=[])
    result, rest = finder.parse_known_args(list(extra))
    guide = GuideFile()
    of_flags = [path for path in result.config if not take_in_guide(guide, path, found, environment)]
    given = {name for variable in declared if variable.is_set(environment) for name in variable.names}
    below = {name: value for name, value in guide.variables.items() if name not in given}
    shape = (
        None if LaunchVariables.declared("hf_ckpt").is_set(environment) else guide.shape
    )  # the user's own model wins
    return WithFile({**environment, **below}, [*guide.flags, *rest], only_config(of_flags), shape, guide.notes)


def take_in_guide(guide: GuideFile, path: str, found: FoundMethod | None, environment: Mapping[str, str]) -> bool:
    """Add the settings of a guide's file for a method; return False for a file of trainer flags.

    Raises:
        ConfigError: the file cannot be read, or a line per key that cannot be honoured.
    """
    values = read_yaml_mapping(CONFIG_FLAG, path)
    if not any(isinstance(values.get(name), dict) for name in SECTIONS):
        return False
    if found is None:
        raise ConfigError(
            f"{CONFIG_FLAG} {path} is a file for methods on conversations; a task has variables instead, such as MAX_STEPS "
            "and PARALLEL_ENVS, and reads files of the trainer's flags"
        )
    problems = dict[str, list[str]]()
    for key, value in _leaves(values):
        if problem := _take(guide, key, value, found, environment):
            problems.setdefault(problem, []).append(key)
    if problems:
        lines = [f"{path}: {', '.join(keys)}: {problem}" for problem, keys in problems.items()]
        raise ConfigError(as_list("unsupported keys", lines))
    return True


def flags_of_file(parser: Parser, path: str, typed: Collection[str]) -> dict[str, list[str]]:
    """Return the words of each flag that a file of the trainer's flags sets, by the flag's attribute.

    Args:
        parser: knows every flag.
        path: of the file.
        typed: flags of variables that the user set; the file's value of such a flag is left out.

    Raises:
        ConfigError: the file cannot be used.
    """
    kept = {action.dest for flag in typed if (action := find_action(parser, flag)) is not None}
    return {dest: words for dest, words in file_flags(parser, path).items() if dest not in kept}


def without_flags(parser: Parser, words: Sequence[str], dests: Collection[str]) -> Iterator[str]:
    """Yield the words of a command line, but those of flags whose attributes are among ``dests``."""
    dropped = False
    for word in words:
        if word.startswith("--"):
            action = find_action(parser, word.partition("=")[0])
            dropped = action is not None and action.dest in dests
        if not dropped:
            yield word


def _leaves(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        key = f"{prefix}{name}"
        if isinstance(value, dict) and key not in KEYS:
            yield from _leaves(value, f"{key}.")
        elif value is not None:
            yield key, value


def meaning_of(key: str, found: FoundMethod) -> str | NoEffect | Only | None:
    """Return what a key means to a method; None for an unknown key."""
    if meaning := found.config.guide_keys.get(key) or KEYS.get(key):
        return meaning
    others = [method.config for method in methods_of() if key in method.config.guide_keys]
    return NoEffect(f"it is for --method {others[0].name}") if others else None


def _take(file: GuideFile, key: str, value: Any, found: FoundMethod, environment: Mapping[str, str]) -> str | None:
    """Add a key's setting to ``file``, or return why it cannot be honoured."""
    if key == METHOD_KEY:
        return _other_method(str(value), found)
    meaning = meaning_of(key, found)
    if meaning is None:
        return f"unknown key{nearest(key, KEYS)}"
    if isinstance(meaning, NoEffect):
        file.notes.append(f"{key} has no effect: {meaning.why}")
        return None
    if isinstance(meaning, Only):
        return None if value in meaning.values else f"{value}: {meaning.why}"
    if meaning.startswith("--"):
        file.flags += [meaning, str(value)]
        return None
    if meaning == JUDGE and not Path(str(value)).expanduser().is_dir():
        if environment.get(JUDGE_URL):
            meaning = JUDGE_MODEL
        elif "/" not in str(value):
            return (
                f"there is no folder {value}; for a judge behind an API set {JUDGE_URL}=https://HOST/v1 and {JUDGE_KEY}"
            )
    if key == MODEL_KEY:
        file.shape = shape_named(str(value))
    if file.variables.setdefault(meaning, str(value)) != str(value):
        return f"{value} contradicts another key for {meaning}; keep one of them"
    return None


def _other_method(name: str, found: FoundMethod) -> str | None:
    """Return what to run if a file is for another method than the script."""
    named = [item for item in methods_of() if name in (item.config.guide_name, item.config.name)]
    if named and named[0].folder == found.folder:
        return None
    folder = (named[0] if named else recommended()).folder.name
    return f"{name} is not this script's method; run bash {folder}/run_*.sh"
