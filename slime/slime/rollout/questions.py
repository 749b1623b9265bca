"""How a ``--before-push-path`` plugin asks two versions of the policy: questions wait here until the driver brings the answers.

The plugin runs in a thread of the rollout manager; the weights are in the training ranks, which only the driver calls.

Guarantees: one question is open at a time. A question whose trainer is gone raises `QuestionsEndedError` in the plugin, so its
thread ends.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import NamedTuple

from slime.exceptions import PluginError, TrainerError
from slime.rollout.before_push import Answer, Policies, Probe
from slime.rollout.canary import Canary


class QuestionsEndedError(TrainerError):
    """Nobody answers any more: the trainer died or the run ends."""


class Question(NamedTuple):
    """Probes for the weights that are ``served``, or for the candidate; without any: one engine is to get the candidate."""

    served: bool
    probes: list[Probe]


class Questions:
    """The questions of one decision. Thread-safe."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._question: Question | None = None
        self._answers: list[Answer] | None = None
        self._canary: Canary | None = None
        self._ended = ""

    def policies(self, serving: str, candidate: str, *, canary: bool) -> Policies:
        """Return what the plugin gets; ``serving`` and ``candidate`` are weight versions, ``canary``: an engine may be first."""
        return Policies(AskedPolicy(self, True, serving), AskedCandidate(self, candidate, canary=canary))

    def ask(self, question: Question) -> list[Answer]:
        """Wait for the answers to ``question``; called by the plugin's thread.

        Raises:
            QuestionsEndedError: there will be none.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._question is None or self._ended)
            self._check()
            self._question, self._answers = question, None
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._answers is not None or self._ended)
            self._check()
            answers, self._answers, self._question = self._answers, None, None
            self._changed.notify_all()
            assert answers is not None
            return answers

    def next(self) -> Question | None:
        """Wait for a question that lacks answers and return it; None once there will be no more."""
        with self._changed:
            self._changed.wait_for(lambda: self._ended or (self._question is not None and self._answers is None))
            return None if self._ended else self._question

    def first_engine(self) -> Canary:
        """Wait until one engine has the candidate; called by the plugin's thread.

        Raises:
            QuestionsEndedError: none will.
        """
        self.ask(Question(False, []))
        assert self._canary is not None
        return self._canary

    def answer(self, answers: list[Answer], canary: Canary | None = None) -> None:
        """Give the answers to the open question, or the engine that has the candidate."""
        with self._changed:
            self._answers, self._canary = answers, canary
            self._changed.notify_all()

    def end(self, why: str) -> None:
        """Let nobody wait any longer; the first reason stays."""
        with self._changed:
            self._ended = self._ended or why
            self._changed.notify_all()

    def _check(self) -> None:
        if self._ended:
            raise QuestionsEndedError(self._ended)


class AskedPolicy:
    """One version of the policy, which the training ranks answer for."""

    def __init__(self, questions: Questions, served: bool, version: str) -> None:
        self._questions = questions
        self._served = served
        self.version = version

    def ask(self, probes: Sequence[Probe]) -> list[Answer]:
        """Return one answer per probe, in order; see `slime.rollout.before_push.Policy`.

        Raises:
            PluginError: a probe has no prompt, or asks for a negative number of tokens.
            QuestionsEndedError: the trainer died or the run ends.
        """
        plain = [Probe(list(probe.prompt_ids), list(probe.reply_ids), probe.max_new_tokens) for probe in probes]
        for number, probe in enumerate(plain):
            if not probe.prompt_ids or probe.max_new_tokens < 0:
                raise PluginError(
                    f"probe {number} has {len(probe.prompt_ids)} prompt tokens and max_new_tokens {probe.max_new_tokens}; "
                    "give at least one prompt token, and 0 or more new ones"
                )
        return self._questions.ask(Question(self._served, plain)) if plain else []


class AskedCandidate(AskedPolicy):
    """The version that may serve."""

    def __init__(self, questions: Questions, version: str, *, canary: bool) -> None:
        super().__init__(questions, False, version)
        self._may_be_first = canary

    def on_one_engine(self) -> Canary:
        """Return the engine that has the candidate before the others; see `slime.rollout.before_push.Candidate`.

        Raises:
            PluginError: the run sets no engine apart.
            QuestionsEndedError: the trainer died or the run ends.
        """
        if not self._may_be_first:
            raise PluginError("no engine may be first without --canary-engine; add it, or do not ask for one")
        return self._questions.first_engine()
