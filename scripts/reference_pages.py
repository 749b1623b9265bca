"""Write the reference pages from the declarations: ``python scripts/reference_pages.py``.

``instructions/reference/`` has what belongs to every run; ``reference.md`` of a method or agent folder has what that folder
declares, so a new folder changes no other page. Guarantee: every variable, profile, flag, plugin clause, route, bound and
gateway metric is on exactly one page, and nothing else is. A test compares the pages with this program.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from fastapi import FastAPI
from prometheus_client import CollectorRegistry

from agentrl.rollout.settings import Settings
from groundwork.variables import Value, Variable
from openclaw.config.bounds import rows
from openclaw.config.runtime import RuntimeConfig
from openclaw.config.runtime_variables import VARIABLES
from openclaw.gateway.auth import Keyring
from openclaw.gateway.episodes import add_episode_routes
from openclaw.gateway.lessons import add_lesson_routes
from openclaw.gateway.metrics import GatewayMetrics
from openclaw.gateway.openapi import describe
from openclaw.gateway.routes import add_model_routes, add_session_routes, add_status_routes
from openclaw.gateway.usage import add_usage_routes
from openclaw.judge.voting import JudgeMetrics
from openclaw.launch.guides import (
    FLAG_TEXTS,
    KEYS,
    METHOD_KEY,
    NAMES,
    OF_CONVERSATIONS,
    OF_ENVIRONMENTS,
    NoEffect,
    Only,
)
from openclaw.launch.methods import REPOSITORY, FoundMethod, methods_of
from openclaw.launch.names import declared_variables
from openclaw.launch.profiles import PROFILES
from openclaw.launch.report import shown_value
from openclaw.launch.task import FoundTask, TaskConfig, declared_task, find_task, task_folders
from openclaw.launch.variables import LAUNCH_VARIABLES
from openclaw.privacy.redactor import build_redactor
from openclaw.training.step_metrics import TABLES as STEP_METRICS
from slime.arguments.parser import ALIASES, build_parser
from slime.arguments.refused import FIXED, REFUSED, REFUSED_ROUTER, UNUSED
from slime.contract import KINDS

FOLDER = REPOSITORY / "instructions" / "reference"
OWN_PAGE = "reference.md"
"""Name of a folder's own page."""
SOURCE = "Written by `python scripts/reference_pages.py`; do not edit."

# Page of flags: its title, and how the titles of its groups begin. Groups that no page names go to the last one.
FLAG_PAGES: dict[str, tuple[str, tuple[str, ...]]] = {
    "flags_run": (
        "Flags: cluster, checkpoints, weight sync",
        ("options", "cluster", "sharing", "checkpoints", "weight sync", "gate"),
    ),
    "flags_rollout": (
        "Flags: rollout, data, evaluation, engines, judge",
        ("rollout", "prompt data", "evaluation", "judge", "inference engines"),
    ),
    "flags_algorithm": ("Flags: advantages, losses, critic", ("algorithm", "critic")),
    "flags_trainer": ("Flags: trainer, optimizer, LoRA", ("trainer", "LoRA", "optimizer")),
    "flags_megatron": ("Flags: Megatron and model shape", ("model shape", "Megatron")),
    "flags_logs": ("Flags: tracking and debugging", ("tracking", "debugging", "memory snapshots")),
    "flags_other": ("Flags of other command lines", ()),
}

# Page of clauses: its title, and the kinds of plugin on it by section, in the order in which a run calls them.
# Kinds that no page names go to the last section of the last page.
CLAUSE_PAGES: dict[str, tuple[str, dict[str, tuple[str, ...]]]] = {
    "clauses_rollout": (
        "Plugin clauses: rollouts and rewards",
        {
            "Rollout functions": ("rollout", "eval"),
            "Generate functions": ("generate",),
            "Rewards, filters, data source": (
                *("reward", "dynamic_filter", "buffer_filter", "sample_filter"),
                *("all_samples", "data_source", "sample_hook"),
            ),
        },
    ),
    "clauses_training": (
        "Plugin clauses: training",
        {
            "Between rollout and trainer": (
                *("rollout_log", "eval_log", "reward_post_process", "convert", "data_postprocess"),
            ),
            "Training": ("loss", "advantage", "tis", "pg_loss_reducer"),
            "Before a push": ("before_push",),
            "Flags of your own, and Megatron": (
                *("arguments", "model_provider", "megatron_init", "before_log_prob", "before_train_step"),
            ),
        },
    ),
}


