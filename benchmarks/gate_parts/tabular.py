"""A policy small enough for thousands of updates per second: it chooses one of a few styles for a prompt.

A prompt is a vector of features x, and the policy is a softmax over styles, log p(y | x) = log softmax(W x)_y. A reply has
`TOKENS` tokens, of which the style decides one, so its score is log p(y | x) / `TOKENS`. The user likes some of the styles; the judge
errs in a share of its verdicts. A step is policy gradient with a baseline and Adam. The decisions are the product's
(`openclaw.gate.decision`); the window of probes is kept as the ledger keeps it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from openclaw.config.runtime_variables import GateVariables
from openclaw.gate.decision import Evidence, Scored, decide_on
from openclaw.ledger.decisions import EARLY, LATE, QUIET
from openclaw.ledger.probes import in_turn, reservoir_order

FEATURES, STYLES, LIKED, TOKENS = 9, 6, 2, 30
JUDGE_ERRORS = 0.1
RIVAL = "rival"
WINDOW = 64
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Case:
    """A run: batches with flipped verdicts, whether the gate decides, and from when the user likes the other styles.

    ``owners`` people share the taste. From the batch ``rival_from`` on half of the replies are to one who likes the others.
    """

    seed: int
    updates: int = 40
    flipped: tuple[int, ...] = ()
    gated: bool = True
    new_taste_from: int | None = None
    accepts: bool = False
    batch: int = 16
    rate: float = 0.03
    owners: int = 1
    rival_from: int | None = None


@dataclass
class Run:
    """What happened: liked share of the served policy after each batch (exact, on held-out prompts), and refusals."""

    liked: list[float] = field(default_factory=list[float])
    refused: list[int] = field(default_factory=list[int])
    compared: int = 0
    accepted_at: list[int] = field(default_factory=list[int])


@dataclass(frozen=True)
class Reply:
    """A judged reply."""

    number: int
    prompt: Floats
    style: int
    score: int
    owner: str = ""


class Loop:
    """Owns the policy and the sets of samples and probes."""

    def __init__(self, case: Case, bounds: GateVariables) -> None:
        self._case, self._bounds = case, bounds
        self._rng = np.random.default_rng(case.seed)
        self._weights = self._rng.normal(0, 0.3, (STYLES, FEATURES))
        self._weights[:LIKED, 0] -= 1.0  # what the user likes is rare at first
        self._moments = (np.zeros_like(self._weights), np.zeros_like(self._weights))
        self._steps = 0
        self._held_out = self._prompts(2000)
        self._replies = 0
        self._samples: list[Reply] = []
        self._probes: list[Reply] = []
        self._trained: list[Reply] = []
        self._quiet = 0
        self._rewards: list[int] = []
        self._earlier: dict[str, dict[str, float]] = {}
        self._streak: list[list[Reply]] = []
        self._from, self._known = 0, 0

    def _prompts(self, count: int) -> Floats:
        found = self._rng.normal(0, 1, (count, FEATURES))
        found[:, 0] = 1.0
        return found

    def _log_probs(self, weights: Floats, prompts: Floats) -> Floats:
        logits = prompts @ weights.T
        top = logits.max(-1, keepdims=True)
        return logits - top - np.log(np.exp(logits - top).sum(-1, keepdims=True))

    def liked(self) -> float:
        """Return the exact share of liked replies, by the first taste."""
        return float(np.exp(self._log_probs(self._weights, self._held_out))[:, :LIKED].sum(-1).mean())

    def _collect(self, batch: int) -> None:
        """Judge replies until a batch is there; a share of them become probes."""
        while len(self._samples) < self._case.batch:
            (prompt,) = self._prompts(1)
            chances = np.exp(self._log_probs(self._weights, prompt[None]))[0]
            style = int(self._rng.choice(STYLES, p=chances / chances.sum()))
            owner = self._owner(batch)
            changed = self._case.new_taste_from is not None and batch >= self._case.new_taste_from
            changed = changed or owner == RIVAL
            right = 1 if (style < LIKED) != changed else -1
            wrong = (self._rng.random() < JUDGE_ERRORS) != (batch in self._case.flipped)
            self._replies += 1
            reply = Reply(self._replies, prompt, style, -right if wrong else right, owner)
            probe = self._case.gated and self._rng.random() < self._bounds.gate_share
            (self._probes if probe else self._samples).append(reply)

    def _owner(self, batch: int) -> str:
        if self._case.rival_from is not None and batch >= self._case.rival_from and self._rng.random() < 0.5:
            return RIVAL
        return f"owner-{self._rng.integers(self._case.owners)}" if self._case.owners > 1 else ""

    def _step(self, replies: list[Reply]) -> Floats:
        """Return the weights after a step of Adam on the policy gradient."""
        recent = self._rewards[-WINDOW:]
        baseline = sum(recent) / max(len(recent), 8)
        gradient = np.zeros_like(self._weights)
        for reply in replies:
            chances = np.exp(self._log_probs(self._weights, reply.prompt[None]))[0]
            towards = -chances
            towards[reply.style] += 1
            gradient -= (reply.score - baseline) * np.outer(towards, reply.prompt) / len(replies)
        first, second = self._moments
        first, second = 0.9 * first + 0.1 * gradient, 0.98 * second + 0.02 * gradient**2
        self._trial = (first, second)
        scale = np.sqrt(second / (1 - 0.98 ** (self._steps + 1))) + 1e-8
        return self._weights - self._case.rate * first / (1 - 0.9 ** (self._steps + 1)) / scale

    def _evidence(self, candidate: Floats, batch: list[Reply]) -> Evidence:
        ends = [sorted(each.number for each in replies)[(len(replies) - 1) // 2] for replies in (batch, *self._streak)]
        old = max(self._from + EARLY, (self._from + ends[0]) // 2, ends[0] - LATE)
        end = max(min(*ends, old), self._known + 1)
        ordered = [
            each
            for group in (self._probes, self._trained)
            for each in sorted(group, key=lambda each: reservoir_order(each.number))
            if self._from <= each.number < end
        ]
        kept = [
            each
            for score in (1, -1)
            for each in islice(
                in_turn([each for each in ordered if each.score == score], lambda each: each.owner),
                self._bounds.gate_probes,
            )
        ]
        if not kept:
            return Evidence()
        prompts, rows = np.stack([each.prompt for each in kept]), np.arange(len(kept))
        styles = np.array([each.style for each in kept])
        before, after = (self._log_probs(w, prompts)[rows, styles] / TOKENS for w in (self._weights, candidate))
        scored = [
            Scored(str(each.number), str(each.number), each.score > 0, False, float(old), float(new), each.owner)
            for each, old, new in zip(kept, before, after, strict=True)
        ]
        *earlier, serving = self._earlier or [""]
        found = Evidence(scored, earlier={version: self._earlier[version] for version in earlier})
        self._earlier.setdefault(serving, {}).update({each.turn_id: each.serving for each in scored})
        return found

    def run(self) -> Run:
        """Take all updates."""
        found = Run([self.liked()])
        for batch in range(self._case.updates):
            self._collect(batch)
            replies, self._samples = self._samples[: self._case.batch], self._samples[self._case.batch :]
            candidate = self._step(replies)
            evidence = self._evidence(candidate, replies)
            finding = decide_on(evidence, self._bounds)
            found.compared += not finding.too_few
            if finding.accepted or not self._case.gated:
                self._accept(batch, candidate, evidence, replies)
            else:
                found.refused.append(batch)
                self._quiet = 0
                self._streak.append(replies)
                if self._case.accepts and len(self._streak) >= self._bounds.gate_offer:
                    self._release()
                    found.accepted_at.append(batch)
            found.liked.append(self.liked())
        return found

    def _accept(self, batch: int, candidate: Floats, evidence: Evidence, replies: list[Reply]) -> None:
        self._weights, self._moments, self._steps = candidate, self._trial, self._steps + 1
        self._trained += replies
        self._quiet += 1
        if self._quiet >= QUIET:
            self._streak = []
        self._rewards += [each.score for each in replies]
        self._earlier[str(batch)] = {each.turn_id: each.candidate for each in evidence.scored}
        while len(self._earlier) > self._bounds.gate_memory:
            del self._earlier[next(iter(self._earlier))]

    def _release(self) -> None:
        """Do what `Ledger.decisions.accept_refused` does."""
        first = sorted(each.number for each in self._streak[0])
        self._from, self._known = first[(len(first) - 1) // 2], self._replies
        self._samples = [*(each for replies in self._streak for each in replies), *self._samples]
        self._streak, self._earlier, self._quiet = [], {}, 0


def run(case: Case, **bounds: float) -> Run:
    """Run a case with the default bounds, except those given."""
    return Loop(case, replace(GateVariables(), **bounds)).run()
