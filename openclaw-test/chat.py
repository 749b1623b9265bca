"""A simulated user on the command line; `student_chat.py`, `ta_chat.py` and `teacher_chat.py` are one each, `user_chat.py` is any.

Talks to a running server and prints the conversations; exit status 1 if a request was refused.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path

from asking import server_client
from measure import MeasureError, gsm8k_items
from rich.console import Console
from simulated_users.llm import KEY_VARIABLE, MAX_TOKENS, LlmVoice, UserModelError, user_model_client
from simulated_users.reaction import PhraseVoice
from simulated_users.reading import UserFileError, built_in_names, find_user
from simulated_users.user import User
from simulated_users.workspace import Chat, Workspace
from student import Refused, Student

from groundwork.command_line import server_url
from openclaw.ledger.views import counted
from openclaw.runtime.where import DEFAULT_URL

AGENT_KEY = "OPENCLAW_GATEWAY_TOKEN"
"""The variable with which OpenClaw itself reads the token of its gateway."""
TIMEOUT_SECONDS, AGENT_TIMEOUT_SECONDS = 120.0, 600.0


async def converse(arguments: argparse.Namespace, user: User, console: Console) -> int:
    """Hold the conversations, ``arguments.sessions`` at a time, and print each at its end."""
    problems = gsm8k_items(arguments.dataset, arguments.num_problems) if arguments.dataset else ()
    agent = arguments.agent_url is not None
    form = Workspace(arguments.workspace, agent) if arguments.workspace else Chat()
    async with AsyncExitStack() as stack:
        client = (
            server_client(arguments.agent_url, AGENT_TIMEOUT_SECONDS, os.environ.get(AGENT_KEY))
            if agent
            else server_client(arguments.base_url, TIMEOUT_SECONDS)
        )
        await stack.enter_async_context(client)
        voice = PhraseVoice(user)
        if arguments.user_base_url:
            asked = await stack.enter_async_context(user_model_client(arguments.user_base_url))
            voice = LlmVoice(asked, arguments.user_model, user, arguments.user_max_tokens)
        student = Student(
            client,
            arguments.model,
            seed=arguments.seed,
            max_turns=arguments.max_turns,
            name=f"{user.name}-chat",
            user=user,
            voice=voice,
            form=form,
            problems=problems,
        )
        slots = asyncio.Semaphore(arguments.sessions)

        async def hold(number: int) -> None:
            async with slots:
                try:
                    messages = await student.session(number)
                except Refused as error:
                    console.print(f"[red]refused:[/] {error}")
                    return
            console.rule(f"session {number}")
            opinions = iter(student.opinions[number])
            for message in messages:
                liked = None if message["role"] == "user" else next(opinions, None)
                mark = {None: "", True: " +", False: " -"}[liked]
                console.print(f"[bold]{message['role']}{mark}[/]", highlight=False)
                console.print(message["content"], markup=False, highlight=False)

        await asyncio.gather(*(hold(number) for number in range(arguments.num_problems)))
    tally = student.tally
    rate = tally.recent_rule_rate
    console.rule()
    console.print(
        f"{counted(tally.sessions, 'session')}, {counted(tally.turns, 'turn')}, {counted(tally.complaints, 'complaint')}, "
        f"{tally.refused} refused; "
        f"first replies liked: {'-' if rate is None else f'{rate:.2f}'}; {form.described}"
    )
    return 1 if tally.refused else 0


def build_parser(prog: str, user: User | None) -> argparse.ArgumentParser:
    """Return the parser of the command of one user, or of any."""
    about = f"The simulated {user.name} talks" if user else "A simulated user of your choice talks"
    parser = argparse.ArgumentParser(prog=prog, description=f"{about} to a running server.")
    add = parser.add_argument
    if user is None:
        names = ", ".join(built_in_names())
        add("--user", required=True, metavar="NAME|FILE", help=f"a YAML file, or one of {names}")
    add("--base-url", type=server_url, default=DEFAULT_URL, help="URL of the server (default: %(default)s)")
    add("--model", default="tiny", help="model name in requests (default: %(default)s)")
    add("--dataset", type=Path, help="problems: a GSM8K file, JSON list or lines (default: generated)")
    add("--num-problems", type=int, default=8, help="number of sessions (default: %(default)s)")
    add("--max-turns", type=int, default=None, help="user messages per session (default: the user's, usually 3)")
    add("--sessions", type=int, default=4, help="concurrent sessions (default: %(default)s)")
    add("--seed", type=int, default=0, help="seed of problems and words (default: %(default)s)")
    add(
        "--user-base-url",
        type=server_url,
        metavar="URL",
        help=f"server of an LLM that writes the reactions; key: {KEY_VARIABLE}",
    )
    add("--user-model", default="default", help="model name in requests to it (default: %(default)s)")
    add("--user-max-tokens", type=int, default=MAX_TOKENS, help="limit on a reaction (default: %(default)s)")
    add("--workspace", type=Path, metavar="FOLDER", help="hand problems over as files: homework/NN.txt, answers/NN.txt")
    add(
        "--agent-url",
        type=server_url,
        metavar="URL",
        help=f"talk to OpenClaw's own gateway, whose agent reads and writes the files itself; key: {AGENT_KEY}",
    )
    return parser


def main(user: User | None, prog: str, argv: Sequence[str] | None = None) -> int:
    """Run the command line of a simulated user; without one, that of the user whom ``--user`` names."""
    parser = build_parser(prog, user)
    arguments = parser.parse_args(argv)
    if arguments.max_turns is not None and arguments.max_turns < 2:
        parser.error("--max-turns must be 2 or more: the first reply needs a reaction")
    if arguments.agent_url and not arguments.workspace:
        parser.error("--agent-url needs the folder that the agent works in: --workspace FOLDER")
    try:
        return asyncio.run(converse(arguments, user or find_user(arguments.user), Console()))
    except (MeasureError, UserFileError, UserModelError) as error:
        print(f"{prog}: {error}", file=sys.stderr)
        return 2