def _text(words: str) -> str:
    return words.replace("|", "\\|")


def _cell(value: object) -> str:
    return "" if value is None else f"`{value}`"


def _table(*header: str) -> tuple[str, str]:
    return f"| {' | '.join(header)} |", "|" + "---|" * len(header)


def _variable_rows(variables: Sequence[Variable]) -> Iterator[str]:
    yield from _table("variable", "default", "meaning")
    for variable in variables:
        names = ", ".join(f"`{name}`" for name in variable.names)
        choices = f" ({', '.join(variable.choices)})" if variable.choices else ""
        yield f"| {names} | {_cell(variable.default)} | {_text(variable.help)}{choices} |"


def launcher_variables() -> Iterator[str]:
    """Yield the page of the launcher's variables."""
    yield "A launch script reads these, whatever its method is."
    yield ""
    yield from _variable_rows(LAUNCH_VARIABLES)
    yield from ("", "## With --task", "", "Every task reads these, too. A task's folder may give other defaults.", "")
    yield from _variable_rows(TaskConfig.variables())


def runtime_variables() -> Iterator[str]:
    """Yield the page of the runtime's variables."""
    yield "The gateway and the judge read these: in a run and in `python -m openclaw.server`."
    yield ""
    yield from _variable_rows(VARIABLES)


def agent_variables() -> Iterator[str]:
    """Yield the page of the agent loop's variables."""
    yield "The generate functions of agents read these. [Agent rollouts](../agent_rollouts.md) explains them."
    yield ""
    yield from _variable_rows(Settings.variables())


def _defaults(defaults: Mapping[str, Mapping[str, Value]]) -> Iterator[str]:
    """Yield a row for each default of a folder, by the name of what it belongs to."""
    yield from ("", "## Defaults", "", "They replace the defaults of these variables; what you export wins.", "")
    yield from _table("with", "variable", "default here")
    for place, values in defaults.items():
        yield from (f"| {place} | `{name}` | {_cell(value)} |" for name, value in values.items())


def method_reference(folder: Path, methods: Sequence[FoundMethod]) -> Iterator[str]:
    """Yield the page of a method folder: variables, defaults, reasons against training."""
    names = ", ".join(f"`--method {method.config.name}`" for method in methods)
    yield f"What `{folder.name}` declares, for {names}."
    if variables := methods[0].config.variables():
        yield from ("", "## Variables", "", *_variable_rows(variables))
    defaults: dict[str, Mapping[str, Value]] = {}
    for method in methods:
        defaults[f"`--method {method.config.name}`"] = method.config.defaults
        for profile, values in method.config.profile_defaults.items():
            defaults[f"`--method {method.config.name} --profile {profile}`"] = values
    if any(defaults.values()):
        yield from _defaults(defaults)
    if reasons := {name: row for method in methods for name, row in method.config.reasons.items()}:
        yield from ("", "## Reasons against training", "", *_table("reason", "because", "do"))
        yield from (f"| `{name}` | {_text(row.sentence)} | {_text(row.remedy)} |" for name, row in reasons.items())


def task_reference(task: FoundTask) -> Iterator[str]:
    """Yield the page of an agent folder: its variables and defaults."""
    yield f"What `{task.folder.name}` declares, for `--task {task.config.name}`."
    shared = {item.name: item for item in (*LAUNCH_VARIABLES, *TaskConfig.variables(), *Settings.variables())}
    own = [item for item in task.variables() if shared.get(item.name) != item]
    if own:
        yield from ("", "## Variables", "", *_variable_rows(own))
    profiles = {f"`--profile {name}`": profile.variables for name, profile in task.config.profiles.items()}
    yield from _defaults({"every profile": task.config.defaults, **profiles})


