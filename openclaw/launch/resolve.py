"""Resolve variables, profile, method or task, and flags to a plan: arguments, environment and command.

Guarantees: `make_plan` starts nothing and imports neither torch nor Ray. The first of these with a value wins: a flag, the
environment, a file of ``--config``, the profile, the method or task, the launcher's default.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from groundwork.command_line import nearest_path
from groundwork.exceptions import ConfigError
from groundwork.variables import Value, Variable
from openclaw.config.method_config import MethodConfig
from openclaw.config.runtime import RuntimeConfig
from openclaw.config.runtime_variables import VARIABLES
from openclaw.gate.tasks import read_tasks
from openclaw.launch.adapters import PER_OWNER, adapter_problems
from openclaw.launch.flags import CUSTOM, NOT_TYPED, VARIABLE_OF_FLAG, FlagInputs, flag_sections, flags_of_typed
from openclaw.launch.guides import WithFile, flags_of_file, take_in_file, without_flags
from openclaw.launch.logs import with_logs
from openclaw.launch.machine import (
    WANDB_KEYS,
    check_listed,
    check_nodes,
    check_rank,
    gpus_of_roles,
    node_command,
    plan_budget,
    split_for,
)
from openclaw.launch.methods import HOME, REPOSITORY, FoundMethod, find_method, import_paths
from openclaw.launch.names import check_names, declared_variables, flags_of_variables, take_in_flags
from openclaw.launch.plan import Plan, Recipe, roles_of
from openclaw.launch.profiles import Profile
from openclaw.launch.task import JUDGED, KIND_VARIABLE, FoundTask, TaskConfig, find_task
from openclaw.launch.variables import LaunchVariables, Resolved, resolve
from openclaw.models.places import TINY_MODEL, USUAL, download_command
from openclaw.training.live_arguments import unfed_loss
from slime.args import Arguments
from slime.arguments.algorithm import LORA_RATE
from slime.arguments.cluster import check_asynchronous
from slime.arguments.dry_run import MISSING_PATH, with_download
from slime.arguments.evaluation import NO_TRAINING, add_report_flag
from slime.arguments.parser import ALIASES, Parser, parser_for, read_arguments
from slime.arguments.trainer import LORA
from slime.arguments.yaml_files import CONFIG_FLAG, find_action
from slime.utils.forwarded_environment import FORWARD_VARIABLE

PATH_FIELDS = ("hf_ckpt", "ref_load", "save_ckpt", "resume_ckpt", "prm_model_path", "run_dir", "data_path")
JUDGE_ELSEWHERE, JUDGE_PROMPTS = "OPENCLAW_JUDGE_BASE_URL", "OPENCLAW_JUDGE_PROMPTS"
TOKENIZER_CONFIG = "tokenizer_config.json"
TOKENIZER_FILES = ("tokenizer.json", "vocab.json", "merges.txt", TOKENIZER_CONFIG, "chat_template.jinja")
LORA_FLAGS = frozenset(option.flag for option in LORA.options)


def make_plan(
    recipe: Recipe,
    extra: Sequence[str],
    environment: Mapping[str, str],
    name: str | None = None,
    own_flags: Sequence[str] = (),
) -> Plan:
    """Resolve and validate a run.

    Args:
        recipe: what runs, on which model and machine.
        extra: the user's flags, after the script's own; the last one wins.
        environment: the caller's variables.
        name: name of the run's folder under ``runs/``; default: profile and method or task.
        own_flags: flags of the calling program, to suggest one for a mistyped flag.

    Raises:
        ConfigError: a variable is invalid.
        SystemExit: the flags do not parse.
    """
    found = find_task(recipe.what) if recipe.task else find_method(recipe.what)
    declared = declared_variables(found)
    file = take_in_file(None if isinstance(found, FoundTask) else found, declared, environment, extra)
    recipe = replace(recipe, model=file.shape or recipe.model)
    parser = _parser_of(found, file)
    flags = flags_of_variables(declared, parser)
    environment, extra = take_in_flags(flags, file.environment, file.extra)
    profile = recipe.machine
    if any(word.partition("=")[0] in LORA_FLAGS for word in extra):
        profile = replace(profile, variables={**profile.variables, "USE_LORA": True})
    recipe = replace(recipe, machine=profile)
    check_names(environment, found)
    notes = list(file.notes)
    if isinstance(found, FoundTask):
        variables, live = _task_variables(found, recipe, environment), _task_settings(found, recipe, environment)
        judged = profile.name.endswith(JUDGED)
        own_judge = judged and not getattr(live.own, "prm_url", None)
        name = getattr(live.own, "run_name", None) or name
    else:
        variables = _launch_variables(found, profile, recipe.model, environment)
        profile, variables = with_logs(profile, variables)
        live, judged = _live_settings(found, profile, environment), False
        own_judge = found.config.asks_judge and not live.of_runtime.judged_elsewhere
        extra, dropped = _without_groups(found, parser, extra)
        notes += dropped
    extra = [*map(_own_spelling, extra)]
    counts, ids, decided = gpus_of_roles(variables, judge=own_judge)
    values = _with_paths(variables) | ({} if ids is None else {"num_gpus": len(ids)})
    if recipe.evaluates_only and variables["rollout_gpus"].source in NOT_TYPED:
        counts["rollout"] = int(str(values["num_gpus"]))
    inputs = FlagInputs(
        name=name or f"{profile.name}-{Path(recipe.what).name}",
        own=live.own,
        profile=profile,
        values=values,
        runtime=live.runtime,
        counts=counts,
        model=recipe.model,
        extra=extra,
        environment=environment,
        judge=judged,
        evaluates_only=recipe.evaluates_only,
    )
    recipe, known = replace(recipe, machine=profile), [*own_flags, *flags]
    return _read_plan(recipe, found, variables, live, inputs, ids, known, file.path, [*notes, *decided])


def _own_spelling(word: str) -> str:
    """Return a word with the trainer's own spelling of a flag."""
    flag, given, value = word.partition("=")
    return ALIASES.get(flag, flag) + given + value


