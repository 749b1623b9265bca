"""``run_toolcall_agent.sh --served``: an episode of tool calls against any OpenAI endpoint, printed step by step.

The endpoint may be the gateway, an engine, or any other server with ``/v1/chat/completions``. Guarantees: tools run as in training, in their
sandboxes. The key comes from ``OPENAI_API_KEY`` and is neither printed nor shown to a tool. A trajectory that is written holds no right answer.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx

from agentrl.environment import Task
from agentrl.exceptions import AgentError, InvalidError
from agentrl.processes import Processes, ProcessLedger
from agentrl.protocol import JsonObject, Observation, StepResult, Verdict
from agentrl.rollout.chat_policy import ChatPolicy, Endpoint, Model, Unpooled
from agentrl.rollout.play import Observer, Play
from agentrl.rollout.settings import Settings
from agentrl.tasks.toolcall.config import ToolConfig, read_config
from agentrl.tasks.toolcall.environment import ToolCallEnvironment, needs, offered
from agentrl.tasks.toolcall.families import FAMILIES
from agentrl.tasks.toolcall.generate import parse_name
from groundwork.command_line import CommandLine
from groundwork.exceptions import ConfigError
from groundwork.private_files import OutputError, check_output

ANSWER_S = 600.0
NO_REPLY = Verdict(status="task_failed", score=0.0, detail="no reply")
EXAMPLE = "toolcall/order_total/heldout/0"


@dataclass(frozen=True)
class Step:
    """One call of a tool: what was asked, what came back, and the error's code if it was refused."""

    tool: str
    arguments: Any
    observation: str
    error: str | None = None


@dataclass(frozen=True)
class Trajectory:
    """An episode: the task, its steps, the last message and the verdict."""

    task: str
    question: str
    steps: list[Step]
    message: str
    verdict: Verdict


async def collect_toolcall_trajectory(
    model: Model, task: str, available_tools: ToolConfig | Path | None = None, max_turns: int | None = None
) -> Trajectory:
    """Play an episode and return it.

    Args:
        model: that replies.
        task: its name, such as ``toolcall/chain/heldout/0``.
        available_tools: a file of tools, or what `agentrl.tasks.toolcall.config.read_config` made of one; None: ``TOOLS_CONFIG``.
        max_turns: most replies; None: ``AGENTRL_MAX_TURNS``, as in training.

    Raises:
        ConfigError: the endpoint fails, or the tools cannot be used.
        InvalidError: the task needs a tool that is not available.
        InfraError: a sandbox or server failed.
    """
    config = ToolCallEnvironment.config() if available_tools is None else available_tools
    if isinstance(config, Path):
        config = read_config(config, ToolCallEnvironment.settings().allowed_urls)
    with TemporaryDirectory() as folder:
        ledger = ProcessLedger(Path(folder) / "processes.sqlite")
        processes = Processes(ledger)
        environment = _with_tools(config)(processes)
        try:
            return await _play(model, task, environment, max_turns)
        finally:
            await environment.close()
            await processes.end()
            ledger.close()


def _with_tools(tools: ToolConfig) -> type[ToolCallEnvironment]:
    """Return the environment with these tools, instead of those of the variables."""

    class WithTools(ToolCallEnvironment):
        @classmethod
        def config(cls) -> ToolConfig:
            return tools

    return WithTools


class _Watched(Unpooled, Observer):
    """Keeps and prints each call: what was asked, and what came back."""

    def __init__(self, environment: ToolCallEnvironment, task: Task, policy: ChatPolicy) -> None:
        super().__init__(environment, task)
        self._policy = policy
        self.question = ""
        self.steps: list[Step] = []

    async def reset(self, seed: int = 0, *, timeout_s: float) -> Observation:
        """See `Unpooled.reset`."""
        begin = await super().reset(seed, timeout_s=timeout_s)
        self.question = begin.text
        return begin

    async def step(self, action: JsonObject, *, timeout_s: float) -> StepResult:
        """See `Unpooled.step`."""
        name, arguments = action.get("tool"), action.get("arguments")
        try:
            result = await super().step(action, timeout_s=timeout_s)
        except InvalidError as error:
            self._keep(Step(str(name), arguments, error.message, error.code))
            raise
        if name is not None:
            self._keep(Step(str(name), arguments, result.observation.text))
        return result

    def write(self, kind: str, **fields: Any) -> None:
        """Keep the calls of a reply that could not be read."""
        if kind == "malformed":
            for call in self._policy.messages[-1].get("tool_calls", ()):
                function = call["function"]
                self._keep(Step(function["name"], function["arguments"], fields["message"], "malformed_action"))

    def _keep(self, step: Step) -> None:
        self.steps.append(step)
        print(f"{step.tool} {json.dumps(step.arguments)} -> {step.observation}", flush=True)


