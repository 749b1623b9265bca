"""The evaluation sets of a run, from ``--eval-config`` (YAML) or ``--eval-prompt-data``, and the graders of a run.

Guarantee: every returned set is complete. A value comes from the set, else the file's ``defaults``, else the
``--eval-*`` flags, else the rollout's flags. An unknown key is an error that names the nearest known one.

A run without evaluation refuses the evaluation flags. Four exceptions are accepted, because the contract's launch
scripts always give them; their ``--help`` says so.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from groundwork.command_line import nearest
from groundwork.exceptions import ConfigError
from groundwork.yaml_file import read_yaml_mapping
from slime.args import Arguments
from slime.arguments.option import flag_of

GRADER_NAMES = ("dapo", "deepscaler", "f1", "gpqa", "ifbench", "math", "random", "remote_rm")
REMOTE = "remote_rm"
"""The grader that calls the server at ``--rm-url``."""
BOXED = "boxed_"
"""Prefix of a grader's name: grade only the content of the last ``\\boxed{}``."""
_REWARD_KEYS = {"dapo": "score"}


def grader_name(name: str) -> str:
    """Return ``name`` without the prefix ``boxed_``.

    Raises:
        ConfigError: there is no such grader; the message lists all.
    """
    bare = name.removeprefix(BOXED)
    if bare not in GRADER_NAMES:
        known = ", ".join(GRADER_NAMES)
        raise ConfigError(f"no grader {name!r}; there are {known}, each also as {BOXED}NAME")
    return bare


def check_rewards(args: Arguments) -> list[str]:
    """Return the problems, one line each."""
    problems = []
    if args.rm_type and args.custom_rm_path:
        problems.append(f"--rm-type {args.rm_type} has no effect with --custom-rm-path; remove one of them")
    problems += check_grader("--rm-type", args.rm_type, args.rm_url, args.reward_key)
    if args.rm_url and (args.rm_type or "").removeprefix(BOXED) != REMOTE and not args.eval_config:
        problems.append("--rm-url has no effect without --rm-type remote_rm; add it, or remove --rm-url")
    return problems


def check_grader(
    where: str, name: str | None, rm_url: str | None, reward_key: str | None, key_flag: str = "--reward-key"
) -> list[str]:
    """Return the problems of grader ``name``, given at ``where``; empty without a name."""
    if not name:
        return []
    try:
        grader = grader_name(name)
    except ConfigError as error:
        return [f"{where}: {error}"]
    problems = []
    if grader == REMOTE and not rm_url:
        problems.append(f"{where} {name} needs --rm-url http://HOST:PORT/PATH")
    key = _REWARD_KEYS.get(grader)
    if key and not reward_key:
        problems.append(f"{where} {name} returns several numbers; choose one with {key_flag} {key}")
    return problems


NO_TRAINING = (
    *("--debug-rollout-only", "--disable-rollout-global-dataset", "--rollout-batch-size", "1", "--num-rollout", "1"),
)
"""Flags that the parser requires of a training run, for a program that only evaluates."""
_ONLY_NAME = "eval"
DEFAULT_ROLLOUT = "slime.rollout.sglang_rollout.generate_rollout"


def add_report_flag(parser: argparse.ArgumentParser) -> None:
    """Declare ``--json``, the flag of the program that only evaluates."""
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the metrics of every set to this file")


@dataclass(frozen=True)
class EvalDataset:
    """One evaluation set.

    Attributes:
        name: name in metrics, ``eval/<name>``.
        path: prompt file, in the syntax of ``--prompt-data``.
        input_key: prompt column.
        label_key: label column; None without labels.
        tool_key: tools column.
        n_samples_per_eval_prompt: samples per prompt.
        temperature: sampling temperature.
        top_p: nucleus bound.
        top_k: top-k bound; -1: off.
        max_response_len: longest response in tokens.
        min_new_tokens: shortest response in tokens.
        max_prompt_len: longer prompts are left out.
        rm_type: grader of this set; takes precedence over the run's reward function.
        custom_rm_path: reward function of this set.
        custom_generate_function_path: generation of one sample of this set.
    """

    name: str
    path: str
    input_key: str
    label_key: str | None
    tool_key: str
    n_samples_per_eval_prompt: int
    temperature: float
    top_p: float
    top_k: int
    max_response_len: int
    min_new_tokens: int | None = None
    max_prompt_len: int | None = None
    rm_type: str | None = None
    custom_rm_path: str | None = None
    custom_generate_function_path: str | None = None


_NAMES = tuple(field.name for field in fields(EvalDataset))
_ALIASES = {"n_samples": "n_samples_per_eval_prompt"}
_INTEGERS = ("n_samples_per_eval_prompt", "top_k", "max_response_len", "min_new_tokens", "max_prompt_len")
_NUMBERS = ("temperature", "top_p")


