"""Checks a method before a run: its folder, its declaration, its rollout function, and the method on canned turns.

Guarantees: reports everything that is wrong, not only the first failure. Starts nothing and imports neither torch nor
Ray. ``python -m openclaw.method check FOLDER`` runs it on a folder, the launcher on the method of its plan.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType

from groundwork.command_line import CommandLine
from groundwork.exceptions import ConfigError
from openclaw.config.method_config import CONFIG_CLASS, MethodConfig, config_of, declared_configs
from openclaw.config.runtime import RuntimeConfig
from openclaw.launch.flags import NOT_TYPED
from openclaw.launch.methods import (
    REPOSITORY,
    declaration_problems,
    find_folder,
    import_paths,
    imported,
    method_file,
    recommended,
)
from openclaw.launch.plan import Plan
from openclaw.launch.profiles import PROFILES
from openclaw.method import Method
from openclaw.method.check import CLAUSES, MethodCheck
from openclaw.method.loading import build_method, raised, resolve
from openclaw.training.live import LiveRollout
from openclaw.training.live_arguments import practice_problem
from slime.arguments.plugins import is_plugin_file, missing_plugins, wrong_signatures

CPU_PROFILE = "tiny_cpu"
CPU_SCRIPT = "run_tiny_cpu.sh"
EXAMPLE = "CONTRIBUTING.md has a complete example"
PLUGIN_FILES = {
    "custom_generate.py": "--custom-generate-function-path",
    "custom_loss.py": "--custom-loss-function-path",
    "custom_rm.py": "--custom-rm-path",
    "custom_rollout.py": "--rollout-function-path",
}
"""Names that guides give to plugins of a folder without a method, each with the flag that takes it."""


def plan_problems(plan: Plan) -> list[str]:
    """Return what is wrong with the plugins of a plan; only signatures are checked if no method makes its samples."""
    path = plan.args.rollout_function_path
    folders = plan.environment.get("PYTHONPATH", "").split(os.pathsep)
    with import_paths([folder for folder in folders if folder]):
        problems = wrong_signatures(plan.args)
        if plan.runtime is None:
            return [*missing_plugins(plan.args), *problems]
        if path.startswith("slime.") or (is_plugin_file(path) and not Path(path.partition(":")[0]).is_file()):
            return problems  # of a missing file the plan says so
        try:
            function = resolve(path)
        except ConfigError as error:
            # A dry run works before the set-up, when a plugin of the trainer's side cannot be imported.
            return [*problems, f"--rollout-function-path: {error}"] if importlib.util.find_spec("ray") else problems
        if not isinstance(function, LiveRollout):
            return problems
        if problem := practice_problem(plan.args, plan.runtime.practice, plan.runtime.practice_replay > 0):
            problems.append(problem)
        problems += _idle_practice(plan)
        return [*problems, *method_problems(function.method_path, plan.runtime, plan.environment)]


def teacher_line(plan: Plan) -> str | None:
    """Return what a plan's teacher is if it is another model than the policy, and whether it answers; else None.

    Raises:
        ConfigError: it cannot teach this method.
    """
    args, config = plan.args, plan.runtime
    if config is None or not (config.teacher_url or args.opd_teacher == "prm"):
        return None
    import asyncio

    from openclaw.judge.wiring import look_at_teacher

    folders = plan.environment.get("PYTHONPATH", "").split(os.pathsep)
    with import_paths([folder for folder in folders if folder]):
        function = resolve(args.rollout_function_path)
        if not isinstance(function, LiveRollout):
            return None
        method = build_method(function.method_path, config, plan.environment)
    judge = str(args.prm_model_path or args.hf_checkpoint)
    own = replace(config, tokenizer=args.hf_checkpoint, judge_tokenizer=judge, distill_topk=args.distill_topk)
    return asyncio.run(look_at_teacher(own, method.judges())) if isinstance(method, Method) else None


def _idle_practice(plan: Plan) -> list[str]:
    """Return the settings of practice that have no effect, because nothing is practised."""
    if plan.runtime is None or plan.runtime.practice != "off":
        return []
    typed = sorted(name for name, source in plan.runtime_sources.items() if source not in NOT_TYPED)
    names = [name for name in typed if name.startswith("OPENCLAW_PRACTICE_")]
    return [
        f"{name} has no effect, because nothing is practised; set OPENCLAW_PRACTICE=liked, or unset it"
        for name in names
    ]


def method_problems(path: str, config: RuntimeConfig, environment: Mapping[str, str]) -> list[str]:
    """Return the clauses that the method at ``module.attribute`` breaks, or why it cannot be built."""
    try:
        method = build_method(path, config, environment)
    except ConfigError as error:
        return [str(error)]
    broken = [f"{path}: {item}" for item in MethodCheck(method).run(config.temperature)]
    return broken or (_vote_problems(method, config) if isinstance(method, Method) else [])


def _vote_problems(method: Method, config: RuntimeConfig) -> list[str]:
    """Return the settings of votes that have no effect on this method, and a declaration that leaves it without a judge."""
    plan, own = method.judges(), config_of(type(method))
    if plan.asks_judge and own is not None and not own.asks_judge:
        return [f"{own.__module__}.{own.__name__}.asks_judge is False, but judges() asks for votes; remove the line"]
    if not (plan.asks_judge or plan.needs_teacher) and own is not None and own.asks_judge:
        where = f"{own.__module__}.{own.__name__}"
        return [f"judges() asks for no vote, but the run would start a judge engine; add asks_judge = False to {where}"]
    if not plan.asks_judge and config.judged_elsewhere:
        name = "OPENCLAW_JUDGE_CLASS" if config.judge_class else "OPENCLAW_JUDGE_BASE_URL"
        return [f"{name} has no effect: {method.name} asks no judge; unset it"]
    threshold = config.sources.get("MAJORITY_VOTE_THRESHOLD", "default")
    votes = plan.prm_votes
    if threshold == "default" or votes > 1:
        return []
    why = "with one vote; set PRM_M=3, or unset it" if votes else "on a method that asks for no score; unset it"
    return [f"{threshold}={config.majority_vote_threshold:g} has no effect {why}"]


def folder_problems(folder: Path, environment: Mapping[str, str]) -> list[str]:
    """Return everything that is wrong with a method folder."""
    file = method_file(folder)
    if not file.is_file():
        others = [path.name for path in sorted(folder.glob("*_method.py"))]
        rename = f"; rename {others[0]}" if others else f"; {EXAMPLE}"
        return [f"{folder} has no {file.name}{rename}"]
    with import_paths([str(folder), str(REPOSITORY), str(REPOSITORY / "slime")]):
        try:
            module = imported(file)
        except ConfigError as error:
            return [str(error)]
        problems, config = _declared(file, module)
        defaults: Mapping[str, object] = {}
        if config is not None:
            problems += _flag_problems(file, config, environment)
            defaults = {**config.defaults, **config.profile_defaults.get(CPU_PROFILE, {})}
        names = {name: str(value) for name, value in defaults.items() if value is not None}
        whole = {**names, **PROFILES[CPU_PROFILE].runtime, **environment}
        live, path = _method_path(folder, config, module)
        problems += live
        if path:
            problems += method_problems(path, *_settings(whole, environment))
    return list(dict.fromkeys(problems))


def plugins_of(folder: Path) -> list[tuple[str, str]]:
    """Return the plugins of a folder without a method, each as flag and file; empty for a method folder."""
    if list(folder.glob("*_method.py")):
        return []
    files = [(flag, folder / name) for name, flag in PLUGIN_FILES.items()]
    return [(flag, str(file)) for flag, file in files if file.is_file()]


def _settings(whole: Mapping[str, str], environment: Mapping[str, str]) -> tuple[RuntimeConfig, Mapping[str, str]]:
    """Return the configuration of the runtime with the method's defaults, or without them if one is unusable."""
    try:
        return RuntimeConfig.from_env(whole), whole
    except ConfigError:
        return RuntimeConfig.from_env(environment), environment