async def _play(model: Model, task: str, environment: ToolCallEnvironment, max_turns: int | None) -> Trajectory:
    limits = Settings.from_env()
    policy = ChatPolicy(model)
    watched = _Watched(environment, Task(task), policy)
    limits = replace(limits, max_turns=max_turns or limits.max_turns)
    played = await Play(policy, watched, limits, task_id=task, observer=watched).play()
    assert played is not None, "no chat is suspended"
    said = next((message["content"] for message in reversed(played.messages) if message["role"] == "assistant"), "")
    return Trajectory(task, watched.question, watched.steps, said, played.verdict or NO_REPLY)


def build_parser() -> CommandLine:
    """Return the parser of the command line."""
    parser = CommandLine(
        prog="run_toolcall_agent.sh",
        description="Play one tool task against an OpenAI endpoint. TOOLS_CONFIG names the tools; the key is OPENAI_API_KEY.",
    )
    add = parser.add_argument
    add("--base-url", default="http://127.0.0.1:30000/v1", metavar="URL", help="of the endpoint (%(default)s)")
    add("--model", default="default", help="name that the endpoint gets (%(default)s)")
    add(
        "--task",
        default=EXAMPLE,
        help="name of the task (%(default)s); python -m agentrl.tasks.toolcall ids lists more",
    )
    add("--max-turns", type=int, metavar="N", help="most replies (default: AGENTRL_MAX_TURNS, 30)")
    add("--output", type=Path, metavar="FILE", help="write the trajectory there as JSON")
    add("--dry-run", action="store_true", help="check task and tools, ask nobody")
    return parser


async def run(options: argparse.Namespace) -> Trajectory | None:
    """Play the episode of a command line; None after a dry run."""
    family, split, _ = parse_name(options.task)
    config = ToolCallEnvironment.config()
    if family not in offered(config, split):
        raise ConfigError(f"TOOLS_CONFIG lacks a tool of {family}; add it, or choose another --task")
    ToolCallEnvironment.settings().require_tool_calls()
    if options.max_turns is not None and options.max_turns < 1:
        raise ConfigError(f"invalid --max-turns {options.max_turns}: must be >= 1")
    if options.output is not None:
        try:
            check_output(options.output)
        except OutputError as error:
            raise ConfigError(f"--output {error}") from error
    names = [*needs(family), *config.own, *(server.label for server in config.servers)]
    print(
        f"task     {options.task}: {FAMILIES[family].__doc__}\ntools    {', '.join(names)}\nendpoint {options.base_url}"
    )
    if options.dry_run:
        print("dry run: nobody was asked")
        return None
    async with httpx.AsyncClient(timeout=ANSWER_S) as client:
        model = Endpoint(options.base_url, options.model, os.environ.get("OPENAI_API_KEY"), client)
        return await collect_toolcall_trajectory(model, options.task, config, options.max_turns)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return the exit status: 0 if the task was solved, 1 if not, 2 for a mistake."""
    options = build_parser().parse_args(argv)
    try:
        played = asyncio.run(run(options))
        if played is None:
            return 0
        if options.output is not None:
            options.output.write_text(
                json.dumps({**asdict(played), "verdict": played.verdict.model_dump()}, indent=1) + "\n"
            )
    except (ConfigError, AgentError, OSError) as error:
        print(f"run_toolcall_agent.sh: {error}", file=sys.stderr)
        return 2
    print(f"said     {played.message.strip()}\nverdict  {played.verdict.status}: {played.verdict.detail}")
    return int(played.verdict.status != "ok")


if __name__ == "__main__":
    sys.exit(main())
