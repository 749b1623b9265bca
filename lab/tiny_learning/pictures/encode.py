"""Traces with pictures as ids and loss weights, rendered by the agent loop's own code.

Guarantee: the prompt before each reply has the ids that the agent loop would send for the same messages and pictures.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from agentrl.rollout.actions import FORMS, Malformed
from agentrl.rollout.pictures import with_pictures
from agentrl.rollout.token_policy import Conversation
from agentrl.tasks.gui.actions import Action, read_call
from groundwork.chat_messages import Message
from groundwork.images import image_tokens, repeat_placeholders
from lab.testkit.vision_model import VISION_TOKENS
from lab.tiny_learning import encode
from lab.tiny_learning.pictures.model import COLUMNS, IMAGES, ROWS
from lab.tiny_learning.traces import Step, Trace
from lab.tiny_models import batches
from lab.tiny_models.tokenizer import END

PICTURE: Message = {"type": "image", "number": 0}
FORM = FORMS["computer_use"]


@dataclass(frozen=True)
class Encoded(batches.Encoded):
    """An episode: ids, weights, and the number of pictures in its prompts."""

    pictures: int


class Coder(encode.Coder):
    """Encodes traces in which a picture follows every reply but the last."""

    def __init__(self, tokenizer: Any) -> None:
        """Read the tokenizer's chat template."""
        super().__init__(tokenizer)
        self.end: int = tokenizer.convert_tokens_to_ids(END)
        """The token that ends a reply."""
        self._pad: int = tokenizer.convert_tokens_to_ids(VISION_TOKENS[2])
        processor = SimpleNamespace(image_processor=SimpleNamespace(**IMAGES))
        self._count = image_tokens(processor, COLUMNS, ROWS)

    def prompt(self, trace: Trace, number: int = 0) -> list[int]:
        """Return the prompt of a step of a trace."""
        return self._expanded(super().prompt(trace, number))

    def policy(self, trace: Trace) -> Encoded:
        """Return an episode with weights on the agent's replies.

        Raises:
            ValueError: a prompt does not extend the one before, so an episode would not be one sample.
        """
        bare = super().policy(trace)
        times = [self._count if token == self._pad else 1 for token in bare.ids]
        weights = [weight for weight, many in zip(bare.weights, times, strict=True) for _ in range(many)]
        return Encoded(self._expanded(bare.ids), weights, bare.ids.count(self._pad))

    def action(self, trace: Trace, ids: Sequence[int]) -> Action | None:
        """Return the action of a first reply as the environment reads it; None: it has none."""
        bare = super().prompt(trace)
        try:
            (found,) = FORM.actions(self._codec.read(bare, ids, trace.tools, 0))
            return read_call(found.content)
        except Malformed:
            return None

    def _go_on(
        self, talk: Conversation, prompt: list[int], reply: list[int], step: Step, trace: Trace, number: int
    ) -> None:
        read = self._codec.read(prompt, reply, trace.tools, number)
        talk.said(prompt, reply, read)
        heard = [FORM.answer(step.heard, action.call_id) for action in FORM.actions(read)]
        talk.heard([with_pictures(each, [PICTURE]) for each in heard])

    def _expanded(self, ids: list[int]) -> list[int]:
        return repeat_placeholders(ids, self._pad, [self._count] * ids.count(self._pad))
