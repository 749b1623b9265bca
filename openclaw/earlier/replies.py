"""A reply of a causal language model in Transformers, token by token, with what an engine's `/generate` would report.

Guarantees: each id has the log-probability with which the unchanged model samples it at the reply's temperature, before ``top_p``,
``top_k`` and ``min_p`` cut the distribution; at temperature 0 that of temperature 1. So does SGLang. A reply longer than
`REPLY_SECONDS` ends as one that reached its limit of tokens. Nothing of one reply stays for the next.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.generation.logits_process import (
    LogitsProcessorList,
    MinPLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from openclaw.engine.client import MIN_NEW_TOKENS, TokenChunk
from openclaw.gateway.earlier import Wanted

REPLY_SECONDS = 120.0
PIECE = 512
"""Prompt tokens that are read between two looks at whether anybody still waits."""


def ends_of(model: PreTrainedModel) -> frozenset[int]:
    """Return the tokens that end a reply, as the model's configurations name them."""
    named = [config.eos_token_id for config in (model.config, model.generation_config) if config is not None]
    return frozenset(
        token for ids in named for token in (ids if isinstance(ids, list) else [ids]) if isinstance(token, int)
    )


@torch.inference_mode()
def reply(model: PreTrainedModel, wanted: Wanted, stopped: Callable[[], bool] = lambda: False) -> Iterator[TokenChunk]:
    """Yield one token after the other; the last one has ``finish``. End early, without that, once ``stopped`` says so."""
    sampling = wanted.sampling
    temperature = float(sampling["temperature"])
    cut = _cut(sampling) if temperature > 0 else None
    own_ends = frozenset() if sampling.get("ignore_eos") else ends_of(model) | wanted.ends
    ends = own_ends | (frozenset() if sampling.get("ignore_eos") else frozenset(sampling.get("stop_token_ids", ())))
    fewest, most = sampling.get(MIN_NEW_TOKENS, 0), sampling["max_new_tokens"]
    until = time.monotonic() + REPLY_SECONDS
    cache, rest = None, torch.tensor([list(wanted.ids)])
    logits = torch.empty(0)
    for count in range(1, most + 1):
        for piece in rest.split(PIECE, dim=1):
            if stopped():
                return
            out = model(input_ids=piece, past_key_values=cache, use_cache=True, logits_to_keep=1)
            cache, logits = out.past_key_values, out.logits[0, -1].float()
        if count <= fewest:
            logits[sorted(ends)] = -torch.inf
        scores = torch.log_softmax(logits / (temperature or 1.0), dim=-1)
        token = int(scores.argmax()) if cut is None else _drawn(scores, cut)
        over = count == most or time.monotonic() > until
        finish = "stop" if token in ends else "length" if over else None
        top = [_most_likely(scores, wanted.top_logprobs)] if wanted.top_logprobs else []
        yield TokenChunk([token], [float(scores[token])], wanted.version, finish, top=top)
        if finish is not None:
            return
        rest = torch.tensor([[token]])


def _cut(sampling: Mapping[str, Any]) -> LogitsProcessorList | None:
    """Return what cuts a distribution before a token is drawn; None if only the most likely token is left."""
    top_k, top_p, min_p = sampling.get("top_k", -1), sampling["top_p"], sampling.get("min_p", 0)
    if top_k == 1:
        return None
    cut = LogitsProcessorList()
    if top_k > 0:
        cut.append(TopKLogitsWarper(top_k))
    if top_p < 1:
        cut.append(TopPLogitsWarper(top_p))
    if min_p > 0:
        cut.append(MinPLogitsWarper(min_p))
    return cut


def _drawn(scores: Tensor, cut: LogitsProcessorList) -> int:
    none = torch.empty((1, 0), dtype=torch.long)
    return int(torch.multinomial(cut(none, scores[None].clone())[0].exp(), 1))  # pyright: ignore[reportArgumentType]


def _most_likely(scores: Tensor, count: int) -> list[list[Any]]:
    values, ids = scores.topk(min(count, scores.numel()))
    return [[float(value), int(index), None] for value, index in zip(values, ids, strict=True)]
