"""``run_gui_agent.sh``: a model behind any OpenAI endpoint plays held-out screen tasks; success is told for each domain.

The screens, the tool and the bound on pictures are those of training. Guarantees: an episode that the infrastructure lost is
played once more and then left out, never counted as a failure. The key comes from ``OPENAI_API_KEY`` and is not printed.
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

from agentrl.client.chat import Endpoint
from agentrl.environment import Environment, Task
from agentrl.exceptions import AgentError, ConfigError, InfraError, InvalidError
from agentrl.processes.ledger import ProcessLedger
from agentrl.processes.owned import Processes
from agentrl.protocol import Observation
from agentrl.registry import load_environment
from agentrl.tasks.gui.source import GuiSource, domain_of
from openclaw.exceptions import ConfigError as VariableError
from slime.utils.command_line import CommandLine

Message = dict[str, Any]
NO_PICTURE = {"type": "text", "text": "[an older picture is left out]"}
TRIES = 2
ANSWER_S = 600.0


@dataclass(frozen=True)
class Played:
    """One episode; ``score`` is None if the infrastructure lost it."""

    task: str
    score: float | None
    turns: int
    format_errors: int
    detail: str


async def play(model: Endpoint, environment: Environment, task: Task, max_steps: int, pictures: int) -> Played:
    """Play one episode; the caller closes the environment.

    Args:
        model: that replies.
        environment: for the task.
        task: to play.
        max_steps: most replies.
        pictures: newest pictures that the model sees.

    Raises:
        ConfigError: the endpoint fails.
        InfraError: the screen failed.
    """
    begin = await environment.reset(task, 0)
    messages: list[Message] = [
        {"role": "system", "content": begin.data["system"]},
        {"role": "user", "content": shown(begin)},
    ]
    turns = errors = 0
    for _ in range(max_steps):
        reply = await model.reply(with_newest_pictures(messages, pictures), begin.data.get("tools"))
        messages.append(reply)
        turns += 1
        calls = reply.get("tool_calls") or []
        try:
            if len(calls) != 1:
                raise InvalidError(f"the reply has {len(calls)} calls; write exactly one", code="malformed_action")
            result = await environment.step(action_of(calls[0]))
        except InvalidError as error:
            errors += 1
            said = f"error: {error.message}"
            messages += [{"role": "tool", "tool_call_id": call["id"], "content": said} for call in calls]
            messages += [] if calls else [{"role": "user", "content": said}]
            continue
        if result.done or result.truncated:
            break
        messages.append({"role": "tool", "tool_call_id": calls[0]["id"], "content": "done"})
        messages.append({"role": "user", "content": shown(result.observation)})
    verdict = await environment.evaluate()
    return Played(task.id, verdict.score, turns, errors, verdict.detail)


def shown(observation: Observation) -> list[Message]:
    """Return an observation as parts of a message."""
    pictures = [
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{each}"}} for each in observation.images
    ]
    return [*pictures, *([{"type": "text", "text": observation.text}] if observation.text else [])]


def with_newest_pictures(messages: Sequence[Message], most: int) -> list[Message]:
    """Return messages in which a text stands for all but the newest pictures."""
    left, found = most, []
    for message in reversed(messages):
        content = message.get("content")
        if isinstance(content, list):
            parts: list[Message] = []
            for part in reversed(content):
                picture = part["type"] == "image_url"
                parts.append(NO_PICTURE if picture and left <= 0 else part)
                left -= picture
            message = {**message, "content": parts[::-1]}
        found.append(message)
    return found[::-1]


def action_of(call: Mapping[str, Any]) -> dict[str, Any]:
    """Return a call as an action of the environment.

    Raises:
        InvalidError: its arguments are no JSON object.
    """
    given = call["function"].get("arguments") or "{}"
    try:
        arguments = json.loads(given) if isinstance(given, str) else given
    except ValueError:
        arguments = None
    if not isinstance(arguments, dict):
        raise InvalidError("the arguments are no JSON object; write one", code="malformed_action")
    return {"tool": call["function"]["name"], "arguments": arguments}


def table(played: Sequence[Played]) -> dict[str, dict[str, float]]:
    """Return ``{domain: {episodes, lost, success, format_errors}}``, and the same for ``all``."""
    groups: dict[str, list[Played]] = defaultdict(list)
    for each in played:
        groups[domain_of(each.task)].append(each)
        groups["all"].append(each)
    found: dict[str, dict[str, float]] = {}
    for domain, many in sorted(groups.items()):
        scores = [float(each.score >= 1) for each in many if each.score is not None]
        found[domain] = {
            "episodes": len(scores),
            "lost": len(many) - len(scores),
            "success": sum(scores) / len(scores) if scores else 0.0,
            "format_errors": sum(each.format_errors for each in many),
        }
    return found


def build_parser() -> CommandLine:
    """Return the parser of the command line."""
    parser = CommandLine(
        prog="run_gui_agent.sh",
        description="Let a model play held-out screen tasks. TASK_TYPE and GUI_FAMILIES choose them; the key is OPENAI_API_KEY.",
    )
    add = parser.add_argument
    add("--base-url", default="http://127.0.0.1:30000/v1", metavar="URL", help="of the endpoint (%(default)s)")
    add("--model", default="default", help="name that the endpoint gets (%(default)s)")
    add("--tasks", type=int, default=20, metavar="N", help="number of tasks, of all domains in turn (%(default)s)")
    add("--max-steps", type=int, default=int(os.environ.get("MAX_GUI_STEPS") or os.environ.get("MAX_STEPS") or 15))
    add("--pictures", type=int, default=3, metavar="N", help="newest pictures that the model sees (%(default)s)")
    add("--parallel", type=int, default=2, metavar="N", help="episodes at a time (%(default)s)")
    add("--output", type=Path, metavar="FILE", help="write episodes and table there as JSON")
    add("--dry-run", action="store_true", help="check the tasks, ask nobody")
    return parser


async def play_all(options: argparse.Namespace, source: GuiSource, ids: Sequence[str]) -> list[Played]:
    """Play tasks, several at a time."""
    kind = load_environment(source.environment)
    offered = {task.id: task for task in kind.tasks()}
    slots = asyncio.Semaphore(options.parallel)
    with TemporaryDirectory() as folder, ThreadPoolExecutor(options.parallel) as threads:
        ledger = ProcessLedger(Path(folder) / "processes.sqlite")
        try:
            async with httpx.AsyncClient(timeout=ANSWER_S) as client:
                model = Endpoint(options.base_url, options.model, os.environ.get("OPENAI_API_KEY"), client)

                async def one(task_id: str) -> Played:
                    async with slots:
                        for left in reversed(range(TRIES)):
                            processes = Processes(ledger)
                            environment = kind(processes)
                            environment.lend_threads(threads)
                            try:
                                task = offered[task_id]
                                return await play(model, environment, task, options.max_steps, options.pictures)
                            except InfraError as error:
                                if not left:
                                    return Played(task_id, None, 0, 0, error.message)
                            finally:
                                await environment.close()
                                await processes.end()
                    raise AssertionError

                async with asyncio.TaskGroup() as group:
                    running = [group.create_task(one(each)) for each in ids]
                    for task in running:
                        task.add_done_callback(_told)
                return [task.result() for task in running]
        finally:
            ledger.close()


def _told(task: asyncio.Task[Played]) -> None:
    if not task.cancelled() and task.exception() is None:
        played = task.result()
        score = "lost" if played.score is None else f"{played.score:g}"
        print(f"{played.task}  {score}  {played.turns} turns  {played.detail}", flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return the exit status: 0 if it was played, 1 if every episode was lost, 2 for a mistake."""
    options = build_parser().parse_args(argv)
    try:
        for name in ("tasks", "max_steps", "pictures", "parallel"):
            if getattr(options, name) < 1:
                raise ConfigError(f"--{name.replace('_', '-')} {getattr(options, name)} is too small; write 1 or more")
        source = GuiSource.from_env()
        ids = source.ids("heldout")[: options.tasks]
        print(f"tasks    {len(ids)} of {source.task_type}\nendpoint {options.base_url}, {options.model}", flush=True)
        if options.dry_run:
            print("dry run: nobody was asked")
            return 0
        played = asyncio.run(play_all(options, source, ids))
    except ExceptionGroup as group:
        print(f"run_gui_agent.sh: {group.exceptions[0]}", file=sys.stderr)
        return 2
    except (ConfigError, VariableError, AgentError, OSError) as error:
        print(f"run_gui_agent.sh: {error}", file=sys.stderr)
        return 2
    found = table(played)
    for domain, numbers in found.items():
        print(f"{domain:28} {numbers['success']:6.1%} of {numbers['episodes']:g}, {numbers['lost']:g} lost")
    if options.output is not None:
        written = {"domains": found, "episodes": [asdict(each) for each in played]}
        options.output.write_text(json.dumps(written, indent=1) + "\n")
    return int(found["all"]["episodes"] == 0)


if __name__ == "__main__":
    sys.exit(main())
