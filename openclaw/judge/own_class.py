"""A judge written in Python: ``OPENCLAW_JUDGE_CLASS=module.Class``.

    class Polite:
        def score(self, prompt, response, next_state):   # -1, 0, 1, or None for no vote
            return 1 if "thanks" in next_state[-1]["content"].lower() else None

``prompt`` is the request's messages, ``response`` the assistant message, ``next_state`` the messages after it. A class
with a method ``hint(prompt, response, next_state)``, which returns a text or None, also serves methods with hints.

Guarantees: the class runs in a thread, one call at a time. Anything but -1, 0 and 1 is an invalid vote; an exception is a
failure that is retried, never a score.
"""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

from groundwork.exceptions import ConfigError
from openclaw.judge.answers import SCORES
from openclaw.judge.hints import usable_hint
from openclaw.judge.interface import Question
from openclaw.ledger.records import JudgeKind, Vote
from openclaw.method import JudgePlan
from openclaw.method.loading import raised, resolve


class ClassJudge:
    """Calls an object with ``score`` and perhaps ``hint``."""

    def __init__(self, scorer: Any) -> None:
        """Create the judge over ``scorer``."""
        self._scorer = scorer
        self._lock = threading.Lock()

    async def votes(self, kind: JudgeKind, question: Question, count: int) -> list[Vote]:
        """Return ``count`` votes; see `openclaw.judge.interface.Judge.votes`."""
        return [await asyncio.to_thread(self._vote, kind, question) for _ in range(count)]

    async def answers(self) -> bool:
        """Return True: a class is always there."""
        return True

    async def close(self) -> None:
        """Do nothing: a class has no connections."""

    def _vote(self, kind: JudgeKind, question: Question) -> Vote:
        said = question.messages
        started = time.monotonic()
        ask = self._scorer.score if kind == "prm" else self._scorer.hint
        with self._lock:
            answer = ask(list(said.prompt), said.reply, list(said.next_state))
        seconds = time.monotonic() - started
        if kind == "prm":
            valid = not isinstance(answer, bool) and answer in SCORES
            return Vote(
                kind, repr(answer), int(answer) if valid else None, None, seconds, None if valid else "other_box"
            )
        hint = usable_hint(answer) if isinstance(answer, str) else None
        return Vote(kind, repr(answer), 1 if hint else -1, hint, seconds)


def load_class_judge(path: str, plan: JudgePlan) -> ClassJudge:
    """Return the judge of the class at ``module.Class``.

    Raises:
        ConfigError: if it cannot be built, or lacks what the method's plan asks for.
    """
    try:
        scorer = resolve(path)()
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(f"OPENCLAW_JUDGE_CLASS={path}: {path}() raised {raised(error)}") from error
    if not callable(getattr(scorer, "score", None)):
        raise ConfigError(f"OPENCLAW_JUDGE_CLASS={path} lacks: def score(self, prompt, response, next_state)")
    if plan.hint_votes and not callable(getattr(scorer, "hint", None)):
        raise ConfigError(
            f"OPENCLAW_JUDGE_CLASS={path}: the method asks for hints; add: def hint(self, prompt, response, next_state)"
        )
    return ClassJudge(scorer)