def folder_pages() -> dict[Path, str]:
    """Return the text of each folder's own page by its file."""
    bodies: dict[Path, Iterator[str]] = {}
    for folder in dict.fromkeys(method.folder for method in methods_of()):
        bodies[folder] = method_reference(folder, [method for method in methods_of() if method.folder == folder])
    for folder in task_folders():
        bodies[folder] = task_reference(declared_task(folder))
    return {folder / OWN_PAGE: _page(f"Reference: {folder.name}", lines) for folder, lines in bodies.items()}


def profiles() -> Iterator[str]:
    """Yield the page of profiles."""
    yield "A profile is a kind of machine. It replaces the defaults of these variables; what you export wins."
    yield "A method's own defaults win over them; they are in `reference.md` of its folder."
    for profile in PROFILES.values():
        yield from ("", f"## {profile.name}", "", *_table("variable", "default here"))
        for name, value in {**profile.variables, **profile.runtime}.items():
            yield f"| `{name}` | `{value}` |"


def _flag_page(title: str) -> str:
    found = [name for name, (_, starts) in FLAG_PAGES.items() if title.startswith(starts)]
    return found[0] if found else list(FLAG_PAGES)[-1]


def flags(page: str) -> Iterator[str]:
    """Yield a page of flags."""
    yield "Flags of `slime/train.py` and `slime/train_async.py`. A launch script passes them on."
    for group in build_parser()._action_groups:
        shown = [action for action in group._group_actions if action.help not in (None, argparse.SUPPRESS)]
        shown = [action for action in shown if action.dest != "help"]
        if not shown or _flag_page(group.title or "") != page:
            continue
        yield from ("", f"## {group.title}", "", *_table("flag", "default", "meaning"))
        for action in shown:
            names = ", ".join(f"`{name}`" for name in action.option_strings)
            default = None if action.nargs == 0 else action.default
            text = (action.help or "").split(" (default:")[0].replace("%%", "%")
            yield f"| {names} | {_cell(default)} | {_text(text)} |"


def plugin_clauses(page: str) -> Iterator[str]:
    """Yield a page of the plugin contract's clauses."""
    yield "What each kind of plugin must do. `python -m slime.contract --clauses` prints every clause,"
    yield "and [plugins](../plugins.md) explains how to check yours. Each row reads: the plugin …"
    sections = CLAUSE_PAGES[page][1]
    if page == list(CLAUSE_PAGES)[-1]:
        placed = {kind for _, each in CLAUSE_PAGES.values() for kinds in each.values() for kind in kinds}
        last = list(sections)[-1]
        sections = {**sections, last: (*sections[last], *(kind for kind in KINDS if kind not in placed))}
    for section, kinds in sections.items():
        yield from ("", f"## {section}")
        for name in kinds:
            kind = KINDS[name]
            yield from ("", f"`{kind.flag}`: {kind.called}.", "", *_table("clause", "the plugin"))
            yield from (f"| {name}-{number} | {_text(text)} |" for number, text in enumerate(kind.clauses, start=1))


