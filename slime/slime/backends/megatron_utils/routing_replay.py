"""Routing replay: every policy pass over a rollout routes tokens to the experts recorded for them.

The record comes from this rank's own pass of old log probabilities (``--use-routing-replay``) or from the engines
(``--use-rollout-routing-replay``). The gates are the current router's scores for these experts, normalised as the model
does, and carry its gradient. Only tokens without a record choose freely: the last of a sample, padding, and tokens
after the last trained one. No loss depends on these. State: the records of one rollout, in host memory.

A router chooses experts freely, freely and recorded, or as recorded before. Guarantees: the scores used are always the router's own, with their gradient. A layer recomputed in a backward pass gets
the experts of its own micro-batch. During replay no other experts are used, except for tokens without a record. A
record that is not used, or that runs out, is an error.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import Enum
from functools import partial
from typing import Any

import torch
from torch import Tensor

from groundwork.exceptions import ConfigError
from slime.backends.megatron_utils.parallel import groups
from slime.backends.megatron_utils.train_step import Around
from slime.backends.trainer.micro_batch import MicroBatch, RolloutShard
from slime.logprobs.context_parallel import held_sources, own_place
from slime.utils.types import EXPERTS, OWN_CHOICE


class Mode(Enum):
    """What a router does: choose; choose and record; replay; replay with possible recomputation in the backward pass."""

    CHOOSE = "choose"
    RECORD = "record"
    REPLAY = "replay"
    REPLAY_AND_REPEAT = "replay and repeat"


class ExpertChoice:
    """Replacement for Megatron's ``RouterReplay``, which cannot tell micro-batches from recomputation.

    Call :meth:`start`, then for each micro-batch :meth:`begin_forward` and :meth:`end_forward`, and :meth:`finish`.
    """

    def __init__(self) -> None:
        self.start(Mode.CHOOSE)

    def start(self, mode: Mode) -> None:
        """Switch to ``mode`` and forget all records."""
        self.mode = mode
        self._recorded: Tensor | None = None
        self._had: Tensor | None = None
        self._to_repeat: deque[Tensor] = deque()

    def begin_forward(self, recorded: Tensor | None = None) -> None:
        """Begin a micro-batch's forward pass; replay ``recorded`` ``[n, K]``, with `OWN_CHOICE` for tokens without one."""
        self._recorded, self._had = recorded, None

    def end_forward(self) -> Tensor:
        """End it and return the experts ``[n, K]`` that the router used; raise RuntimeError if it did not run."""
        had, self._recorded, self._had = self._had, None, None
        if had is None:
            raise RuntimeError(
                "a router did not run in the forward pass of a micro-batch, so its experts are not replayed"
            )
        return had

    def finish(self) -> None:
        """Raise RuntimeError if an expected recomputation of a layer did not happen."""
        if self._to_repeat:
            raise RuntimeError(
                f"a router did not run again for {len(self._to_repeat)} micro-batches that were recomputed"
            )

    def get_replay_topk(
        self,
        scores: Tensor,
        topk: int,
        num_groups: int | None = None,
        group_topk: int | None = None,
        default_compute_topk: Any = None,
    ) -> tuple[Tensor, Tensor]:
        """Return scores and indices ``[n, K]`` of the experts, from all ``scores`` ``[n, E]``; Megatron calls it.

        Raises:
            RuntimeError: no experts are recorded for these tokens.
        """
        if self.mode in (Mode.CHOOSE, Mode.RECORD):
            values, chosen = default_compute_topk(scores, topk, num_groups=num_groups, group_topk=group_topk)
            self._had = chosen if self.mode is Mode.RECORD else None
            return values, chosen
        experts = self._due()
        if experts.shape != (len(scores), topk):
            raise RuntimeError(f"experts {tuple(experts.shape)} are recorded for {len(scores)} tokens with {topk} each")
        with torch.no_grad():
            own = default_compute_topk(scores, topk, num_groups=num_groups, group_topk=group_topk)[1]
            experts = torch.where(experts == OWN_CHOICE, own, experts)
        return scores.gather(1, experts), experts

    def _due(self) -> Tensor:
        """Return the running micro-batch's experts; outside a forward pass, those of the oldest one to recompute.

        Megatron first runs a layer to be recomputed without gradients, and runs backward passes in micro-batch order.
        """
        if self._recorded is None:
            if not self._to_repeat:
                raise RuntimeError("a router runs outside the micro-batches whose experts are recorded")
            return self._to_repeat.popleft()
        self._had = self._recorded
        if self.mode is Mode.REPLAY_AND_REPEAT and not torch.is_grad_enabled():
            self._to_repeat.append(self._recorded)
        return self._recorded


