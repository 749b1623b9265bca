"""Prints a plan: in short what `--dry-run` shows, in full what `--verbose` adds. Hides secrets."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence

from groundwork.exceptions import ConfigError
from openclaw.config.bounds import Row, rows
from openclaw.config.runtime import RuntimeConfig
from openclaw.config.runtime_variables import VARIABLES
from openclaw.launch.adapters import adapter_lines
from openclaw.launch.flags import CUSTOM, NOT_TYPED
from openclaw.launch.guides import FLAG_TEXTS, words_in
from openclaw.launch.plan import Plan
from openclaw.launch.resolve import JUDGE_ELSEWHERE
from openclaw.launch.task import TaskConfig
from openclaw.runtime.where import api_url, inspect_command, own_command
from slime.arguments.fireworks import ADDRESS as FIREWORKS_ADDRESS
from slime.arguments.fireworks import KEY as FIREWORKS_KEY
from slime.arguments.fireworks import NAME as FIREWORKS
from slime.arguments.placement import describe_placement, start_lines
from slime.arguments.process_environment import environment_lines
from slime.arguments.tinker import ADDRESS, KEY
from slime.tracking.redact import without_secrets

SHORT = ("body_bytes", "requests_under_way", "context_tokens")


def short_limits(config: RuntimeConfig) -> str:
    """Return the bounds that a first user may meet, in one line."""
    values = {row.name: shown_value(row) for row in rows(config)}
    body, requests, context = (values[name] for name in SHORT)
    return f"{body} bytes and {context} tokens a request, {requests} requests at once"


def limit_lines(config: RuntimeConfig) -> Iterator[str]:
    """Yield one line per bound: name, value, unit, variable."""
    for row in rows(config):
        yield f"  {row.name:<40} {shown_value(row):<16} {row.unit:<26} {row.variable or 'fixed'}"


def shown_value(row: Row) -> str:
    """Return the value of a bound, ``none`` without one."""
    return "none" if row.value is None else f"{row.value:.15g}"


TRACKER_SECRETS = ("WANDB_API_KEY", "WANDB_KEY", "HF_TOKEN", KEY, FIREWORKS_KEY)
STARTED_AS = "LAUNCHED_AS"
"""The variable in which scripts/launch.sh gives the command line of the script."""
PRECEDENCE = "precedence: flag > variable > --config file > profile > method or task > default"
WORKER_MODULE = "slime.ray.worker_node"


def placement_lines(plan: Plan) -> Iterator[str]:
    """Yield one line per GPU, in the order actor, critic, rollout, judge."""
    args = plan.args
    sizes = {"rollout": args.rollout_num_gpus_per_engine, "judge": args.prm_num_gpus_per_engine}
    roles = [
        f"{role:<8} engine {index // sizes[role]}" if role in sizes else f"{role:<8} rank {index}"
        for role, count in plan.roles
        for index in range(count)
    ]
    kind = "GPU" if args.device == "cuda" else "logical GPU"
    ids = plan.gpu_ids or range(len(roles))
    for number, role in zip(ids, roles, strict=True):
        yield f"  {kind} {number}  {role}"


def source_text(name: str, source: str) -> str:
    """Return where a value came from; ``source`` is the variable's name as set, or a word."""
    if source == name:
        return "env"
    return source if source in NOT_TYPED else f"env ({source})"


def derived_paths(plan: Plan) -> dict[str, str]:
    """Return the paths of variables that are unset, by field, as the plan derives them from others."""
    args = plan.args
    paths = {"ref_load": args.ref_load, "save_ckpt": args.save, "prm_model_path": args.prm_model_path}
    return {field: path for field, path in {**paths, "run_dir": args.run_dir}.items() if path}


def given_lines(plan: Plan) -> Iterator[str]:
    """Yield one line per variable or flag that the user set: variables first, with the name they were set under."""
    for entry in plan.variables.values():
        if entry.source not in NOT_TYPED:
            yield f"  {entry.source}={shlex.quote(str(entry.value))}"
    values = {name: value for name, value, _ in plan.runtime.describe()} if plan.runtime else {}
    values |= {variable.name: "" if value is None else str(value) for variable, value in plan.own_values}
    secrets = {item.name for item in (*VARIABLES, *(variable for variable, _ in plan.own_values)) if item.secret}
    typed = {name: source for name, source in plan.runtime_sources.items() if source not in NOT_TYPED}
    lines = (f"  {source}={'***' if name in secrets else shlex.quote(values[name])}" for name, source in typed.items())
    yield from dict.fromkeys(lines)  # a name may set two variables
    for section in ("FILE_ARGS", CUSTOM):
        yield from (f"  {line}" for line in flag_lines(plan.sections.get(section, ())))


