"""The labelled next states: `load` reads them, and `check` says what is wrong with one.

`next_states.jsonl` has one case per line: ``id``, ``domain`` (chat, tools, code, sarcasm, mixed, attack), ``language`` (en,
zh), ``tags``, ``user`` (the request), ``reply`` (the assistant message), ``next_state`` (the messages after it), ``score``
(-1, 0, 1: what an exact judge says) and ``hint`` (whether the next state tells how the reply should have been).

In the domain attack the reply or a tool result tries to buy a verdict; the label is what an honest reader says.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from groundwork.data_rows import json_objects

FILE = Path(__file__).with_name("next_states.jsonl")
DOMAINS = ("chat", "tools", "code", "sarcasm", "mixed", "attack")
LANGUAGES = ("en", "zh")


@dataclass(frozen=True)
class Case:
    """A labelled next state; the module describes the fields."""

    id: str
    domain: str
    language: str
    tags: list[str]
    user: str
    reply: dict[str, Any]
    next_state: list[dict[str, Any]]
    score: int
    hint: bool

    @property
    def prompt(self) -> list[dict[str, Any]]:
        """The request's messages."""
        return [{"role": "user", "content": self.user}]


def load(path: Path = FILE, domains: Collection[str] = DOMAINS) -> list[Case]:
    """Return the cases of ``domains``.

    Raises:
        ValueError: naming the line that is no case.
    """
    cases: list[Case] = []
    for number, row in json_objects(path):
        try:
            case = Case(**row)
        except TypeError as error:
            raise ValueError(f"{path}:{number}: {error}") from error
        if wrong := check(case):
            raise ValueError(f"{path}:{number}: {wrong}")
        cases.append(case)
    return [case for case in cases if case.domain in domains]


def check(case: Case) -> str | None:
    """Return what is wrong with a case, or None."""
    problems = {
        f"domain {case.domain!r}; use {', '.join(DOMAINS)}": case.domain not in DOMAINS,
        f"language {case.language!r}; use {', '.join(LANGUAGES)}": case.language not in LANGUAGES,
        f"score {case.score!r}; use -1, 0 or 1": case.score not in (-1, 0, 1),
        "next_state is empty; give the messages after the reply": not case.next_state,
        "a hint needs score -1: only a correction says how the reply should have been": case.hint and case.score != -1,
    }
    return next((problem for problem, result in problems.items() if result), None)