class RoutingReplay:
    """The routers of this rank's layers, and the experts recorded for each micro-batch of a rollout."""

    def __init__(self, model: Any, *, from_engines: bool) -> None:
        """Hook the routers of ``model``.

        Raises:
            ConfigError: there is no router, or one whose choice cannot be replaced.
        """
        from megatron.core.transformer.moe.router import TopKRouter

        self._from_engines = from_engines
        self._split = model.config.sequence_parallel
        self._choices: list[ExpertChoice] = []
        self._layers: list[int] = []
        self._recorded: list[Tensor] = []
        self._per_token = model.config.moe_router_topk
        for module in model.modules():
            if isinstance(module, TopKRouter):
                if module.config.moe_router_fusion or module.routing_type == "sinkhorn":
                    raise ConfigError(
                        "routing replay needs routers without moe_router_fusion and sinkhorn; remove --use-routing-replay or "
                        "change --custom-model-provider-path"
                    )
                choice: Any = ExpertChoice()
                module.router_replay = choice
                self._choices.append(choice)
                self._layers.append(module.layer_number - 1)  # pyright: ignore[reportOptionalOperand]
        if not self._choices:
            raise ConfigError(
                "routing replay needs a mixture of experts, but this model has no router; remove --use-routing-replay"
            )

    @contextmanager
    def recording(self) -> Iterator[Around]:
        """Record the routers' choices in a forward pass over all micro-batches of a rollout."""
        self._recorded = []
        with self._mode(Mode.RECORD):
            yield self._record

    @contextmanager
    def replaying(self, shard: RolloutShard, step: int | None) -> Iterator[Around]:
        """Replay in a forward pass over all micro-batches of ``shard``, or in the forward and backward passes of a step.

        Raises:
            ValueError: the data lack the engines' experts.
            RuntimeError: the recorded micro-batches differ from those that run, or a router does not get their experts.
        """
        if self._from_engines and shard.experts is None:
            raise ValueError(f"--use-rollout-routing-replay needs {EXPERTS} in the training data")
        counts = [len(batches) for batches in shard.micro_batches]
        if not self._from_engines and len(self._recorded) != sum(counts):
            raise RuntimeError(f"experts of {len(self._recorded)} micro-batches are recorded, but {sum(counts)} run")
        first, count = (0, sum(counts)) if step is None else (sum(counts[:step]), counts[step])
        to_run = set(range(count))
        with self._mode(Mode.REPLAY if step is None else Mode.REPLAY_AND_REPEAT):
            yield partial(self._replay, shard, first, to_run)
            if to_run:
                raise RuntimeError(f"{len(to_run)} of {count} micro-batches whose experts are recorded did not run")

    @contextmanager
    def _mode(self, mode: Mode) -> Iterator[None]:
        for choice in self._choices:
            choice.start(mode)
        try:
            yield
            for choice in self._choices:
                choice.finish()
        finally:
            for choice in self._choices:
                choice.start(Mode.CHOOSE)

    @contextmanager
    def _record(self, number: int, indices: list[int], batch: MicroBatch, length: int) -> Iterator[None]:
        for choice in self._choices:
            choice.begin_forward()
        yield
        self._recorded.append(torch.stack([choice.end_forward() for choice in self._choices]).short().cpu())

    @contextmanager
    def _replay(
        self,
        shard: RolloutShard,
        first: int,
        to_run: set[int],
        number: int,
        indices: list[int],
        batch: MicroBatch,
        length: int,
    ) -> Iterator[None]:
        to_run.remove(number)
        if self._from_engines:
            assert shard.experts is not None
            experts = self._of_engines([shard.experts[index] for index in indices], batch, length)
        else:
            experts = self._recorded[first + number]
        experts = experts.to(batch.input_ids.device).long()
        for choice, own in zip(self._choices, experts, strict=True):
            choice.begin_forward(own)
        yield
        for choice in self._choices:
            choice.end_forward()

    def _of_engines(self, given: Sequence[Tensor], batch: MicroBatch, length: int) -> Tensor:
        """Return ``[layers here, n, K]`` for this rank's ``length`` tokens, or its sequence-parallel part."""
        rank, ranks = own_place()
        rows = packed_rows(given, batch.sequence_lengths, self._layers, self._per_token)
        sources = held_sources(batch.sequence_lengths, rank, ranks)
        sources = torch.nn.functional.pad(sources, (0, length - len(sources)), value=-1)
        if self._split:
            size = groups().get_tensor_model_parallel_world_size()
            sources = sources.chunk(size)[groups().get_tensor_model_parallel_rank()]
        return rows[sources].transpose(0, 1)


def packed_rows(given: Sequence[Tensor], lengths: Sequence[int], layers: Sequence[int], per_token: int) -> Tensor:
    """Return ``[T + 1, layers, K]``: a row per token of a pack, and a last `OWN_CHOICE` row for index -1.

    Args:
        given: ``[length - 1, all layers, K]`` per sample; empty for a filler.
        lengths: lengths of the pack's samples.
        layers: layers to select.
        per_token: experts per token, ``K``.
    """
    rows = torch.full((sum(lengths) + 1, len(layers), per_token), OWN_CHOICE, dtype=torch.int16)
    start = 0
    for experts, length in zip(given, lengths if given else (), strict=True):
        rows[start : start + length - 1] = experts[:, list(layers)]
        start += length
    return rows
