"""``run_gui_agent.sh --served``: a model behind any OpenAI endpoint plays held-out screen tasks; success is told for each domain.

Screens, tool, loop and limits are those of training (`agentrl.rollout.play`). Guarantees: an episode that the infrastructure lost is played
again, ``AGENTRL_TRIES`` times in all, and then left out, never counted as a failure. The key comes from ``OPENAI_API_KEY``
and is not printed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
from gui_flags import EVAL_REPLY_TOKENS, EVAL_TEMPERATURE, GuiConfig
from gui_task import Task as GuiTask

from agentrl.environment import Environment, Task, load_environment
from agentrl.exceptions import AgentError, DeadlineError, InfraError
from agentrl.processes import Processes, ProcessLedger
from agentrl.protocol import Ending
from agentrl.rollout.chat_policy import ChatPolicy, Endpoint, Model, Unpooled
from agentrl.rollout.play import Play
from agentrl.rollout.settings import Settings
from agentrl.tasks.gui.source import GuiSource, domain_of
from groundwork.command_line import CommandLine, server_url
from groundwork.exceptions import ConfigError
from groundwork.private_files import OutputError, check_output

PROG = "run_gui_agent.sh"
ANSWER_S = 600.0
KNOWN = (ConfigError, AgentError)
"""Mistakes and failures that a person can act on; any other exception is a defect of the program, with its traceback."""
LIMITS = {"--max-steps": "max_steps", "--pictures": "pictures"}
"""Options whose defaults are variables of the launcher, with the fields of these."""


@dataclass(frozen=True)
class Played:
    """One episode; ``score`` is None if the infrastructure lost it."""

    task: str
    score: float | None
    turns: int
    format_errors: int
    ending: Ending
    detail: str


async def play(
    model: Model, settings: Settings, parameters: Mapping[str, Any], environment: Environment, task: Task
) -> Played:
    """Play one episode to its verdict; the caller closes the environment.

    Raises:
        ConfigError: the server fails, or the environment is none that can be played here.
        AgentError: the screen failed.
    """
    policy = ChatPolicy(model, parameters)
    played = await Play(policy, Unpooled(environment, task), settings, task_id=task.id).play()
    assert played is not None, "no chat is suspended"
    detail = played.verdict.detail if played.verdict else ""
    return Played(task.id, played.score, played.turns, played.malformed, played.ending, detail)


def table(played: Sequence[Played]) -> dict[str, dict[str, float]]:
    """Return ``{domain: {episodes, lost, success, format_errors}}``, and the same for ``all``."""
    groups: dict[str, list[Played]] = defaultdict(list)
    for item in played:
        groups[domain_of(item.task)].append(item)
        groups["all"].append(item)
    found: dict[str, dict[str, float]] = {}
    for domain, many in sorted(groups.items()):
        scores = [float(item.score >= 1) for item in many if item.score is not None]
        found[domain] = {
            "episodes": len(scores),
            "lost": len(many) - len(scores),
            "success": sum(scores) / len(scores) if scores else 0.0,
            "format_errors": sum(item.format_errors for item in many),
        }
    return found


def build_parser() -> CommandLine:
    """Return the parser of the command line."""
    parser = CommandLine(
        prog=PROG,
        description="Let a model play held-out screen tasks. TASK_TYPE and GUI_FAMILIES choose them; the key is OPENAI_API_KEY.",
    )
    add = parser.add_argument
    add(
        "--base-url",
        type=server_url,
        default="http://127.0.0.1:30000/v1",
        metavar="URL",
        help="of the endpoint (%(default)s)",
    )
    add("--model", default="default", help="name that the endpoint gets (%(default)s)")
    add("--tasks", type=int, default=20, metavar="N", help="number of tasks, of all domains in turn (%(default)s)")
    for flag, name in LIMITS.items():
        limit = GuiTask.declared(name)
        add(flag, type=int, metavar="N", help=f"{limit.help} (default: {limit.name}, {limit.default})")
    add(
        "--max-tokens",
        type=int,
        default=EVAL_REPLY_TOKENS,
        metavar="N",
        help="most tokens of a reply (%(default)s)",
    )
    add("--temperature", type=float, default=EVAL_TEMPERATURE, help="of the model (%(default)s)")
    add("--parallel", type=int, default=2, metavar="N", help="episodes at a time (%(default)s)")
    add("--output", type=Path, metavar="FILE", help="write episodes and table there as JSON")
    add("--dry-run", action="store_true", help="check tasks and limits, ask nobody")
    return parser


def settings_of(options: argparse.Namespace) -> Settings:
    """Return the limits of an episode: those of training, under the same variables.

    Raises:
        ConfigError: an option is unusable.
        ConfigError: a variable is.
        ConfigError: a limit is.
    """
    for flag, name in LIMITS.items():
        if getattr(options, _field(flag)) is None:
            setattr(options, _field(flag), GuiTask.declared(name).read(os.environ)[0])
    for flag in ("--tasks", *LIMITS, "--max-tokens", "--parallel"):
        if getattr(options, _field(flag)) < 1:
            raise ConfigError(f"{flag} {getattr(options, _field(flag))} is too small; write 1 or more")
    if not 0 <= options.temperature < float("inf"):
        raise ConfigError(f"invalid --temperature {options.temperature:g}: must be >= 0")
    if options.output is not None:
        try:
            check_output(options.output)
        except OutputError as error:
            raise ConfigError(f"--output {error}") from error
    limits = GuiConfig(gui_max_steps=options.max_steps, gui_max_image_history_length=options.pictures)
    return limits.settings(evaluation=True)


def _field(flag: str) -> str:
    return flag.removeprefix("--").replace("-", "_")


async def play_all(
    options: argparse.Namespace, settings: Settings, source: GuiSource, ids: Sequence[str]
) -> list[Played]:
    """Play tasks, several at a time.

    Raises:
        ConfigError: the endpoint fails.
        AgentError: an episode cannot be played, and another try would not help.
    """
    kind = load_environment(source.kind.environment)
    offered = {task.id: task for task in kind.tasks()}
    slots = asyncio.Semaphore(options.parallel)
    parameters = {"max_tokens": options.max_tokens, "temperature": options.temperature}
    with TemporaryDirectory() as folder, ThreadPoolExecutor(options.parallel) as threads:
        ledger = ProcessLedger(Path(folder) / "processes.sqlite")
        try:
            async with httpx.AsyncClient(timeout=ANSWER_S) as client:
                model = Endpoint(options.base_url, options.model, os.environ.get("OPENAI_API_KEY"), client)

                async def one(task_id: str) -> Played:
                    async with slots:
                        for left in reversed(range(settings.tries)):
                            processes = Processes(ledger)
                            environment = kind(processes)
                            environment.lend_threads(threads)
                            try:
                                return await play(model, settings, parameters, environment, offered[task_id])
                            except (InfraError, DeadlineError) as error:
                                if not left:
                                    return Played(task_id, None, 0, 0, Ending.LOST, error.message)
                            finally:
                                await environment.close()
                                await processes.end()
                    raise AssertionError

                try:
                    async with asyncio.TaskGroup() as group:
                        running = [group.create_task(one(item)) for item in ids]
                        for task in running:
                            task.add_done_callback(_told)
                except ExceptionGroup as failures:
                    known, defects = failures.split(KNOWN)
                    if known is None or defects is not None:
                        raise
                    raise known.exceptions[0] from None
                return [task.result() for task in running]
        finally:
            ledger.close()


def _told(task: asyncio.Task[Played]) -> None:
    if not task.cancelled() and task.exception() is None:
        played = task.result()
        score = "lost" if played.score is None else f"{played.score:g}"
        print(f"{played.task}  {score}  {played.turns} turns, {played.ending}  {played.detail}", flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return the exit status: 0 if it was played, 1 if every episode was lost, 2 for a mistake."""
    options = build_parser().parse_args(argv)
    try:
        settings = settings_of(options)
        source = GuiSource.from_env()
        ids = source.ids("heldout")[: options.tasks]
        print(f"tasks    {len(ids)} of {source.name}\nendpoint {options.base_url}, {options.model}")
        print(
            f"limits   {settings.max_turns} replies, {settings.max_malformed} format errors, "
            f"{settings.keep_pictures} pictures, {options.max_tokens} tokens of a reply",
            flush=True,
        )
        if options.dry_run:
            print("dry run: nobody was asked")
            return 0
        played = asyncio.run(play_all(options, settings, source, ids))
    except KNOWN as error:
        print(f"{PROG}: {error}", file=sys.stderr)
        return 2
    found = table(played)
    for domain, numbers in found.items():
        print(
            f"{domain:28} {numbers['success']:6.1%} of {numbers['episodes']:g}, {numbers['lost']:g} lost, "
            f"{numbers['format_errors']:g} format errors"
        )
    if options.output is not None:
        written = {"domains": found, "episodes": [asdict(item) for item in played]}
        options.output.write_text(json.dumps(written, indent=1) + "\n")
    return int(found["all"]["episodes"] == 0)


if __name__ == "__main__":
    sys.exit(main())
