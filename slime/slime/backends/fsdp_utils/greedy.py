"""Greedy replies of the policy on FSDP ranks: with a key-value cache, or by whole passes for models that have none.

A micro-batch is padded on the left, so all its prompts end in the same column and grow together.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from slime.args import Arguments
from slime.backends.fsdp_utils import packed_attention
from slime.backends.fsdp_utils.model import PolicyModel
from slime.backends.fsdp_utils.train_step import per_sample_pass
from slime.backends.trainer.packing import MicroBatch
from slime.backends.trainer.probing import Continuation, Rounds
from slime.backends.trainer.rollout_data import RolloutShard
from slime.logprobs.response_rows import ResponseRows

logger = logging.getLogger(__name__)


def has_cache(policy: PolicyModel) -> bool:
    """Return whether keys and values are all that the model keeps between tokens; say so once if not."""
    if not getattr(policy.hf, "_is_stateful", False):
        return True
    logger.info(
        "%s keeps a state besides keys and values: greedy replies take a whole pass per token", type(policy.hf).__name__
    )
    return False


@torch.no_grad()
def by_cache(
    policy: PolicyModel, batch: list[Continuation], rounds: Rounds, device: torch.device, chunk_size: int
) -> None:
    """Complete a micro-batch's replies, one token per pass; collective."""
    from transformers import DynamicCache

    training = policy.training
    policy.eval()
    prompts = [continuation.prompt_ids for continuation in batch] or [[0]]
    width = max(map(len, prompts))
    ids = torch.tensor([[0] * (width - len(prompt)) + prompt for prompt in prompts], device=device)
    mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts], device=device)
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    cache = DynamicCache(config=policy.hf.config.get_text_config())
    with _padded_attention(policy):
        while rounds.go_on(batch):
            tokens: Tensor = policy.next_ids(ids, mask, positions, cache, chunk_size)
            for continuation, token in zip(batch, tokens.tolist(), strict=False):
                continuation.add(token, rounds.ends)
            ids, positions = tokens.unsqueeze(-1), positions[:, -1:] + 1
            mask = torch.cat([mask, mask.new_ones(len(mask), 1)], dim=1)
    policy.train(training)


@contextmanager
def _padded_attention(policy: PolicyModel) -> Iterator[None]:
    """Run the block with an attention that reads a mask, in place of the one for packs."""
    if policy.implementation != packed_attention.NAME:
        yield
        return
    config = policy.hf.config.get_text_config()
    config._attn_implementation = "sdpa"
    try:
        yield
    finally:
        config._attn_implementation = packed_attention.NAME


def next_ids(args: Arguments, policy: PolicyModel, shard: RolloutShard, device: torch.device) -> list[int]:
    """Return the most likely token at the place of each sample's last one; responses have one token."""

    def forward(inputs: MicroBatch) -> Tensor:
        chunk = args.log_probs_chunk_size
        return policy(inputs, temperature=1.0, chunk_size=chunk, of_rows=ResponseRows.most_likely)

    return [int(token) for token in per_sample_pass(args, policy, shard, device, forward)]
