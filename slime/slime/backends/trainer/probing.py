"""Answer probes on the training ranks: log probabilities of stored replies, and greedy replies.

The probes are split over the ranks with different samples, by length, and packed into micro-batches within the token budget of a
step. A probe that is longer has one to itself, like a sample.

Guarantees: every rank runs the same number of forward passes, filled up where it has nothing left to do, because a pass may
communicate. The same weights and probes give the same answers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from slime.args import Arguments
from slime.arguments.memory_budget.trainer import step_tokens
from slime.backends.trainer.micro_batch import RolloutShard
from slime.utils.hf_checkpoint import read_config
from slime.utils.probes import Answer, Probe

Score = Callable[[RolloutShard], list[Tensor]]
NextIds = Callable[[RolloutShard], list[int]]


@dataclass
class Continuation:
    """A greedy reply that grows: the probe's number, prompt, length limit, and the reply so far.

    Attributes:
        finished: whether the reply ended by itself.
    """

    number: int
    prompt_ids: list[int]
    limit: int
    reply: list[int] = field(default_factory=list)
    finished: bool = False

    @property
    def open(self) -> bool:
        """Whether a token is missing."""
        return not self.finished and len(self.reply) < self.limit

    def add(self, token: int, ends: frozenset[int]) -> None:
        """Append a token, unless the reply is complete."""
        if self.open:
            self.reply.append(token)
            self.finished = token in ends


class Rounds:
    """How long the ranks go on together.

    Attributes:
        ends: token ids that end a reply.
    """

    def __init__(self, ends: frozenset[int], device: torch.device, group: dist.ProcessGroup | None) -> None:
        """``group``: the ranks with different samples; None means all."""
        self.ends = ends
        self._device = device
        self._group = group

    def go_on(self, batch: Sequence[Continuation]) -> bool:
        """Return whether any rank's ``batch`` lacks a token; collective."""
        is_open = any(continuation.open for continuation in batch)
        if dist.get_world_size(self._group) == 1:
            return is_open
        some = torch.tensor(int(is_open), device=self._device)
        dist.all_reduce(some, op=dist.ReduceOp.MAX, group=self._group)
        return bool(some)


class ProbeWork:
    """One rank's part of the probes."""

    def __init__(self, args: Arguments, probes: Sequence[Probe], rank: int, ranks: int) -> None:
        """``rank`` of ``ranks`` with different samples."""
        given = args.max_tokens_per_gpu if args.use_dynamic_batch_size else None
        self._budget = max(1, given or step_tokens(args))
        self._probes = probes
        self._rank, self._ranks = rank, ranks

    def scores(self, score: Score) -> dict[int, list[float]]:
        """Return the log probabilities ``[R]`` of this rank's stored replies, by the number of the probe."""
        probes = self._probes
        lengths = {n: len(p.prompt_ids) + len(p.reply_ids) for n, p in enumerate(probes) if p.reply_ids}
        batches = self._own_batches(lengths)
        own = [number for batch in batches for number in batch]
        place = {number: index for index, number in enumerate(own)}
        shard = shard_of(
            [[*probes[number].prompt_ids, *probes[number].reply_ids] for number in own],
            [len(probes[number].reply_ids) for number in own],
            [[place[number] for number in batch] for batch in batches],
        )
        return dict(zip(own, (values.tolist() for values in score(shard)), strict=True)) if lengths else {}

    def continuations(self) -> list[list[Continuation]]:
        """Return this rank's greedy replies to make, as many micro-batches as on every rank."""
        probes = self._probes
        lengths = {n: len(p.prompt_ids) + p.max_new_tokens for n, p in enumerate(probes) if p.max_new_tokens}
        return [
            [Continuation(number, list(probes[number].prompt_ids), probes[number].max_new_tokens) for number in batch]
            for batch in self._own_batches(lengths)
        ]

    def answers(self, scored: dict[int, list[float]], continued: Sequence[list[Continuation]]) -> dict[int, Answer]:
        """Return the answers of this rank's probes, by number; a probe's parts may be on two ranks."""
        greedy = {continuation.number: continuation for batch in continued for continuation in batch}
        results = {}
        for number in sorted({*scored, *greedy}):
            reply = greedy.get(number)
            ids, finished = (reply.reply, reply.finished) if reply is not None else ([], False)
            results[number] = Answer(scored.get(number, []), ids, finished)
        return results

    def _own_batches(self, lengths: dict[int, int]) -> list[list[int]]:
        """Return this rank's micro-batches of the probes with ``lengths`` in tokens, padded with empty ones."""
        ordered = sorted(lengths, key=lambda number: (-lengths[number], number))
        shares = [self._packed(ordered[rank :: self._ranks], lengths) for rank in range(self._ranks)]
        own = shares[self._rank]
        return [*own, *([] for _ in range(max(map(len, shares)) - len(own)))]

    def _packed(self, numbers: Sequence[int], lengths: dict[int, int]) -> list[list[int]]:
        """Pack probes, longest first; a padded micro-batch is as wide as its first probe."""
        batches: list[list[int]] = []
        for number in numbers:
            if batches and (len(batches[-1]) + 1) * lengths[batches[-1][0]] <= self._budget:
                batches[-1].append(number)
            else:
                batches.append([number])
        return batches


