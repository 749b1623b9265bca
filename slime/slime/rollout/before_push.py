"""What a ``--before-push-path`` plugin sees and says: questions to two versions of the policy, and a decision.

The plugin is ``decide(args, rollout_id, data_source, policies) -> Decision``. It is called in the rollout manager's process after the
steps of ``rollout_id`` and before their weights reach any engine that serves everybody. If it refuses, the trainer goes back
to the weights and the optimizer of before, and the data source learns that by ``step_undone``. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from slime.rollout.canary import Canary, CanaryEndedError
from slime.utils.probes import Answer, Probe

__all__ = ["Answer", "BeforePush", "Canary", "CanaryEndedError", "Candidate", "Decision", "Policies", "Policy", "Probe"]


class Policy(Protocol):
    """One version of the policy."""

    @property
    def version(self) -> str:
        """Weight version: of the serving weights, or the one that the candidate gets if it is accepted."""
        ...

    def ask(self, probes: Sequence[Probe]) -> list[Answer]:
        """Return one answer per probe, in order. Deterministic: the same weights give the same answers."""
        ...


class Candidate(Policy, Protocol):
    """The version that may serve."""

    def on_one_engine(self) -> Canary:
        """Let the last engine have these weights before the others, and return it; needs ``--canary-engine``.

        Again after a `slime.rollout.canary.CanaryEndedError`. A decision ends it: the others get the weights too, or this engine goes back.
        """
        ...


class Policies(NamedTuple):
    """The two versions that are compared."""

    serving: Policy
    candidate: Candidate


class Decision(NamedTuple):
    """Whether the candidate may serve.

    Attributes:
        accepted: False: the steps are undone.
        why: one line for logs, trackers and the user.
        metrics: numbers for the trackers, with full names such as ``gate/margin``.
    """

    accepted: bool
    why: str
    metrics: dict[str, float] = {}


class BeforePush(Protocol):
    """The plugin."""

    def __call__(self, args: object, rollout_id: int, data_source: object, policies: Policies) -> Decision:
        """Compare both versions and decide.

        Raises:
            Exception: any error ends the run with it, because nobody knows whether the candidate may serve.
        """
        ...
