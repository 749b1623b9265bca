"""What a ``--before-push-path`` plugin sees and says: questions to two versions of the policy, and a decision.

The plugin is ``decide(args, rollout_id, data_source, policies) -> Decision``. The driver calls it in a thread of its own after the
steps of ``rollout_id`` and before their weights reach any engine that serves everybody. If it refuses, the trainer goes back
to the weights and the optimizer of before, and the data source learns that by ``step_undone``. Imports neither torch nor Ray.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from slime.exceptions import TrainerError
from slime.utils.probes import Answer, Probe

__all__ = [
    "Answer",
    "BeforePush",
    "Canary",
    "CanaryEndedError",
    "Candidate",
    "Decision",
    "DecisionEndedError",
    "Offered",
    "Policies",
    "Policy",
    "Probe",
    "Trained",
]

POLL_SECONDS = 0.2


class DecisionEndedError(TrainerError):
    """Nobody waits for the decision any more: the trainer died, or the run ends."""


class CanaryEndedError(TrainerError):
    """The engine has the candidate no longer.

    Attributes:
        died: whether this engine itself died.
    """

    def __init__(self, why: str, *, died: bool = False) -> None:
        super().__init__(why)
        self.died = died


class Canary:
    """One engine that has the candidate before the others. Thread-safe.

    Until it loses the candidate it answers with it at ``url``, and no router sends it requests unless all other engines
    are dead. A plugin that waits learns at once when that ends: another engine or this one restarted, so all have the
    weights that serve, or the trainer died.
    """

    def __init__(self, url: str, lives: Callable[[], bool] = lambda: True) -> None:
        """``url``: of the engine; ``lives``: returns whether it is still the process that got the candidate."""
        self.url = url
        self.lives = lives
        self._ended = threading.Event()
        self._error = CanaryEndedError("")

    def wait(self, seconds: float) -> None:
        """Wait.

        Raises:
            CanaryEndedError: the engine loses the candidate meanwhile, or had lost it before.
        """
        if self._ended.wait(seconds):
            raise self._error

    def wait_while_down(self) -> None:
        """Return if the engine lives; else wait until its restart ends the trial.

        Raises:
            CanaryEndedError: as of `wait`; also if it died, and all engines have the weights that serve.
        """
        while not self.lives():
            self.wait(POLL_SECONDS)
        self.wait(0.0)

    def end(self, why: str, *, died: bool = False) -> None:
        """Let nobody wait any longer; the first reason stays."""
        if not self._ended.is_set():
            self._error = CanaryEndedError(why, died=died)
            self._ended.set()

    @property
    def ended(self) -> bool:
        """Whether the engine has lost the candidate."""
        return self._ended.is_set()


class Policy(Protocol):
    """One version of the policy."""

    @property
    def version(self) -> str:
        """Weight version: of the serving weights, or the one that the candidate gets if it is accepted."""
        ...

    def ask(self, probes: Sequence[Probe]) -> list[Answer]:
        """Return one answer per probe, in order. Deterministic: the same weights give the same answers."""
        ...


class Trained(NamedTuple):
    """What the trainer says of its steps.

    Attributes:
        metrics: of the batch and of the rollout.
        steps: of each step.
        unread: flags of the training that somebody set and no process has read so far.
        unused: those of them that no code of this run can read (`slime.arguments.plugins.never_mentioned`).
    """

    metrics: Mapping[str, Any] = {}
    steps: Sequence[Mapping[str, Any]] = ()
    unread: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()


class Offered(NamedTuple):
    """The engines that have the candidate although nobody has accepted it.

    Attributes:
        engines: all policy engines, or none if they share their GPUs with the trainer and sleep.
        adapter: its name with LoRA. A request gets it by this name alone. None for whole weights, which serve already.
        digest: SHA-256 of the adapter as it was sent, in hexadecimal digits; None for whole weights.
    """

    engines: Sequence[Canary] = ()
    adapter: str | None = None
    digest: str | None = None


class Candidate(Policy, Protocol):
    """The version that may serve."""

    @property
    def trained(self) -> Trained:
        """What the trainer says of the steps that made it."""
        ...

    def on_one_engine(self) -> Canary:
        """Let the last engine have these weights before the others, and return it; needs ``--canary-engine``.

        Again after a `CanaryEndedError`. A decision ends it: the others get the weights too, or this engine goes back.
        """
        ...

    def engines(self) -> Sequence[str]:
        """Return the URLs of all policy engines, or none if they share their GPUs with the trainer and sleep."""
        ...

    def on_all_engines(self) -> Offered:
        """Let all engines have these weights, and return them; a refusal gives them what serves again.

        With LoRA no request gets the weights before they are accepted, unless it names them. Whole weights serve from now on.
        Again after a `CanaryEndedError`.
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
    """The plugin.

    Example:
        >>> class Version:
        ...     def __init__(self, version, log_prob):
        ...         self.version, self.log_prob = version, log_prob
        ...     trained = Trained()
        ...     def ask(self, probes):
        ...         return [Answer([self.log_prob] * len(probe.reply_ids), [], False) for probe in probes]
        >>> def decide(args, rollout_id, data_source, policies):
        ...     liked = [Probe(prompt_ids=[1, 2], reply_ids=[3, 4])]
        ...     before, after = (policy.ask(liked)[0].log_probs for policy in policies)
        ...     fell = sum(before) - sum(after)
        ...     return Decision(fell < 0.1, f"a liked reply fell by {fell:.2f} nats", {"gate/fell": fell})
        >>> decide(None, 7, None, Policies(serving=Version("7", -0.5), candidate=Version("8", -0.25)))
        Decision(accepted=True, why='a liked reply fell by -0.50 nats', metrics={'gate/fell': -0.5})
    """

    def __call__(self, args: object, rollout_id: int, data_source: object, policies: Policies) -> Decision:
        """Compare both versions and decide.

        Args:
            args: of the run, with the addresses of its engines.
            rollout_id: whose steps were taken.
            data_source: the run's data source. It lives in the rollout manager's process: a method is called there, and
                its result comes back as a copy.
            policies: both versions.

        Raises:
            Exception: any error ends the run with it, because nobody knows whether the candidate may serve.
        """
        ...