def _parser_of(found: FoundMethod | FoundTask, file: WithFile) -> Parser:
    """Return the trainer's parser with the flags of the plugins that a command line names."""
    words = ["--custom-generate-function-path", found.config.generate] if isinstance(found, FoundTask) else []
    with import_paths([str(found.folder)]):
        return parser_for([*words, *file.extra, *([CONFIG_FLAG, file.path] if file.path else [])])


def _without_groups(found: FoundMethod, parser: Parser, extra: Sequence[str]) -> tuple[Sequence[str], list[str]]:
    """Return the flags without the size of a group, which is 1 in live training, and a note if it is another one there."""
    size, function = (find_action(parser, name) for name in ("n_samples_per_prompt", "rollout_function_path"))
    assert size is not None
    assert function is not None
    finder = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    finder.add_argument(*size.option_strings, dest="size", default="1")
    finder.add_argument(*function.option_strings, dest="function", default=found.config.rollout_function)
    given = finder.parse_known_args(list(extra))[0]
    if given.size == "1" or given.function is None or given.function != found.config.rollout_function:
        return extra, []
    typed = next(name for name in size.option_strings if any(word.partition("=")[0] == name for word in extra))
    note = f"{typed} {given.size} has no effect: a person gets one reply to a message"
    return list(without_flags(parser, extra, {size.dest})), [note]