def shown_words(words: Sequence[str]) -> str:
    """Return words as a shell reads them, but hidden secrets unquoted."""
    return shlex.join(words).replace("'***'", "***")


def flag_lines(words: Sequence[str]) -> Iterator[str]:
    """Yield one line per flag, with its values and without secrets."""
    line: list[str] = []
    for word in without_secrets(words):
        if word.startswith("--") and line:
            yield shown_words(line)
            line = []
        line.append(word)
    if line:
        yield shown_words(line)


def continue_command(plan: Plan, words: Sequence[str], environment: Mapping[str, str]) -> str:
    """Return the line that continues the run from its newest checkpoint.

    It repeats the variables that the user set, except secrets, because they may have been set for one command.
    ``words``: the launcher's arguments, for a run that no script started.
    """
    secrets = {name for variable in VARIABLES if variable.secret for name in variable.names}
    secrets |= {name for variable, _ in plan.own_values if variable.secret for name in variable.names}
    sources = [*(entry.source for entry in plan.variables.values()), *plan.runtime_sources.values()]
    names = [name for name in sources if environment.get(name) and name not in secrets and name != "RESUME"]
    given = [f"{name}={shlex.quote(environment[name])}" for name in dict.fromkeys(names)]
    for name in FLAG_TEXTS:
        if words_of_text := words_in(name, environment):
            given.append(f"{name}={shlex.quote(shown_words(without_secrets(words_of_text)))}")
    script = shlex.split(environment.get(STARTED_AS, ""))
    started = script or shlex.split(own_command("launch", *words))
    again = [] if "--resume" in started else ["--resume"]
    return " ".join([*given, shown_words(without_secrets([*started, *again]))])


def run_lines(plan: Plan) -> Iterator[str]:
    """Yield what the run learns from, where it writes and serves, and how to look into it."""
    args = plan.args
    if WORKER_MODULE in plan.command:
        yield f"  joins    the run whose head is {args.head_address}"
        return
    yield f"  model    {args.hf_checkpoint}"
    yield f"  folder   {args.run_dir}"
    if args.resume:
        yield f"  resumes  from the newest checkpoint in {args.save}"
    if plan.runtime is None:
        yield from _task_lines(plan)
        return
    yield f"  serves   {api_url(plan.runtime)}"
    yield f"  limits   {short_limits(plan.runtime)}"
    yield f"  learns   from {args.rollout_batch_size} judged turns per step; checkpoint every {args.save_interval} steps"
    yield f"  inspect  {inspect_command(args, plan.environment)}"
    yield from (f"  {line}" for line in adapter_lines(plan.variables["adapters"].value, args))


def _task_lines(plan: Plan) -> Iterator[str]:
    """Yield which tasks a run plays, and how much of it is an update."""
    assert isinstance(plan.own, TaskConfig)
    args, trains = plan.args, not plan.recipe.evaluates_only
    for word, text in plan.own.summary(plan.environment, trains=trains).items():
        yield f"  {word:<8} {text}"
    if trains:
        episodes = f"{args.rollout_batch_size} tasks, {args.n_samples_per_prompt} episodes each, per rollout"
        yield f"  learns   from {episodes}; checkpoint every {args.save_interval} rollouts"


def variable_lines(plan: Plan) -> Iterator[str]:
    """Yield one line per variable: name, value, source."""
    derived = derived_paths(plan)
    for field, entry in plan.variables.items():
        value = "" if entry.value is None else entry.value
        source = source_text(entry.variable.name, entry.source)
        if entry.value is None and field in derived:
            value, source = derived[field], "derived"
        yield f"  {entry.variable.name:<40} {value!s:<28} {source}"
    secrets = {variable.name for variable in VARIABLES if variable.secret}
    for name, value, _ in plan.runtime.describe() if plan.runtime else ():
        shown = ("set" if value else "unset") if name in secrets else value
        yield f"  {name:<40} {shown:<28} {source_text(name, plan.runtime_sources[name])}"
    for variable, value in plan.own_values:
        shown = ("set" if value else "unset") if variable.secret else "" if value is None else value
        yield f"  {variable.name:<40} {shown!s:<28} {source_text(variable.name, plan.runtime_sources[variable.name])}"
    for name in TRACKER_SECRETS:
        yield f"  {name:<40} {'set' if plan.environment.get(name) else 'unset':<28} env"