def names() -> Iterator[str]:
    """Yield the page of names that other guides use, with what each of them is here."""
    yield "Variables, flags and keys of files that other guides teach. A note of the plan names each one without an effect."
    yield "Every variable is also a flag: `--parallel-envs 8` is `PARALLEL_ENVS=8`."
    yield from ("", "## Variables", "", *_table("name", "here"))
    tasks = [find_task(folder.name.removesuffix("-rl")) for folder in task_folders()]
    declared = [item for found in (None, *methods_of(), *tasks) for item in declared_variables(found)]
    meanings: dict[str, dict[str, None]] = {}
    for item in declared:
        for alias in item.aliases:
            meanings.setdefault(alias, {})[f"`{item.name}`"] = None
    yield from (f"| `{name}` | {', '.join(ours)} |" for name, ours in sorted(meanings.items()))
    texts = dict.fromkeys(FLAG_TEXTS, "flags of the trainer, as a text or as an array of a script")
    yield from _rows_by_meaning(texts | {name: _meaning(meaning) for name, meaning in NAMES.items()})
    for reader, others in (("a method", OF_ENVIRONMENTS), ("a task", OF_CONVERSATIONS)):
        yield from _rows_by_meaning(
            {
                name: _meaning(meaning).replace("no effect", f"no effect for {reader}")
                for name, meaning in others.items()
            }
        )
    yield from ("", "## Flags", "", *_table("flag", "here"))
    yield from (f"| `{alias}` | `{flag}` |" for alias, flag in ALIASES.items())
    for fixed in FIXED:
        value = "a switch" if fixed.value is True else f"only `{fixed.value}`"
        yield f"| `{fixed.flag}` ({value}) | always so: {_text(fixed.why)} |"
    refused = {f"--{flag}": f"refused: {why}" for flag, why in REFUSED.items() if flag not in REFUSED_ROUTER}
    yield from _rows_by_meaning({f"--{flag}": f"no effect; {why}" for flag, why in UNUSED.items()} | refused)
    yield from ("", "## Keys of a configuration file", "", *_table("key", "here"))
    yield f"| `{METHOD_KEY}` | the method of the script |"
    keys = KEYS | {key: meaning for method in methods_of() for key, meaning in method.config.guide_keys.items()}
    yield from (f"| `{key}` | {_meaning(meaning)} |" for key, meaning in keys.items())


def _rows_by_meaning(meanings: Mapping[str, str]) -> Iterator[str]:
    """Yield a row for each meaning, with all names that have it."""
    for meaning in dict.fromkeys(meanings.values()):
        names = ", ".join(f"`{name}`" for name, other in meanings.items() if other == meaning)
        yield f"| {names} | {_text(meaning)} |"


def _meaning(meaning: str | NoEffect | Only) -> str:
    """Return what a setting of another guide is here."""
    if isinstance(meaning, Only):
        values = " or ".join(f"`{'true' if value is True else value}`" for value in meaning.values)
        return f"only {values}; {meaning.why}"
    return f"no effect; {meaning.why}" if isinstance(meaning, NoEffect) else f"`{meaning}`"


def routes() -> Iterator[str]:
    """Yield the page of the gateway's routes; `/openapi.json` has their bodies."""
    app = FastAPI()
    add_session_routes(app, None)  # type: ignore[arg-type]  # the routes are described, never called
    add_lesson_routes(app, None)  # type: ignore[arg-type]
    add_episode_routes(app, None)  # type: ignore[arg-type]
    add_model_routes(app, None)  # type: ignore[arg-type]
    add_usage_routes(app, None)  # type: ignore[arg-type]
    add_status_routes(app, None, CollectorRegistry(), Keyring(None), None)  # type: ignore[arg-type]
    description = app.openapi()
    describe(description)
    yield "Routes of the gateway. `GET /openapi.json` on a running gateway has the schema of every body;"
    yield "the [parameters of a chat completion](../../openclaw/gateway/parameters.md) have a table."
    yield ""
    yield from _table("route", "does")
    errors: dict[str, str] = {}
    for path, operations in description["paths"].items():
        for method, operation in operations.items():
            what = " ".join(operation["description"].split()).replace("``", "`")
            yield f"| `{method.upper()} {path}` | {_text(what)} |"
            errors |= {
                status: answer["description"] for status, answer in operation["responses"].items() if status != "200"
            }
    yield from ("", "## Errors", "", "Every error has OpenAI's shape: `error.message`, `type`, `param`, `code`.", "")
    yield from _table("status", "meaning")
    yield from (f"| {status} | {_text(what)} |" for status, what in sorted(errors.items()))