def _read_plan(
    recipe: Recipe,
    found: FoundMethod | FoundTask,
    variables: Mapping[str, Resolved],
    live: LiveSettings,
    inputs: FlagInputs,
    ids: tuple[int, ...] | None,
    own_flags: Sequence[str],
    file: str | None,
    notes: Sequence[str],
) -> Plan:
    """Return the plan of resolved values; read its flags with the trainer's parser and check them together."""
    sections = _with_file(inputs, variables, live, file) if file is not None else flag_sections(inputs)
    args, problems = _read_flags(found, sections, own_flags, usual_model(inputs.profile, inputs.model), recipe)
    child = _child_environment(found, inputs.profile, inputs.environment, live.environment)
    on_task, logs = isinstance(found, FoundTask), bool(inputs.values["data_path"])
    problems += adapter_problems(inputs.values["adapters"], args, task=on_task, logs=logs)
    if live.runtime is not None:
        problems += [*settings_problems(live.runtime), *tokenizer_problems(live.runtime, args.hf_checkpoint)]
        if live.runtime.gate_tasks and args.before_push_path:
            problems += task_problems(live.runtime.gate_tasks, Path(args.hf_checkpoint))
        notes = [*notes, *check_nodes(variables, ids, child)]
    else:
        notes = [*notes, *check_rank(args, variables)]
    if ids is not None:
        check_listed(args)
        child["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, ids))
    elif args.share_gpu:
        ids = (0,) * sum(count for _, count in roles_of(args))
    if args.prm_num_gpus and not inputs.profile.judges:
        problems.append(
            f"--profile {inputs.profile.name} has no room for a judge: set {JUDGE_ELSEWHERE}=https://HOST/v1, a model's API that judges"
        )
    budget = plan_budget(inputs.profile, args, ids, problems)
    args = args.changed(start_together=budget.together)
    return Plan(
        recipe=recipe,
        folder=found.folder,
        own=live.own,
        variables=variables,
        runtime=live.runtime,
        runtime_sources=live.sources,
        sections=sections,
        args=args,
        problems=(*problems, *budget.problems),
        command=_command(args, inputs.values, sections, evaluates_only=recipe.evaluates_only),
        environment=child,
        gpu_ids=ids,
        budget=budget,
        notes=(*notes, *_notes_on_flags(args, variables, child)),
    )


def _notes_on_flags(
    args: Arguments, variables: Mapping[str, Resolved], environment: Mapping[str, str]
) -> Iterator[str]:
    """Yield a line per setting that has no effect without another one."""
    keys = [name for name in WANDB_KEYS if environment.get(name)]
    if keys and not args.use_wandb and variables["use_wandb"].source in NOT_TYPED:
        yield f"{keys[0]} alone sends nothing to Weights & Biases; add USE_WANDB=1"
    own_prompts = args.eval_function_path != args.rollout_function_path
    if args.eval_interval and not args.eval_datasets and not own_prompts:
        yield f"--eval-interval {args.eval_interval} has no effect without prompts; add --eval-prompt-data NAME FILE"


def _launch_variables(
    found: FoundMethod, profile: Profile, model: str | None, environment: Mapping[str, str]
) -> dict[str, Resolved]:
    """Return the launcher's variables for a method."""
    of_profile = {**profile.variables, **profile.of_method(found.config.profile_defaults)}
    return _for_model(resolve(environment, of_profile, found.config.defaults), model)


def _task_variables(found: FoundTask, recipe: Recipe, environment: Mapping[str, str]) -> dict[str, Resolved]:
    """Return the launcher's variables for a task."""
    of_profile = found.config.profile_variables(recipe.machine.name, environment)
    of_profile = {**recipe.machine.variables, **of_profile}
    variables = resolve(environment, of_profile, found.config.defaults, found.config.aliases, "task")
    return _for_model(variables, recipe.model)


def _for_model(variables: dict[str, Resolved], model: str | None) -> dict[str, Resolved]:
    """Let the model's folder replace the default of HF_CKPT, and defaults follow LoRA and adapters of people.

    An adapter has a rate of its own, and each update of a person's has a checkpoint.
    """
    if model and variables["hf_ckpt"].source == "default":
        variables["hf_ckpt"] = replace(variables["hf_ckpt"], value=_model_folder(model), source="model")
    rate = variables["learning_rate"]
    if variables["use_lora"].value and rate.source in NOT_TYPED:
        variables["learning_rate"] = replace(rate, value=lora_rate(float(rate.value or 0.0)), source="lora")
    interval = variables["save_interval"]
    if variables["adapters"].value == PER_OWNER and interval.source in NOT_TYPED:
        variables["save_interval"] = replace(interval, value=1, source="adapters")
    return variables


def lora_rate(full: float) -> float:
    """Return the learning rate of an adapter where full weights have the rate ``full``: ten times it, at least `LORA_RATE`."""
    return max(10.0 * full, LORA_RATE)


def _model_folder(model: str) -> str:
    """Return the default checkpoint folder of a shape: ``models/Qwen3-4B`` for ``qwen3-4B``."""
    return "models/" + model.replace("qwen", "Qwen").replace("-vl-", "-VL-")


@dataclass(frozen=True)
class LiveSettings:
    """The environment of the run's processes, the validated values in it, and each variable's source.

    ``own`` is the method's or the task's configuration; a task has no ``runtime``.
    """

    environment: Mapping[str, str]
    runtime: RuntimeConfig | None
    own: MethodConfig | TaskConfig
    sources: Mapping[str, str]

    @property
    def of_runtime(self) -> RuntimeConfig:
        """Return the configuration of the runtime process of a method."""
        assert self.runtime is not None
        return self.runtime


def _live_settings(found: FoundMethod, profile: Profile, environment: Mapping[str, str]) -> LiveSettings:
    """Return the settings of the runtime and the method.

    A variable's source is the name under which it was set, else ``profile``, ``method`` or ``default``.
    """
    by_method, of_method_and_profile = found.runtime_defaults(profile.name, environment)
    by_profile = {**profile.runtime, **of_method_and_profile}
    if environment.get(JUDGE_ELSEWHERE):
        by_profile.pop(JUDGE_PROMPTS, None)  # the profile's are for the tiny judge, who was trained on them
    by_method = {key: value for key, value in by_method.items() if key not in by_profile}
    whole = {**by_method, **by_profile, **{key: value for key, value in environment.items() if value}}
    sources = _sources((*VARIABLES, *found.config.variables()), environment, by_profile, by_method)
    runtime = RuntimeConfig.from_env(whole)
    sources |= {name: other for name, other in runtime.sources.items() if sources[name] == "default"}
    return LiveSettings(whole, runtime, found.config.from_env(whole), sources)


def _task_settings(found: FoundTask, recipe: Recipe, environment: Mapping[str, str]) -> LiveSettings:
    """Return the settings of a task; refuse variables with which it cannot run.

    Raises:
        ConfigError: a variable is invalid.
    """
    kind = environment.get(KIND_VARIABLE) or found.config.name
    if kind != found.config.name:
        raise ConfigError(
            f"{KIND_VARIABLE}={kind}: this script has {found.config.name}; take the script of that folder"
        )
    declared = found.variables()
    known = {item.name for item in declared if not item.is_set(environment)}
    defaults = found.config.profile_variables(recipe.machine.name, environment)
    by_profile = {name: str(value) for name, value in defaults.items() if name in known and value is not None}
    whole = {**by_profile, **{key: value for key, value in environment.items() if value}}
    own = found.config.from_env(whole)
    own.check(whole, trains=not recipe.evaluates_only)
    by_task = own.for_processes(whole)
    sources = _sources(found.variables(), environment, by_profile, {})
    sources |= {name: "task" for name in by_task if sources[name] == "default"}
    return LiveSettings({**whole, **by_task}, None, own, sources)


def _sources(
    variables: Sequence[Variable],
    environment: Mapping[str, str],
    by_profile: Mapping[str, str],
    by_method: Mapping[str, str],
) -> dict[str, str]:
    """Return where each variable's value comes from: the name under which it was set, or a word of `NOT_TYPED`."""
    sources: dict[str, str] = {}
    for variable in variables:
        given = [name for name in variable.names if environment.get(name)]
        origin = "profile" if variable.name in by_profile else "method" if variable.name in by_method else "default"
        sources[variable.name] = given[0] if given else origin
    return sources


def _with_paths(variables: Mapping[str, Resolved]) -> dict[str, Value]:
    """Return the values with absolute paths.

    User paths resolve against the working directory, defaults against the repository.
    """
    values = {field: entry.value for field, entry in variables.items()}
    for field in PATH_FIELDS:
        if values[field]:
            base = HOME if variables[field].source in ("default", "profile", "model") else Path.cwd()
            values[field] = str((base / Path(str(values[field])).expanduser()).resolve())
    return values


def _with_file(
    inputs: FlagInputs, variables: Mapping[str, Resolved], live: LiveSettings, path: str
) -> dict[str, tuple[str, ...]]:
    """Return the groups of flags with those of a ``--config`` file in the place of the launcher's."""
    sources = {entry.variable.name: entry.source for entry in variables.values()} | dict(live.sources)
    parser = parser_for([*_words(flag_sections(inputs)), CONFIG_FLAG, path])
    flags = flags_of_file(parser, path, flags_of_typed(inputs, sources))
    of_file = [word for words in flags.values() for word in words]
    sections = flag_sections(replace(inputs, extra=[*of_file, *inputs.extra]))
    own = {title: tuple(without_flags(parser, words, flags)) for title, words in sections.items() if title != CUSTOM}
    rows = {**own, "FILE_ARGS": tuple(of_file), CUSTOM: tuple(inputs.extra)}
    return {title: words for title, words in rows.items() if words}


def _words(sections: Mapping[str, Sequence[str]]) -> list[str]:
    return [word for section in sections.values() for word in section]


def _read_flags(
    found: FoundMethod | FoundTask,
    sections: Mapping[str, Sequence[str]],
    own_flags: Sequence[str],
    usual: str,
    recipe: Recipe,
) -> tuple[Arguments, list[str]]:
    """Return the parsed flags, and the reasons why a run cannot work with them."""
    words = [*(NO_TRAINING if recipe.evaluates_only else ()), *_words(sections)]
    with import_paths([str(found.folder)]):  # its plugins may declare flags
        parser = parser_for(words, add_report_flag if recipe.evaluates_only else None)
    parser.prog, parser.further_flags = "launch", own_flags
    args, wrong = read_arguments(parser, words)
    wrong = [with_download(problem, lambda path: download_command(path, usual)) for problem in wrong]
    problems = [with_variables(problem, found.folder, recipe.machine.device) for problem in wrong]
    if isinstance(found, FoundTask):
        return args, problems
    if found.declared:
        with import_paths([str(found.folder)]):
            unfed = unfed_loss(args, found.folder.name, found.config.fills)
        problems += [unfed] if unfed else []
    return args, [*problems, *check_asynchronous(args, "a method on live conversations")]


def settings_problems(runtime: RuntimeConfig) -> list[str]:
    """Return why a run with these settings of the runtime would serve, but never train, or end at its first update."""
    problems: list[str] = []
    if runtime.top_p < 1:
        problems.append(
            f"OPENCLAW_TOP_P={runtime.top_p:g}: turns sampled with top_p below 1 are never trained; unset it"
        )
    return problems


def tokenizer_problems(runtime: RuntimeConfig, checkpoint: str) -> list[str]:
    """Return why a run cannot have the tokenizer that a variable names: trainer and engines have that of the checkpoint."""
    source = runtime.sources.get("OPENCLAW_TOKENIZER", "default")
    if not runtime.tokenizer or source == "default":
        return []
    named, own = Path(runtime.tokenizer).expanduser(), Path(checkpoint)
    if not named.is_dir():
        return [f"{source}={runtime.tokenizer}: {MISSING_PATH}{nearest_path(named)}; unset it, or name a folder"]
    texts = [[file.read_bytes() if (file := folder / name).is_file() else b"" for name in TOKENIZER_FILES]
             for folder in (named, own)]  # fmt: skip
    if not own.is_dir() or texts[0] == texts[1]:
        return []
    return [
        f"{source}={runtime.tokenizer} is not the tokenizer of HF_CKPT={checkpoint}, which trainer and engines use; unset it, or "
        "copy its files there"
    ]


def task_problems(path: str, checkpoint: Path) -> list[str]:
    """Return why the gate could not ask its tasks: the file is bad, or the tokenizer's template refuses one."""
    try:
        tasks = read_tasks(path)
    except ConfigError as error:
        return [str(error)]
    if not (checkpoint / TOKENIZER_CONFIG).exists():
        return []  # a missing checkpoint is another problem
    from chat_codec.renderer import RenderError
    from openclaw.gate.questions import reply_reader

    for number, task in enumerate(tasks, start=1):
        try:
            reply_reader(str(checkpoint)).prompt(task.messages)
        except RenderError as error:
            return [f"OPENCLAW_GATE_TASKS={path} task {number} cannot be asked: {error}"]
    return []


def usual_model(profile: Profile, model: str | None) -> str:
    """Return the model to get for a run whose checkpoint is missing."""
    if profile.device == "cpu":
        return TINY_MODEL
    return Path(_model_folder(model)).name if model else USUAL


def with_variables(problem: str, folder: Path, device: str) -> str:
    """Return a problem about flags, followed by the variables that set these flags."""
    named = [VARIABLE_OF_FLAG[flag] for flag in re.findall(r"--([a-z-]+)", problem) if flag in VARIABLE_OF_FLAG]
    names = [f"{name}=1" if name in ("RESUME", "GATE") else name for name in named]
    if problem.startswith("--before-push-path "):  # nobody typed it: the gate is on by default
        names[0] = "GATE=0"
    if problem.startswith("--sglang-context-length "):  # two flags have the same variable
        words = re.sub(r"--([a-z-]+) (\d+)", lambda found: f"{VARIABLE_OF_FLAG[found[1]]}={found[2]}", problem)
        reason, _, typed = words.partition("; write ")
        return f"{reason}; write {' '.join(dict.fromkeys(typed.split()))}"
    if match := re.search(r" actor \+ .* but --num-gpus is (\d+); lower one of them", problem):
        count = " or ".join(LaunchVariables.declared("num_gpus").names)
        advice = f"a CPU has none to count: unset {count}" if device == "cpu" else split_for(folder, int(match[1]))
        return f"{problem[: -len('; lower one of them')]}; {advice}"
    return f"{problem} (variables: {', '.join(dict.fromkeys(names))})" if names else problem


def _child_environment(
    found: FoundMethod | FoundTask, profile: Profile, environment: Mapping[str, str], live: Mapping[str, str]
) -> dict[str, str]:
    """Return the environment of the run's first process.

    It names the variables that the run forwards to all other processes.
    """
    paths = [found.folder, REPOSITORY, REPOSITORY / "slime"]
    inherited = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path]
    child = {**live, "PYTHONPATH": os.pathsep.join(dict.fromkeys([*map(str, paths), *inherited]))}
    declared = found.variables() if isinstance(found, FoundTask) else found.config.variables()
    may_travel = [name for item in declared if not item.secret for name in item.names]
    if names := [name for name in may_travel if live.get(name)]:
        child[FORWARD_VARIABLE] = " ".join([*environment.get(FORWARD_VARIABLE, "").split(), *names])
    if profile.device == "cpu":
        child.setdefault("OMP_NUM_THREADS", "1")
    return child


def _command(
    args: Arguments,
    values: Mapping[str, Value],
    sections: Mapping[str, Sequence[str]],
    *,
    evaluates_only: bool,
) -> tuple[str, ...]:
    """Return the driver's command; on a machine other than the head, the command of a Ray node."""
    if values["node_rank"]:
        return node_command(args, values)
    program = "eval_only.py" if evaluates_only else "train_async.py"
    return (sys.executable, str(REPOSITORY / "slime" / program), *_words(sections))
