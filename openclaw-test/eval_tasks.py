"""Sanity checks, not benchmarks: whether a checkpoint still talks, codes and calls tools.

* conversation: a fact told in the first message is known two messages later
* coding: a Python function passes its checks, run in a process of its own with limits on time and memory
* tool-use: the calculator is called with the right arguments

Guarantees: the same problems for every checkpoint; every request is a side turn, so nothing is trained on it.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable
from typing import Any

from tiny_models.words import NAMES

MAX_TOKENS = 1024
CODE_SECONDS = 5
CODE_BYTES = 2**30
# A separate interpreter sets the limits and then execs the program. In a process with threads (Ray, an HTTP client),
# Python code between fork and exec could deadlock on a lock that another thread held.
LIMITED = f"""
import os, resource, sys
resource.setrlimit(resource.RLIMIT_CPU, ({CODE_SECONDS}, {CODE_SECONDS}))
resource.setrlimit(resource.RLIMIT_AS, ({CODE_BYTES}, {CODE_BYTES}))
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
os.execv(sys.executable, [sys.executable, "-I", "-c", sys.argv[1]])
"""
OPERATORS: dict[str, Callable[[int, int], int]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
}
CALCULATOR = {
    "type": "function",
    "function": {
        "name": "calculator",
        "description": "Calculate with two integers.",
        "parameters": {
            "type": "object",
            "properties": {
                "left": {"type": "integer"},
                "operator": {"type": "string", "enum": list(OPERATORS)},
                "right": {"type": "integer"},
            },
            "required": ["left", "operator", "right"],
        },
    },
}
FUNCTIONS = (
    ("add_all(numbers) that returns the sum of a list", "add_all([1, 2, 3]) == 6 and add_all([]) == 0"),
    ("is_even(n) that says whether an integer is even", "is_even(4) and not is_even(7) and is_even(0)"),
    ("reverse(text) that returns a string backwards", "reverse('abc') == 'cba' and reverse('') == ''"),
    ("largest(numbers) that returns the largest of a list", "largest([3, 9, 2]) == 9 and largest([-4, -1]) == -1"),
    ("count_vowels(text) that counts a, e, i, o and u", "count_vowels('banana') == 3 and count_vowels('xyz') == 0"),
    ("factorial(n) that returns n!", "factorial(5) == 120 and factorial(0) == 1"),
    ("unique(items) that removes repeated items and keeps the order", "unique([2, 1, 2, 3, 1]) == [2, 1, 3]"),
    (
        "is_palindrome(text) that compares a word with itself backwards",
        "is_palindrome('level') and not is_palindrome('ab')",
    ),
)
Ask = Callable[..., Awaitable[Any]]
"""Takes messages and further fields of the request, returns the assistant's message."""


async def conversation(ask: Ask, number: int) -> bool:
    """Tell a name, talk about something else, ask for the name."""
    rng = random.Random(f"conversation/{number}")
    name = rng.choice(sorted(NAMES))
    messages: list[dict[str, Any]] = []
    for text in (f"Hello, my name is {name}.", "Name one color.", "What is my name?"):
        messages.append({"role": "user", "content": text})
        messages.append({"role": "assistant", "content": (await ask(messages)).content or ""})
    return name.lower() in messages[-1]["content"].lower()


async def coding(ask: Ask, number: int) -> bool:
    """Ask for a function and run its checks."""
    wish, check = FUNCTIONS[number % len(FUNCTIONS)]
    text = f"Write a Python function {wish}. Answer with one code block and nothing else."
    reply = (await ask([{"role": "user", "content": text}])).content or ""
    return await asyncio.to_thread(passes, code_of(reply), check)


async def tool_use(ask: Ask, number: int) -> bool:
    """Ask for a calculation with the calculator at hand."""
    rng = random.Random(f"tool-use/{number}")
    left, right, operator = rng.randint(100, 999), rng.randint(100, 999), rng.choice(list(OPERATORS))
    text = f"What is {left} {operator} {right}? Use the calculator."
    message = await ask([{"role": "user", "content": text}], tools=[CALCULATOR])
    wanted = OPERATORS[operator](left, right)
    return any(
        call.function.name == "calculator" and result(call.function.arguments) == wanted
        for call in message.tool_calls or []
    )


def code_of(reply: str) -> str:
    """Return the first code block of a reply, or the reply."""
    block = re.search(r"```(?:python)?\n(.*?)```", reply, re.DOTALL)
    return block.group(1) if block else reply


def passes(code: str, check: str) -> bool:
    """Return whether ``check`` holds after ``code``: isolated interpreter, empty environment, own folder and limits."""
    token = secrets.token_hex(16)  # a program that ends early has not passed
    program = f"{code}\n\nif ({check}) is True:\n    print({token!r})\n"
    with tempfile.TemporaryDirectory() as folder:
        try:
            done = subprocess.run(
                [sys.executable, "-I", "-c", LIMITED, program],
                cwd=folder, env={}, capture_output=True, timeout=2 * CODE_SECONDS, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return False
    return done.returncode == 0 and done.stdout.decode(errors="replace").endswith(f"{token}\n")


def result(arguments: str) -> int | None:
    """Return the calculator's result, or None for invalid arguments."""
    try:
        values = json.loads(arguments)
        return OPERATORS[values["operator"]](int(values["left"]), int(values["right"]))
    except (ValueError, KeyError, TypeError):
        return None


TASKS: dict[str, Callable[[Ask, int], Awaitable[bool]]] = {
    "conversation": conversation,
    "coding": coding,
    "tool-use": tool_use,
}
RUNS_CODE = ("coding",)
