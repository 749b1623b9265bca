"""Configuration files (``--config FILE``): of the trainer's own flags, or of other guides, whose keys map to variables and flags.

Guarantees: every key maps to a variable or a flag, or is refused with advice. A file wins over the defaults of launcher,
profile and method. The environment wins over a file, and flags win over both.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from groundwork.command_line import CommandLine
from groundwork.exceptions import ConfigError
from groundwork.yaml_file import read_yaml_mapping
from openclaw.launch.methods import methods_of, recommended
from slime.arguments.parser import Parser
from slime.arguments.yaml_files import CONFIG_FLAG, file_flags, find_action

SECTIONS = ("model", "training", "rollout", "evaluation", "rollout_config")
_NO_CRITIC = "no method here has a critic; remove it"
_CLIENT = "the client decides that, not the trainer; remove it"
_ALWAYS = "is always so here"

# Key of a file -> variable (in capitals), flag, or the only accepted value and the reason. Methods add their own.
KEYS: dict[str, str | tuple[Any, str]] = {
    "model.name": "SERVED_MODEL_NAME",
    "model.checkpoint_path": "HF_CKPT",
    "model.tokenizer_path": "OPENCLAW_TOKENIZER",
    "training.batch_size": "BATCH_SIZE",
    "training.gradient_accumulation_steps": (1, "gradients accumulate over the whole batch; use MAX_TOKENS_PER_GPU"),
    "training.learning_rate": "LEARNING_RATE",
    "training.warmup_steps": "--lr-warmup-iters",
    "training.max_steps": "NUM_ROLLOUT",
    "training.ppo_clip_ratio": "PPO_CLIP_RATIO",
    "training.value_clip_ratio": (None, _NO_CRITIC),
    "training.gae_lambda": (None, _NO_CRITIC),
    "training.teacher_temperature": (1.0, "the teacher's logprobs are those of its own distribution; remove it"),
    "training.hint_extraction_model": "PRM_MODEL_PATH",
    "rollout.num_workers": (1, "one gateway serves all conversations; remove it"),
    "rollout.max_turns": (None, _CLIENT),
    "rollout.session_aware": (True, _ALWAYS),
    "rollout.parallel_envs": (None, _CLIENT),
    "evaluation.judge_model": "PRM_MODEL_PATH",
    "evaluation.majority_voting": (True, _ALWAYS),
    "evaluation.num_judges": "PRM_M",
    "evaluation.consensus_threshold": "MAJORITY_VOTE_THRESHOLD",
    "evaluation.eval_frequency": "--eval-interval",
    "rollout_config.collection_mode": ("session_aware", _ALWAYS),
    "rollout_config.max_concurrent_sessions": "OPENCLAW_MAX_SESSIONS",
    "rollout_config.session_timeout": "OPENCLAW_SESSION_IDLE_SECONDS",
    "rollout_config.trajectory_format": (
        None,
        "the ledger has one format; openclaw-rl inspect shows and exports it",
    ),
    "rollout_config.message_classification": (
        None,
        "the client chooses per request, with the header X-Turn-Type: main or side",
    ),
    "rollout_config.reward_computation.type": ("binary", "the method's script decides how replies are scored"),
    "rollout_config.reward_computation.aggregation": ("majority", _ALWAYS),
    "rollout_config.reward_computation.num_samples": "PRM_M",
}


def known_keys() -> dict[str, str | tuple[Any, str]]:
    """Return `KEYS` and the keys that the methods of this repository declare."""
    return {**KEYS, **{key: meaning for method in methods_of() for key, meaning in method.config.guide_keys.items()}}


@dataclass
class GuideFile:
    """The contents of a file: environment variables and trainer flags."""

    variables: dict[str, str] = field(default_factory=dict)
    flags: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class WithFile:
    """Environment and flags of a command line whose ``--config`` file was taken in.

    Attributes:
        environment: variables, with those of a guide's file below them.
        extra: flags, with those of a guide's file before them.
        path: a file of the trainer's own flags, which is not yet in ``extra``; None without one.
    """

    environment: Mapping[str, str]
    extra: Sequence[str]
    path: str | None = None


def take_in_file(method: str | None, environment: Mapping[str, str], extra: Sequence[str]) -> WithFile:
    """Take ``--config FILE`` out of the flags, and put the settings of a guide's file below them.

    Without a method the file has flags of the trainer only.

    Raises:
        ConfigError: the file cannot be read, or a line per key that cannot be honoured.
    """
    finder = CommandLine(prog="launch", add_help=False)
    finder.add_argument(CONFIG_FLAG, metavar="FILE")
    result, rest = finder.parse_known_args(list(extra))
    if result.config is None:
        return WithFile(environment, extra)
    guide = None if method is None else read_guide_file(result.config, method)
    if guide is None:
        return WithFile(environment, rest, result.config)
    given = {key: value for key, value in environment.items() if value}
    return WithFile(guide.variables | given, [*guide.flags, *rest])


def read_guide_file(path: str, method: str) -> GuideFile | None:
    """Return the file's settings for ``method``; None for a file of trainer flags.

    Raises:
        ConfigError: the file cannot be read, or a line per key that cannot be honoured.
    """
    values = read_yaml_mapping(CONFIG_FLAG, path)
    if not any(isinstance(values.get(name), dict) for name in SECTIONS):
        return None
    guide_file, lines = GuideFile(), []
    for key, value in _leaves(values):
        problem = _take(guide_file, key, value, method)
        if problem:
            lines.append(f"{path}: {problem}")
    if lines:
        raise ConfigError("\n  - ".join(["unsupported keys:", *lines]))
    return guide_file


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


def _take(found: GuideFile, key: str, value: Any, method: str) -> str | None:
    """Add a key's setting to ``found``, or return why it is unsupported."""
    if key == "training.method":
        named = [item for item in methods_of() if item.config.guide_name == str(value)]
        if named and named[0].config.name == method:
            return None
        folder = (named[0] if named else recommended()).folder.name
        return f"{key}: {value} is not this script's method; run bash {folder}/run_*.sh"
    known = known_keys()
    if key not in known:
        return f"unknown key {key}"
    meaning = known[key]
    if isinstance(meaning, tuple):
        only, why = meaning
        return None if value == only else f"{key}: {value}: {why}"
    if meaning.startswith("--"):
        found.flags += [meaning, str(value)]
        return None
    if found.variables.setdefault(meaning, str(value)) != str(value):
        return f"{key}: {value} contradicts another key for {meaning}; keep one of them"
    return None
