"""What an attack is: a function that attacks a server and raises when it does not hold. `ATTACKS` has all of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import httpx

from tests.security.server import Server

Run = Callable[[Server], str]


@dataclass(frozen=True)
class Attack:
    """One attack.

    Attributes:
        finding: its name on the list of findings.
        sent: what the attacker sends.
        run: attacks the server and returns what happened.
        keys: whether it attacks a server with keys, or one without.
        long: whether only the command runs it.
        deaths: most engine deaths that hold; only a request that nobody can foresee may have any.
        real: whether it also means something before the real engine.
    """

    finding: str
    sent: str
    run: Run
    keys: bool = True
    long: bool = False
    deaths: int = 0
    real: bool = True

    @property
    def name(self) -> str:
        """The attack's name in the list of tests."""
        return f"{self.finding}-{self.run.__name__}"


ATTACKS: list[Attack] = []


def attack(finding: str, sent: str, **properties: Any) -> Callable[[Run], Run]:
    """Register a function as an attack; its docstring says what must hold."""

    def register(run: Run) -> Run:
        ATTACKS.append(Attack(finding, sent, run, **properties))
        return run

    return register


def happened(statuses: Iterable[object]) -> str:
    """Return how often each outcome occurred, such as ``3 x 400, 1 x 200``."""
    return ", ".join(f"{count} x {status}" for status, count in Counter(statuses).most_common())


def brief(response: httpx.Response) -> str:
    """Return an answer on one line."""
    return f"{response.status_code} {response.text[:160]}".replace("\n", " ")


def no_fault(response: httpx.Response, sent: str) -> int:
    """Return the status of an answer that blames the request, or answers it.

    Raises:
        AssertionError: the server blames itself.
    """
    assert response.status_code < 500, f"{sent}: {brief(response)}"
    return response.status_code


def refused(response: httpx.Response, sent: str) -> int:
    """Return the status of a refusal.

    Raises:
        AssertionError: the request was answered, or the server blames itself.
    """
    assert 400 <= response.status_code < 500, f"{sent}: {brief(response)}"
    return response.status_code
