"""Batched sampling from a tiny model in plain torch; for the build's own measurements only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

TEMPERATURE = 0.6


class Sampler:
    """A model with its tokenizer."""

    def __init__(self, model: Any, tokenizer: Any, seed: int = 0) -> None:
        self.model, self.tokenizer = model, tokenizer
        self.end = model.config.eos_token_id
        self._generator = torch.Generator().manual_seed(seed)

    def prompt(self, messages: Sequence[dict[str, Any]], **keywords: Any) -> list[int]:
        """Return prompt ids as they are rendered for serving."""
        return self.tokenizer.apply_chat_template(
            list(messages), tokenize=True, add_generation_prompt=True, return_dict=False, **keywords
        )

    def text(self, ids: Sequence[int]) -> str:
        """Return the text of a reply, without its end."""
        return self.tokenizer.decode(list(ids), skip_special_tokens=True)

    def replies(self, prompts: Sequence[list[int]], max_new: int = 140, batch: int = 64) -> list[list[int]]:
        """Sample one reply for each prompt, in the order given; short prompts are batched with short ones."""
        order = sorted(range(len(prompts)), key=lambda index: len(prompts[index]))
        results: list[list[int]] = [[] for _ in prompts]
        for start in range(0, len(order), batch):
            chosen = order[start : start + batch]
            for index, reply in zip(chosen, self._sample([prompts[i] for i in chosen], max_new), strict=True):
                results[index] = reply
        return results

    @torch.no_grad()
    def _sample(self, prompts: list[list[int]], max_new: int) -> list[list[int]]:
        length, count = max(map(len, prompts)), len(prompts)
        ids = torch.zeros(count, length, dtype=torch.long)
        attention = torch.zeros(count, length, dtype=torch.long)
        for row, prompt in enumerate(prompts):
            ids[row, length - len(prompt) :] = torch.tensor(prompt)
            attention[row, length - len(prompt) :] = 1
        positions = (attention.cumsum(1) - 1).clamp(min=0)
        output = self.model(
            input_ids=ids, attention_mask=attention, position_ids=positions, use_cache=True, logits_to_keep=1
        )
        replies: list[list[int]] = [[] for _ in prompts]
        live = torch.ones(count, dtype=torch.bool)
        position = positions[:, -1:]
        for _ in range(max_new):
            probabilities = torch.softmax(output.logits[:, -1].float() / TEMPERATURE, -1)
            tokens = torch.multinomial(probabilities, 1, generator=self._generator)[:, 0]
            for row in live.nonzero()[:, 0].tolist():
                replies[row].append(int(tokens[row]))
            live &= tokens != self.end
            if not live.any():
                break
            attention = torch.cat([attention, torch.ones(count, 1, dtype=torch.long)], 1)
            position = position + 1
            output = self.model(
                input_ids=tokens[:, None],
                attention_mask=attention,
                position_ids=position,
                past_key_values=output.past_key_values,
                use_cache=True,
            )
        return replies