def _declared(file: Path, module: ModuleType) -> tuple[list[str], type[MethodConfig] | None]:
    """Return what is wrong with a module's ``Config``, and the class if there is one."""
    config = getattr(module, CONFIG_CLASS, None)
    if not (isinstance(config, type) and issubclass(config, MethodConfig)):
        return [f"{file} declares no method: add class {CONFIG_CLASS}(MethodConfig); {EXAMPLE}"], None
    try:
        configs = declared_configs(module)
    except ConfigError as error:
        return [str(error), *declaration_problems(file, config)], config
    return [problem for item in configs for problem in declaration_problems(file, item)], config


def _flag_problems(file: Path, config: type[MethodConfig], environment: Mapping[str, str]) -> Iterator[str]:
    """Yield what is wrong with the launch flags."""
    try:
        flags = config.from_env(environment).launch_flags()
    except ConfigError as error:
        yield str(error)
    except Exception as error:  # noqa: BLE001 - a problem of the method, which is reported
        yield f"{file}: launch_flags() raised {raised(error)}"
    else:
        if isinstance(flags, str) or not all(isinstance(word, str) for word in flags):
            yield f"{file}: launch_flags() returned {flags!r:.80}; return a tuple of words, a value as its own word"


def _method_path(folder: Path, config: type[MethodConfig] | None, module: ModuleType) -> tuple[list[str], str | None]:
    """Return what is wrong with the rollout function, and the path of the method, which a lone class gives as well."""
    stem = module.__name__.removesuffix("_method")
    word = folder.name.removeprefix("openclaw-").replace("-", "_")
    lone = [
        name
        for name, value in vars(module).items()
        if isinstance(value, type) and value.__module__ == module.__name__ and hasattr(value, "samples")
    ]
    path = f"{module.__name__}.{lone[0]}" if len(lone) == 1 else None
    line = f'generate_rollout_{word} = LiveRollout("{path or module.__name__ + ".MyMethod"}")'
    if config is None:
        return [], path
    if not config.rollout_function:
        declaration = f'rollout_function = "{stem}_rollout.generate_rollout_{word}"'
        return [f"{CONFIG_CLASS} names no rollout function: add {declaration}, and in {stem}_rollout.py: {line}"], path
    try:
        function = resolve(config.rollout_function)
    except ConfigError as error:
        return [f"{CONFIG_CLASS}.rollout_function: {error}; write in {stem}_rollout.py: {line}"], path
    if not isinstance(function, LiveRollout):
        return [f"{config.rollout_function} is {function!r:.60}, which names no method; write: {line}"], path
    return [], function.method_path


