"""Serves a checkpoint and runs small tasks on it: `bash openclaw-test/run_eval.sh --model-path P --eval-tasks conversation`.

Guarantees: stops what it started; records and trains nothing. Without ``--model-path`` it asks a running server. Exit status 1
if a request was refused, 2 if no request was possible.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import sys
import tempfile
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from asking import server_client
from eval_tasks import MAX_TOKENS, RUNS_CODE, TASKS, Ask
from rich.console import Console
from rich.progress import Progress

from openclaw.runtime.where import DEFAULT_URL
from openclaw.server.command import main as server_command
from openclaw.server.options import build_parser as server_parser
from slime.utils.command_line import CommandLine
from slime.utils.process import ChildProcess, spawn

if TYPE_CHECKING:
    from openai import AsyncOpenAI

START_SECONDS = 900.0
PARALLEL = 8


class EvalFailed(RuntimeError):
    """The server is unreachable or refused a request."""


def task_names(text: str) -> list[str]:
    """Parse ``conversation,coding``."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in names if name not in TASKS]
    if unknown or not names:
        raise argparse.ArgumentTypeError(f"unknown task {', '.join(unknown) or repr(text)}; use {', '.join(TASKS)}")
    return names


def build_parser() -> CommandLine:
    """Return the parser of the command line."""
    parser = CommandLine(
        prog="run_eval.sh",
        description="Serve a checkpoint and run small tasks on it. Other options go to python -m openclaw.server "
        "(--gpu-ids 0,1).",
    )
    add = parser.add_argument
    add("--model-path", metavar="P", help="serve this checkpoint folder first")
    add("--base-url", help=f"URL of the running server (default without --model-path: {DEFAULT_URL})")
    add(
        "--eval-tasks",
        type=task_names,
        help=f"comma-separated tasks out of {','.join(TASKS)} (default: all that may run)",
    )
    add("--num-problems", type=int, default=16, help="problems per task (default: %(default)s)")
    add("--allow-code-execution", action="store_true", help="run the Python that the model writes (needed for coding)")
    add("--report", type=Path, metavar="FILE", help="also write the figures as JSON")
    add("--dry-run", action="store_true", help="print the plan and start nothing")
    return parser


async def evaluate(
    client: AsyncOpenAI, model: str, tasks: Sequence[str], count: int, console: Console
) -> dict[str, float]:
    """Return the share of problems solved per task.

    Raises:
        EvalFailed: if a request is refused.
    """
    from openai import APIConnectionError, APIStatusError

    slots, run = asyncio.Semaphore(PARALLEL), uuid.uuid4().hex[:8]

    def asker(session: str) -> Ask:
        headers = {"X-Turn-Type": "side", "X-Session-Id": session}

        async def ask(messages: list[dict[str, Any]], **fields: Any) -> Any:
            completion = await client.chat.completions.create(
                model=model,
                messages=list(messages),  # type: ignore[arg-type]
                max_tokens=MAX_TOKENS,
                extra_headers=headers,
                **fields,
            )
            return completion.choices[0].message

        return ask

    async def solve(task: str, number: int) -> bool:
        async with slots:
            solved = await TASKS[task](asker(f"eval-{run}-{task}-{number}"), number)
        progress.advance(bar)
        return solved

    with Progress(console=console) as progress:
        bar = progress.add_task("asking", total=len(tasks) * count)
        try:
            solved = {task: await asyncio.gather(*(solve(task, number) for number in range(count))) for task in tasks}
        except APIConnectionError as error:
            raise EvalFailed(
                f"no server answers at {client.base_url}; start one, or write --model-path P to serve a checkpoint"
            ) from error
        except APIStatusError as error:
            raise EvalFailed(f"a request was refused: {error}") from error
    return {task: round(sum(hits) / count, 4) for task, hits in solved.items()}


def wait_ready(child: ChildProcess, url: str) -> None:
    """Return when the server answers."""
    import httpx

    deadline = time.monotonic() + START_SECONDS
    with httpx.Client(timeout=2.0, trust_env=False) as client:
        while time.monotonic() < deadline:
            if not child.alive():
                raise EvalFailed(f"the server ended with exit code {child.returncode}:\n{child.log_tail(12)}")
            with contextlib.suppress(httpx.TransportError):
                if client.get(f"{url}/healthz").is_success:
                    return
            time.sleep(0.5)
    raise EvalFailed(f"the server did not answer within {START_SECONDS:.0f} s")


async def ask_all(options: argparse.Namespace, base_url: str, console: Console) -> dict[str, float]:
    """Open a client and evaluate."""
    async with server_client(base_url, 600) as client:
        return await evaluate(client, "policy", options.eval_tasks, options.num_problems, console)


def main(argv: Sequence[str] | None = None) -> int:
    """Command line."""
    parser, console = build_parser(), Console(stderr=True)
    options, extra = parser.parse_known_args(argv)
    if options.model_path and options.base_url:
        parser.error("--model-path serves a checkpoint and --base-url names a running server; write one of them")
    if not options.model_path:
        options.base_url = options.base_url or DEFAULT_URL
    if options.eval_tasks is None:
        options.eval_tasks = [name for name in TASKS if options.allow_code_execution or name not in RUNS_CODE]
    if set(RUNS_CODE) & set(options.eval_tasks) and not options.allow_code_execution:
        parser.error(
            "the task coding runs Python that the model writes, with your rights: add --allow-code-execution, "
            "or leave it out with --eval-tasks conversation,tool-use"
        )
    if options.base_url and extra:
        parser.unknown(extra)
    if options.model_path:
        served = server_parser("run_eval.sh")
        served.further_flags = parser.known_flags()
        served.parse_args(extra)
    if options.dry_run:
        print(f"tasks    {', '.join(options.eval_tasks)}, {options.num_problems} problems each")
        if options.base_url:
            print(f"server   {options.base_url}\ndry run: the plan is valid, nothing was started")
            return 0
        return server_command(["--model-path", options.model_path, "--dry-run", *extra], "run_eval.sh")
    with tempfile.TemporaryDirectory() as folder:
        child = None
        try:
            base_url = options.base_url
            if not base_url:
                from slime.utils.http_utils import find_available_port

                port = find_available_port()
                command = [sys.executable, "-m", "openclaw.server", "--model-path", options.model_path]
                log = Path(folder) / "server.log"
                child = spawn([*command, "--port", str(port), *extra], log_path=log, name="server")
                wait_ready(child, f"http://127.0.0.1:{port}")
                base_url = f"http://127.0.0.1:{port}/v1"
            figures = asyncio.run(ask_all(options, base_url, console))
        except EvalFailed as error:
            print(f"run_eval.sh: {error}", file=sys.stderr)
            return 1
        finally:
            if child is not None:
                child.stop(30.0)
    values = {"model": options.model_path or options.base_url, "problems": options.num_problems, "solved": figures}
    print(json.dumps(values, indent=1))
    if options.report:
        options.report.write_text(json.dumps(values, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
