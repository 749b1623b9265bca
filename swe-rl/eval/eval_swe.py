"""``run_swe_agent.sh --served``: a model behind any OpenAI-compatible server mends the repositories of a benchmark, and hidden tests judge.

Loop, limits, commands, sandboxes, grader and context policy are those of training. Guarantees: finished instances are kept, and a second start with the same
folder plays the others only. An instance that the infrastructure spoiled has no score, and is played again then. The key comes from OPENAI_API_KEY
and is written nowhere. No file has the solution in it.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
from generate_with_swe_remote import SweConfig
from swe_task import Task as SweTask

from agentrl.environment import Task
from agentrl.exceptions import AgentError
from agentrl.processes import Processes, ProcessLedger
from agentrl.protocol import Ending, Verdict
from agentrl.rollout.chat_policy import ChatPolicy, Endpoint, Lengths, Unpooled
from agentrl.rollout.play import Play
from agentrl.rollout.settings import Settings
from agentrl.sandbox.providers import NAMES, SandboxSettings, provider
from agentrl.tasks.swe.environment import SweEnvironment
from agentrl.tasks.swe.source import BENCHMARKS, LOCAL, SIMPLE, InstanceSource
from agentrl.web.options import count
from groundwork.chat_messages import Message
from groundwork.command_line import CommandLine
from groundwork.data_rows import json_objects
from groundwork.exceptions import ConfigError
from groundwork.processors import load_tokenizer

PROG = "run_swe_agent"
ANSWER_S = 600.0
NO_REPLY = Verdict(status="task_failed", score=0.0, detail="no reply")


@dataclass(frozen=True)
class Played:
    """A finished episode."""

    instance_id: str
    verdict: Verdict
    patch: str
    ending: Ending
    steps: int
    cuts: int
    malformed: int
    messages: list[Message] = field(repr=False)
    seconds: float = 0.0

    @property
    def resolved(self) -> bool:
        """Whether the issue is resolved."""
        return self.verdict.score == 1.0

    def result(self) -> dict[str, Any]:
        """Return the line of results."""
        return {
            "instance_id": self.instance_id,
            "resolved": self.resolved,
            "ending": self.ending,
            "steps": self.steps,
            "context_cuts": self.cuts,
            "malformed": self.malformed,
            "patch_characters": len(self.patch),
            "seconds": round(self.seconds, 2),
            "detail": self.verdict.detail,
        }


async def play(policy: ChatPolicy, settings: Settings, environment: SweEnvironment, name: str) -> Played:
    """Play an instance to its verdict, and close the environment.

    Raises:
        ConfigError: the server fails, or the instance has no repository here.
        AgentError: a sandbox failed.
    """
    try:
        played = await Play(policy, Unpooled(environment, Task(name)), settings, task_id=name).play()
        assert played is not None, "no chat is suspended"
        verdict = played.verdict or NO_REPLY
        counts = played.actions, played.cuts, played.malformed
        return Played(name, verdict, environment.patch, played.ending, *counts, played.messages)
    finally:
        await environment.close()


def lengths_of(tokenizer: str | None) -> Lengths:
    """Return how prompts are counted; by the chat template of a tokenizer's folder, if there is one."""
    if tokenizer is None:
        return Lengths(None)
    loaded = load_tokenizer(tokenizer)
    return Lengths(
        lambda messages: len(loaded.apply_chat_template(list(messages), add_generation_prompt=True, return_dict=False))
    )


def build_parser() -> CommandLine:
    """Return the parser of the command line."""
    parser = CommandLine(prog=PROG, description="Let a model mend the repositories of a benchmark.")
    add = parser.add_argument
    add(
        "--benchmark",
        metavar="NAME",
        default=os.environ.get("SWE_BENCHMARK"),
        help=f"which instances: {', '.join(BENCHMARKS)} (default: SWE_BENCHMARK, else all of --data, else {LOCAL}, of which the held-out ones are played)",
    )
    add(
        "--data",
        metavar="FOLDER",
        default=os.environ.get("SWE_BENCH_PATH"),
        help=f"folder of the instances, of all benchmarks but {LOCAL} and {SIMPLE} (default: SWE_BENCH_PATH)",
    )
    add(
        "--api-base",
        "--base-url",
        default="http://127.0.0.1:30000/v1",
        metavar="URL",
        help="of the server (%(default)s)",
    )
    add("--model", default="policy", help="name that the requests have (%(default)s)")
    add(
        "--output-dir",
        type=Path,
        default=Path("runs/swe-eval"),
        metavar="FOLDER",
        help="where results go (%(default)s)",
    )
    add("--max-instances", type=count, metavar="N", help="the first N only")
    add("--shuffle", action="store_true", help="in an order that is the same each time")
    add("--max-concurrent", type=count, default=4, metavar="N", help="episodes at a time (%(default)s)")
    add("--step-limit", type=count, metavar="N", help="most commands (default: SWE_STEP_LIMIT, 20)")
    add("--max-tokens", type=count, default=4096, metavar="N", help="most tokens of a reply (%(default)s)")
    add(
        "--context-length", type=count, default=32768, metavar="N", help="most tokens of prompt and reply (%(default)s)"
    )
    add(
        "--tokenizer",
        metavar="FOLDER",
        help="counts prompts exactly, as in training; else they are estimated from the server's counts",
    )
    add("--temperature", type=float, default=0.0, help="of the model (%(default)s)")
    add("--sandbox", choices=NAMES, default="bubblewrap", help="provider (%(default)s)")
    add("--sandbox-image", metavar="NAME", help="image where an instance names none")
    add("--dry-run", action="store_true", help="show the plan, start nothing")
    return parser


