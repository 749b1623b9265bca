"""A policy of a few whole replies, trained through the real verdict path: rules, votes, quorum, ledger, baseline, loss.

Only the model, the user and the judge's words are simulated: a softmax over replies, a next state per reply, and an answer
of the judge for each next state. Seeded, and without engine or trainer process: one update takes about 0.1 s.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from openclaw_rl_method import BinaryRL
from prometheus_client import CollectorRegistry

from groundwork.chat_messages import Message
from lab.testkit.trainer import trainer_args
from openclaw.config.runtime import HYGIENE_RULES
from openclaw.judge.answers import read_vote
from openclaw.judge.hygiene import Limits
from openclaw.judge.interface import Question
from openclaw.judge.voting import JudgeMetrics
from openclaw.judge.worker import JudgeWorker, WorkerSettings
from openclaw.ledger.records import JudgeKind, Turn, VersionSpan, Vote
from openclaw.ledger.store import Ledger
from openclaw.training.rollout import prepare
from slime.algorithms.advantages import compute_advantages
from slime.algorithms.losses.policy_loss import policy_loss
from slime.algorithms.losses.reduce import make_reducer
from slime.rollout.train_data import convert

BATCH = 16
RATE = 0.1
TEMPERATURE = 0.6
END = 99
PATIENCE = 600.0
"""Seconds after which a run that hangs fails its test; no machine needs them."""


@dataclass(frozen=True)
class Reply:
    """A reply of the policy.

    Attributes:
        text: its words.
        reactions: (probability, next state) pairs; the words of a next state decide what the judge says.
        malformed_calls: of its tool calls, those that nobody can read.
        finish_reason: how it ends.
    """

    text: str
    reactions: Sequence[tuple[float, Message]]
    malformed_calls: int = 0
    finish_reason: str = "stop"


class CannedJudge:
    """Says of a next state what ``verdicts`` has for its text; one vote of three is unreadable, as of a real judge."""

    def __init__(self, verdicts: Mapping[str, str]) -> None:
        self._verdicts = verdicts
        self.asked = 0

    async def votes(self, kind: JudgeKind, question: Question, count: int) -> list[Vote]:
        self.asked += 1
        said = self._verdicts[question.next_state[-1][1]]
        answers = [f"The next state decides. \\boxed{{{said}}}"] * (count - 1) + ["I cannot tell."]
        return [read_vote(kind, answer, 0.0) for answer in answers]

    async def answers(self) -> bool:
        return True

    async def close(self) -> None:
        """Nothing to close."""


class Simulation:
    """A run of updates; `shares` are the replies' probabilities after each."""

    def __init__(
        self,
        folder: Path,
        replies: Sequence[Reply],
        start: Sequence[float],
        verdicts: Mapping[str, str],
        *,
        without: str = "",
        compares: bool = True,
        seed: int = 0,
    ) -> None:
        """Prepare a run.

        Args:
            folder: for the ledger.
            replies: what the policy can say.
            start: their probabilities.
            verdicts: score by the words of a next state.
            without: rule of hygiene to leave out.
            compares: subtract the baseline.
            seed: of replies and reactions.
        """
        self.ledger = Ledger(folder / f"simulation-{seed}-{without}-{compares}.sqlite")
        self.ledger.database.rows("PRAGMA synchronous = OFF")  # nothing here has to survive a power cut
        self._replies = replies
        self._random = random.Random(seed)
        self._compares = compares
        self._turns = 0
        self._logits = torch.tensor([math.log(share) for share in start], requires_grad=True)
        self._optimizer = torch.optim.AdamW([self._logits], lr=RATE, betas=(0.9, 0.98), weight_decay=0.0)
        self._args = trainer_args("", eps_clip_c=3.0, rewards_normalization=False)
        self.shares = [list(start)]
        self.advantages: list[tuple[int, float]] = []
        """(reply, advantage) of each trained sample."""
        config: Any = type("Votes", (), {"prm_m": 3})
        self._worker = JudgeWorker(
            self.ledger,
            BinaryRL(config),
            CannedJudge(verdicts),
            None,
            Limits(TEMPERATURE, 1, 1000, [rule for rule in HYGIENE_RULES if rule != without]),
            JudgeMetrics(CollectorRegistry()),
            self._answers,
            WorkerSettings(concurrency=1, poll_seconds=3600.0),
        )

    @staticmethod
    async def _answers() -> bool:
        return True

    async def run(self, updates: int) -> None:
        """Take ``updates`` optimizer steps."""
        stop = asyncio.Event()
        task = asyncio.create_task(self._worker.run(stop))
        try:
            for number in range(updates):
                while self.ledger.samples.ready_count() < BATCH:
                    await self._converse()
                self._update(number)
        finally:
            stop.set()
            await asyncio.wait_for(task, PATIENCE)

    async def _converse(self) -> None:
        """Record a batch of turns with their next states and wait until all are judged."""
        shares = self.shares[-1]
        for _ in range(BATCH):
            number = self._random.choices(range(len(shares)), shares)[0]
            reply = self._replies[number]
            self._turns += 1
            turn = Turn(
                id=f"turn-{self._turns}",
                session_id=f"session-{self._turns}",
                index=0,
                kind="main",
                created_at=100.0,
                finished_at=101.0,
                messages=[{"role": "user", "content": "Change the file."}],
                prompt_ids=[1, 2, 3],
                response_ids=[number, END],
                response_logprobs=[math.log(shares[number]), 0.0],
                finish_reason=reply.finish_reason,
                response_message={"role": "assistant", "content": reply.text},
                temperature=TEMPERATURE,
                top_p=1.0,
                weight_versions=[VersionSpan("1", 0, 2)],
                malformed_calls=reply.malformed_calls,
            )
            chances, reactions = zip(*reply.reactions, strict=True)
            with self.ledger.transaction():
                self.ledger.turns.record(turn)
                self.ledger.turns.record_next_state(turn.id, [self._random.choices(reactions, chances)[0]], 102.0)
        self._worker.notify()
        async with asyncio.timeout(PATIENCE):
            while self.ledger.database.rows("SELECT 1 FROM turns WHERE state = 'pending' LIMIT 1"):
                await asyncio.sleep(0.01)

    def _update(self, number: int) -> None:
        """Take the step of a batch as the trainer does: samples, advantages, loss, AdamW."""
        samples = [prepare(sample, None, self._compares) for sample in self.ledger.samples.claim(number, BATCH)]
        data = convert(self._args, samples)
        streams = ("rollout_log_probs", "loss_masks")
        rollout: dict[str, Any] = {**data, **{name: [torch.tensor(each) for each in data[name]] for name in streams}}
        rollout["log_probs"] = rollout["rollout_log_probs"]
        rollout["advantages"], _ = compute_advantages(self._args, rollout)
        chosen = [sample.tokens[-2] for sample in samples]
        self.advantages += [(each, float(a[0])) for each, a in zip(chosen, rollout["advantages"], strict=True)]
        now = self._logits.log_softmax(0)
        log_probs = [torch.stack([now[each], torch.zeros(())]) for each in chosen]
        entropy = [torch.zeros(2) for _ in chosen]
        batch: Any = rollout
        lengths = data["response_lengths"]
        loss, _ = policy_loss(self._args, batch, log_probs, entropy, make_reducer(False, lengths, batch["loss_masks"]))
        self._optimizer.zero_grad()
        (loss / len(samples)).backward()
        self._optimizer.step()
        self.shares.append(self._logits.detach().softmax(0).tolist())