def read_eval_datasets(args: Arguments) -> list[EvalDataset]:
    """Return the evaluation sets; empty when none is named.

    Raises:
        ConfigError: the file or a pair is malformed.
    """
    if args.eval_config and args.eval_prompt_data:
        raise ConfigError("--eval-config and --eval-prompt-data both name evaluation sets; remove one of them")
    entries = _file_entries(args.eval_config) if args.eval_config else _pair_entries(args.eval_prompt_data or [])
    shared = {
        name: getattr(args, f"eval_{name}")
        for name in (
            *("input_key", "label_key", "tool_key", *_NUMBERS),
            *("top_k", "max_response_len", "min_new_tokens", "max_prompt_len"),
        )
    }
    shared["n_samples_per_eval_prompt"] = args.n_samples_per_eval_prompt
    datasets = [EvalDataset(**(shared | entry)) for entry in entries]
    names = [dataset.name for dataset in datasets]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigError(f"evaluation sets have the same name: {', '.join(twice)}")
    return datasets


def check_eval_datasets(args: Arguments) -> list[str]:
    """Return the problems of individual evaluation sets, one line each."""
    problems = []
    for dataset in args.eval_datasets:
        where = f"evaluation set {dataset.name}:"
        if dataset.rm_type and dataset.custom_rm_path:
            problems.append(f"{where} rm_type has no effect with custom_rm_path; remove one of them")
        problems += check_grader(
            f"{where} rm_type", dataset.rm_type, args.rm_url, args.eval_reward_key, "--eval-reward-key"
        )
        if not dataset.max_response_len and args.eval_function_path == DEFAULT_ROLLOUT:
            problems.append(f"{where} no maximum response length; add --eval-max-response-len N")
        if dataset.n_samples_per_eval_prompt < 1:
            problems.append(f"{where} n_samples_per_eval_prompt must be 1 or more")
    return problems


def _pair_entries(words: list[str]) -> list[dict[str, Any]]:
    if len(words) == 1:
        words = [_ONLY_NAME, *words]
    if len(words) % 2:
        raise ConfigError("--eval-prompt-data needs pairs: NAME PATH NAME PATH ...")
    return [{"name": name, "path": path} for name, path in zip(words[::2], words[1::2], strict=True)]


def _file_entries(path: str) -> list[dict[str, Any]]:
    where = f"--eval-config {path}"
    content = read_yaml_mapping("--eval-config", path)
    tree = content.get("eval")
    if not isinstance(tree, Mapping) or not isinstance(tree.get("datasets"), list) or not tree["datasets"]:
        raise ConfigError(f"{where} needs `eval:` with `datasets:`, a list of `name` and `path`")
    surplus = set(tree) - {"defaults", "datasets"}
    if surplus:
        raise ConfigError(f"{where}: eval has defaults and datasets, not {', '.join(map(str, surplus))}")
    defaults = _entry(f"{where}: defaults", tree.get("defaults") or {})
    entries = []
    for number, dataset in enumerate(tree["datasets"]):
        entry = _entry(f"{where}: dataset {number}", dataset)
        if not entry.get("name") or not entry.get("path"):
            raise ConfigError(f"{where}: dataset {number} needs name and path")
        own = {"rm_type", "custom_rm_path"} & entry.keys()
        inherited = {
            name: value for name, value in defaults.items() if not own or name not in ("rm_type", "custom_rm_path")
        }
        entries.append(inherited | entry)
    return entries


def _entry(where: str, values: Any) -> dict[str, Any]:
    if not isinstance(values, Mapping):
        raise ConfigError(f"{where} needs `key: value` lines")
    entry: dict[str, Any] = {}
    for key, value in values.items():
        name = _ALIASES.get(key, key)
        if name not in _NAMES:
            hint = nearest(str(key), _NAMES) or f"; there are {', '.join(_NAMES)}"
            raise ConfigError(f"{where} has no key {key!r}{hint}")
        entry[name] = _checked(f"{where}: {key}", name, value)
    return entry


def _checked(where: str, name: str, value: Any) -> Any:
    kinds, words = (str,), "text"
    if name in _INTEGERS:
        kinds, words = (int,), "a whole number"
    elif name in _NUMBERS:
        kinds, words = (int, float), "a number"
    if isinstance(value, bool) or not isinstance(value, kinds):
        raise ConfigError(f"{where} must be {words}, not {value!r}")
    return value


_NEED_EVALUATION = (
    *("eval_input_key", "eval_label_key", "eval_tool_key", "eval_reward_key", "eval_top_k", "eval_min_new_tokens"),
    *("eval_max_context_len", "eval_max_prompt_len", "custom_eval_rollout_log_function_path"),
)
_EVALUATES = ("eval_interval", "eval_config", "eval_prompt_data", "eval_function_path")


def check_evaluation(args: Arguments) -> list[str]:
    """Return the problems, one line each; pass ``args`` before derivation."""
    if any(getattr(args, name) for name in _EVALUATES):
        return []
    given = [flag_of(name) for name in _NEED_EVALUATION if getattr(args, name) is not None]
    if not given:
        return []
    return [f"{', '.join(given)} has no effect without evaluation: add --eval-interval N --eval-prompt-data NAME PATH"]
