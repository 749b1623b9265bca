"""A simulated user on the command line; `student_chat.py`, `ta_chat.py` and `teacher_chat.py` are one each.

Talks to a running server and prints the conversations; exit status 1 if a request was refused.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

from asking import server_client
from measure import MeasureError, gsm8k_items
from personas import Persona
from rich.console import Console
from student import Refused, Student

from openclaw.ledger.counted import counted
from openclaw.runtime.where import DEFAULT_URL


async def converse(arguments: argparse.Namespace, persona: Persona, console: Console) -> int:
    """Hold the conversations, ``arguments.sessions`` at a time, and print each at its end."""
    problems = gsm8k_items(arguments.dataset, arguments.num_problems) if arguments.dataset else ()
    async with server_client(arguments.base_url, 120) as client:
        student = Student(
            client,
            arguments.model,
            seed=arguments.seed,
            max_turns=arguments.max_turns,
            name=f"{persona.name}-chat",
            persona=persona,
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
            for message in messages:
                mark = "" if message["role"] == "user" else (" +" if persona.likes(message["content"]) else " -")
                console.print(f"[bold]{message['role']}{mark}[/]", highlight=False)
                console.print(message["content"], markup=False, highlight=False)

        await asyncio.gather(*(hold(number) for number in range(arguments.num_problems)))
    tally = student.tally
    rate = tally.recent_rule_rate
    console.rule()
    console.print(
        f"{counted(tally.sessions, 'session')}, {counted(tally.turns, 'turn')}, {counted(tally.complaints, 'complaint')}, "
        f"{tally.refused} refused; "
        f"first replies liked: {'-' if rate is None else f'{rate:.2f}'}"
    )
    return 1 if tally.refused else 0


def main(persona: Persona, prog: str, argv: Sequence[str] | None = None) -> int:
    """Run the command line of a simulated user."""
    parser = argparse.ArgumentParser(prog=prog, description=f"The simulated {persona.name} talks to a running server.")
    parser.add_argument("--base-url", default=DEFAULT_URL, help="URL of the server (default: %(default)s)")
    parser.add_argument("--model", default="tiny", help="model name in requests (default: %(default)s)")
    parser.add_argument("--dataset", type=Path, help="problems: a GSM8K file, JSON list or lines (default: generated)")
    parser.add_argument("--num-problems", type=int, default=8, help="number of sessions (default: %(default)s)")
    parser.add_argument("--max-turns", type=int, default=3, help="user messages per session (default: %(default)s)")
    parser.add_argument("--sessions", type=int, default=4, help="concurrent sessions (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="seed of problems and words (default: %(default)s)")
    arguments = parser.parse_args(argv)
    if arguments.max_turns < 2:
        parser.error("--max-turns must be 2 or more: the first reply needs a reaction")
    try:
        return asyncio.run(converse(arguments, persona, Console()))
    except MeasureError as error:
        print(f"{prog}: {error}", file=sys.stderr)
        return 2