def process_lines(plan: Plan) -> Iterator[str]:
    """Yield the variables of training ranks and engines: name, value, processes, source."""
    for line in environment_lines(plan.args, plan.environment):
        yield f"  {line}"


def summary_lines(plan: Plan) -> Iterator[str]:
    """Yield one line per role: its GPUs as a range; or which service trains, samples and judges, and what it gets."""
    if plan.profile.service:
        if fireworks := plan.profile.service == FIREWORKS:
            address = plan.environment.get(FIREWORKS_ADDRESS) or "the usual address of Fireworks"
        else:
            address = plan.environment.get(ADDRESS) or "the usual address of the package tinker"
        yield f"  service  {address}, model {plan.args.tinker_model}"
        if fireworks:
            end = "kept at the end" if plan.args.fireworks_keep else "deleted at the end"
            yield f"  rents    a trainer job of {plan.args.fireworks_training_shape} and a deployment, {end}"
        yield "  gets     prompts, replies, judge's questions and training data, as token ids; the ledger and keys stay here"
        return
    ids = list(plan.gpu_ids or range(plan.gpus_needed))
    start = 0
    for role, count in plan.roles:
        if role == "critic" and not count:
            continue
        numbers = ids[start : start + count]
        contiguous = numbers == list(range(numbers[0], numbers[0] + count)) if numbers else False
        shown = f"{numbers[0]}-{numbers[-1]}" if contiguous and count > 1 else ",".join(map(str, numbers)) or "none"
        start += count
        if role == "judge" and not count and (address := plan.environment.get(JUDGE_ELSEWHERE)):
            shown = f"at {address}"
        yield f"  {role:<8} {shown}"


def start_and_memory_lines(plan: Plan) -> Iterator[str]:
    """Yield the start order and the memory budget with its warnings; nothing without a placement."""
    try:
        placement = describe_placement(plan.args)
    except ConfigError:
        return
    if lines := start_lines(placement):
        yield from ("", "start order:", *(f"  {line}" for line in lines))
    if plan.budget.lines:
        yield from ("", *plan.budget.lines)
    yield from warning_lines(plan)


def warning_lines(plan: Plan) -> Iterator[str]:
    """Yield the notes and the warnings of a plan."""
    yield from (f"note: {note}" for note in plan.notes)
    yield from (f"warning: {warning}" for warning in plan.warnings)


def describe(plan: Plan) -> str:
    """Return placement, run and what the user set."""
    lines = [f"{plan.title}, profile {plan.profile.name}", "", "placement:", *summary_lines(plan)]
    lines += ["", "run:", *run_lines(plan)]
    given = list(given_lines(plan))
    defaults = f"of {plan.title} and profile {plan.profile.name}"
    lines += [
        "",
        f"you set (all else is the default {defaults}):"
        if given
        else f"you set nothing: all values are the defaults {defaults}",
    ]
    lines += [*given, "", PRECEDENCE]
    lines += ["--verbose adds memory, limits, every variable with its source, every flag and the command"]
    lines += warning_lines(plan)
    return "\n".join(lines)


def describe_in_full(plan: Plan) -> str:
    """Return the whole plan as text."""
    lines = [f"{plan.title}, profile {plan.profile.name}", "", "placement:", *summary_lines(plan), ""]
    lines += [
        *placement_lines(plan),
        *start_and_memory_lines(plan),
        "",
        PRECEDENCE,
        "",
        "variables (name, value, source):",
        *variable_lines(plan),
    ]
    if plan.runtime is not None:
        lines += ["", "limits of the gateway (name, value, unit, variable):", *limit_lines(plan.runtime)]
    lines += ["", "ranks and engines (name, value, processes, source):", *process_lines(plan), "", "arguments:"]
    for title, words in plan.sections.items():
        lines += [f"  {title}", *(f"    {line}" for line in flag_lines(words))]
    first = next((index for index, word in enumerate(plan.command) if word.startswith("--")), len(plan.command))
    words = [shlex.join(plan.command[:first]), *flag_lines(plan.command[first:])]
    lines += ["", "command:", " \\\n    ".join([f"  PYTHONPATH={plan.environment['PYTHONPATH']}", *words])]
    return "\n".join(lines)