def source_of(options: Any, environment: Mapping[str, str] = os.environ) -> InstanceSource:
    """Return where the instances are from, by options and variables.

    Raises:
        ConfigError: a variable is invalid, there is no such benchmark, or it does not fit the folder.
    """
    given = {"SWE_BENCHMARK": options.benchmark or "", "SWE_BENCH_PATH": options.data or ""}
    source = InstanceSource.from_env({**environment, **given})
    return replace(source, step_limit=options.step_limit or source.step_limit)


def chosen(source: InstanceSource, shuffle: bool, most: int | None) -> list[str]:
    """Return the ids to play: the held-out ones where there are some.

    Raises:
        ConfigError: there are no instances.
    """
    ids = source.ids("heldout") if source.generated else source.ids()
    if shuffle:
        random.Random(0).shuffle(ids)
    return ids[:most]


def written(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the results that a folder has, by id.

    Raises:
        ConfigError: a line is damaged.
    """
    file = folder / "results.jsonl"
    try:
        return {row["instance_id"]: row for _, row in json_objects(file)} if file.is_file() else {}
    except (OSError, ValueError, KeyError) as error:
        raise ConfigError(
            f"{file} is damaged: {error}; remove the line, so that its episode is played again"
        ) from error


def keep(folder: Path, model: str, played: Played) -> None:
    """Write an episode's files, and its lines of results and predictions."""
    place = folder / played.instance_id.replace("/", "__")
    place.mkdir(parents=True, exist_ok=True)
    (place / "traj.json").write_text(json.dumps(played.messages, ensure_ascii=False, indent=1), encoding="utf-8")
    (place / "patch.diff").write_text(played.patch, encoding="utf-8", newline="\n")
    prediction = {"instance_id": played.instance_id, "model_name_or_path": model, "model_patch": played.patch}
    for name, row in (("predictions.jsonl", prediction), ("results.jsonl", played.result())):
        with (folder / name).open("a", encoding="utf-8") as file:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")


def summary(rows: Sequence[dict[str, Any]], lost: int) -> dict[str, Any]:
    """Return the figures of an evaluation."""
    played = len(rows)
    return {
        "instances": played,
        "lost": lost,
        "resolved": sum(row["resolved"] for row in rows),
        "resolve_rate": sum(row["resolved"] for row in rows) / played if played else None,
        "no_patch": sum(not row["patch_characters"] for row in rows),
        "mean_steps": sum(row["steps"] for row in rows) / played if played else None,
        "mean_seconds": sum(row["seconds"] for row in rows) / played if played else None,
    }


async def evaluate(options: Any, source: InstanceSource, ids: Sequence[str]) -> int:
    """Play the instances, write what came of them, and return how many the infrastructure spoiled.

    Raises:
        ConfigError: the server or a repository fails.
        AgentError: there is no sandbox on this machine.
    """
    settings = SweConfig().settings(SweTask.from_env(), source.step_limit)
    made = provider(SandboxSettings(options.sandbox, options.sandbox_image))
    await made.check()
    folder, lost = options.output_dir, 0
    folder.mkdir(parents=True, exist_ok=True)
    done = written(folder)
    places = asyncio.Semaphore(options.max_concurrent)
    with TemporaryDirectory(prefix="swe-eval-") as scratch:
        ledger = ProcessLedger(Path(scratch) / "processes.sqlite")
        processes = Processes(ledger)
        kind = type("Evaluated", (SweEnvironment,), {"provider": made, "source": source})

        async def one(client: httpx.AsyncClient, name: str) -> None:
            nonlocal lost
            async with places:
                key = os.environ.get("OPENAI_API_KEY") or None
                policy = ChatPolicy(
                    Endpoint(options.api_base, options.model, key, client),
                    {"max_tokens": options.max_tokens, "temperature": options.temperature},
                    context=options.context_length,
                    lengths=lengths_of(options.tokenizer),
                )
                began = time.monotonic()
                try:
                    played = replace(
                        await play(policy, settings, kind(processes), name), seconds=time.monotonic() - began
                    )
                except AgentError as error:
                    lost += 1
                    print(f"{name}: lost: {error}", flush=True)
                    return
                keep(folder, options.model, played)
                print(
                    f"{name}: {'resolved' if played.resolved else 'not resolved'}, {played.verdict.detail}", flush=True
                )

        try:
            async with httpx.AsyncClient(timeout=ANSWER_S, trust_env=False) as client, asyncio.TaskGroup() as group:
                for name in ids:
                    if name not in done:
                        group.create_task(one(client, name))
        except* ConfigError as errors:
            raise errors.exceptions[0] from None
        finally:
            await processes.end()
            ledger.close()
    return lost


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; the status is 1 if an instance was lost."""
    options = build_parser().parse_args(argv)
    try:
        source = source_of(options)
        ids = chosen(source, options.shuffle, options.max_instances)
        print(
            f"{len(ids)} instances of {source.benchmark or source.path or LOCAL}, {source.step_limit} commands each, {options.sandbox}; results in {options.output_dir}"
        )
        if options.dry_run:
            print("dry run: the plan is valid, nothing was started")
            return 0
        lost = asyncio.run(evaluate(options, source, ids))
        rows = [row for name, row in written(options.output_dir).items() if name in ids]
        figures = summary(rows, lost)
        (options.output_dir / "summary.json").write_text(json.dumps(figures, indent=1) + "\n")
        print(json.dumps(figures))
        return int(lost > 0)
    except (AgentError, ConfigError) as error:
        print(f"{PROG}: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