class Answering(Protocol):
    """The part of a policy's back end that answers."""

    data_group: dist.ProcessGroup | None

    def scores(self, data: RolloutShard) -> list[Tensor]: ...

    def greedy(self, batches: list[list[Continuation]], rounds: Rounds) -> None: ...


def answers_of(args: Arguments, policy: Answering, probes: Sequence[Probe], device: torch.device) -> dict[int, Answer]:
    """Return this rank's answers by the number of the probe, with the weights that ``policy`` has."""
    group = policy.data_group
    work = ProbeWork(args, probes, dist.get_rank(group), dist.get_world_size(group))
    rounds = Rounds(stop_ids(Path(args.hf_checkpoint)), device, group)
    scored = work.scores(policy.scores)
    continued = work.continuations()
    policy.greedy(continued, rounds)
    return work.answers(scored, continued)


def shard_of(tokens: list[list[int]], responses: list[int], batches: list[list[int]]) -> RolloutShard:
    """Return a shard of samples without rewards, for passes without a gradient."""
    count = len(tokens)
    data: dict[str, Any] = {"tokens": tokens, "partition": list(range(count)), "rewards": [0.0] * count}
    data |= {"micro_batch_indices": [batches], "global_batch_sizes": [count], "global_token_counts": [sum(responses)]}
    return RolloutShard({**data, "response_lengths": responses})


def by_whole_passes(batch: list[Continuation], rounds: Rounds, next_ids: NextIds) -> None:
    """Complete a micro-batch's replies with one pass over all tokens per new token; collective."""
    while rounds.go_on(batch):
        growing = [continuation for continuation in batch if continuation.open]
        # The last token holds the place of the one that is looked for.
        tokens = [[*continuation.prompt_ids, *continuation.reply, 0] for continuation in growing]
        result = next_ids(shard_of(tokens, [1] * len(growing), [list(range(len(growing)))]))
        for continuation, token in zip(growing, result, strict=True):
            continuation.add(token, rounds.ends)


def stop_ids(folder: Path) -> frozenset[int]:
    """Return the token ids that end a reply: of ``generation_config.json``, else of ``config.json``."""
    file = folder / "generation_config.json"
    given = json.loads(file.read_text()).get("eos_token_id") if file.is_file() else None
    if given is None:
        config = read_config(folder)
        given = config.get("eos_token_id", config.get("text_config", {}).get("eos_token_id"))
    return frozenset(given if isinstance(given, list) else [] if given is None else [given])