def main(argv: Sequence[str] | None = None) -> int:
    """Command line of ``python -m openclaw.method``.

    Returns:
        0 if the folder's method keeps all clauses, 1 if it does not, 2 if there is no such folder.
    """
    parser = CommandLine(
        prog="python -m openclaw.method",
        description="Check a method folder on canned turns, or its plugins: no engine, no GPU, nothing is started.",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    check = commands.add_parser(
        "check",
        help="check the method of a folder against all clauses",
        epilog="Further flags, such as --prm-model-path, go to the check of a folder's plugins.",
    )
    check.add_argument("folder", metavar="FOLDER", help="a method folder, or the name of a method of this repository")
    commands.add_parser("clauses", help="list the clauses")
    options, further = parser.parse_known_args(argv)
    if further and options.command == "clauses":
        parser.unknown(further)
    if options.command == "clauses":
        print("\n".join(f"{clause}: a method {text}" for clause, text in CLAUSES.items()))
        return 0
    try:
        folder = find_folder(options.folder)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    if plugins := plugins_of(folder):  # each by itself: none is rejected for a fault of another
        command = [sys.executable, "-m", "slime.contract"]
        # A check that a signal ends has a negative status, which is no success.
        return max(abs(subprocess.call([*command, *plugin, *further])) for plugin in plugins)
    if further:
        parser.unknown(further)
    if problems := folder_problems(folder, os.environ):
        print("\n".join([f"rejected {options.folder}", *(f"  {problem}" for problem in problems)]))
        return 1
    demo = f"bash {recommended().folder.name}/{CPU_SCRIPT} --method {options.folder}"
    print(f"accepted {options.folder}: {len(CLAUSES)} clauses; to watch it learn on this CPU: {demo}")
    print("the demo's student says what the judge hears; to say it yourself, add --live and type: openclaw-rl chat")
    return 0
