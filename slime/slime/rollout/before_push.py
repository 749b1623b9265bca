"""What a ``--before-push-path`` plugin sees and says: questions to two versions of the policy, and a decision.

The plugin is ``decide(args, rollout_id, data_source, policies) -> Decision``. It is called in the rollout manager's process after the
steps of ``rollout_id`` and before their weights reach any engine that serves everybody. If it refuses, the trainer goes back
to the weights and the optimizer of before, and the data source learns that by ``step_undone``. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol


class Probe(NamedTuple):
    """A question to one version of the policy.

    Attributes:
        prompt_ids: ``[P]`` token ids, P at least 1.
        reply_ids: ``[R]`` ids of a stored reply to score; empty: none.
        max_new_tokens: length limit of a greedy reply to the prompt, in tokens; 0: none.
    """

    prompt_ids: Sequence[int]
    reply_ids: Sequence[int] = ()
    max_new_tokens: int = 0


class Answer(NamedTuple):
    """The answer of one version to a probe.

    Attributes:
        log_probs: ``[R]`` natural log probabilities of the stored reply's tokens at temperature 1.
        greedy_ids: ids of the greedy reply, with the token that ends it; empty if none was asked for.
        finished: whether the greedy reply ended by itself, not at its length limit.
    """

    log_probs: list[float]
    greedy_ids: list[int]
    finished: bool


class Policy(Protocol):
    """One version of the policy."""

    @property
    def version(self) -> str:
        """Weight version: of the serving weights, or the one that the candidate gets if it is accepted."""
        ...

    def ask(self, probes: Sequence[Probe]) -> list[Answer]:
        """Return one answer per probe, in order. Deterministic: the same weights give the same answers."""
        ...


class Policies(NamedTuple):
    """The two versions that are compared."""

    serving: Policy
    candidate: Policy


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