def limits() -> Iterator[str]:
    """Yield the page of the bounds on what clients may send."""
    yield "What one client may send, so that it cannot harm another. `--dry-run --verbose` prints these values."
    yield "A request beyond a bound is refused with its name in the header `X-Limit`, and"
    yield "`openclaw_limit_hits_total{limit}` counts it. [Security](../security.md) explains the rest."
    yield ""
    yield from _table("limit", "value", "unit", "variable", "bounds")
    for row in rows(RuntimeConfig()):
        yield f"| `{row.name}` | {shown_value(row)} | {row.unit} | {_cell(row.variable)} | {_text(row.help)} |"


def metrics() -> Iterator[str]:
    """Yield the page of the metrics at ``GET /metrics``."""
    registry = CollectorRegistry()
    GatewayMetrics(registry)
    JudgeMetrics(registry)
    build_redactor("secrets", registry)
    yield "Prometheus metrics of the gateway and the judge, at `GET /metrics`."
    yield "[Metrics of a step](step_metrics.md) are those of training."
    yield ""
    yield from _table("metric", "type", "labels", "meaning")
    for collector in sorted(registry._collector_to_names, key=lambda each: each._name):  # type: ignore[attr-defined]
        (family,) = collector.describe()  # type: ignore[attr-defined]
        name = family.name + ("_total" if family.type == "counter" else "")
        labels = ", ".join(f"`{label}`" for label in collector._labelnames)  # type: ignore[attr-defined]
        yield f"| `{name}` | {family.type} | {labels} | {_text(family.documentation)} |"


def step_metrics() -> Iterator[str]:
    """Yield the page of the metrics that a run logs about its steps."""
    yield "Every run writes these to `metrics.jsonl` and its trackers, each as far as the run has it."
    yield "[Is it learning?](../operations.md#is-it-learning) says which to look at. A word in braces stands"
    yield "for a part that differs. Plugins add metrics of their own."
    for title, axis, metrics in STEP_METRICS:
        yield ""
        yield f"## {title}"
        yield ""
        yield f"Step axis: `{axis}`."
        yield ""
        yield from _table("metric", "unit", "meaning")
        for metric in metrics:
            yield f"| `{metric.name}` | {metric.unit} | {metric.meaning} |"


def pages() -> dict[Path, str]:
    """Return the text of every reference page by its file, those of folders included."""
    bodies = {
        "launcher_variables": ("Variables of the launcher", launcher_variables()),
        "runtime_variables": ("Variables of the runtime", runtime_variables()),
        "agent_variables": ("Variables of agents", agent_variables()),
        "profiles": ("Profiles", profiles()),
        "names": ("Names of other guides", names()),
        **{page: (title, flags(page)) for page, (title, _) in FLAG_PAGES.items()},
        **{page: (title, plugin_clauses(page)) for page, (title, _) in CLAUSE_PAGES.items()},
        "routes": ("Routes", routes()),
        "limits": ("Limits of the gateway", limits()),
        "metrics": ("Metrics of the gateway and the judge", metrics()),
        "step_metrics": ("Metrics of a step", step_metrics()),
    }
    return {FOLDER / f"{name}.md": _page(title, lines) for name, (title, lines) in bodies.items()} | folder_pages()


def _page(title: str, lines: Iterable[str]) -> str:
    text = "\n".join([f"# {title}", "", SOURCE, "", *lines]) + "\n"
    return text.replace(f"{REPOSITORY}/", "")


def written_pages() -> set[Path]:
    """Return the pages on disk that this program wrote."""
    return {*FOLDER.glob("*.md"), *REPOSITORY.glob(f"*/{OWN_PAGE}")}


def main() -> None:
    """Write every page, and delete pages that nothing writes any more."""
    written = pages()
    FOLDER.mkdir(exist_ok=True)
    for old in written_pages() - written.keys():
        old.unlink()
    for path, text in written.items():
        path.write_text(text)
        print(path.relative_to(REPOSITORY))


if __name__ == "__main__":
    main()
