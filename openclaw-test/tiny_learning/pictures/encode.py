"""Traces with pictures as ids and loss weights, rendered by the agent loop's own code.

Guarantee: the prompt before each reply has the ids that the agent loop would send for the same messages and pictures.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from tiny_models.tokenizer import END

from agentrl.rollout.actions import Malformed
from agentrl.rollout.opening import FORMS
from agentrl.rollout.pictures import with_pictures
from agentrl.rollout.prompts import Conversation, Message, Speech
from agentrl.tasks.gui.actions import Action, read_call
from slime.utils.images import image_tokens, repeat_placeholders
from tiny_learning.pictures.model import COLUMNS, IMAGES, ROWS
from tiny_learning.pictures.words import VISION
from tiny_learning.traces import Trace

PICTURE: Message = {"type": "image", "number": 0}
FORM = FORMS["computer_use"]


@dataclass(frozen=True)
class Encoded:
    """An episode.

    Attributes:
        ids: of prompts and replies.
        weights: 1 where the agent wrote.
        pictures: number of pictures in the prompts.
    """

    ids: Sequence[int]
    weights: Sequence[float]
    pictures: int


class Coder:
    """Encodes traces with one tokenizer."""

    def __init__(self, tokenizer: Any) -> None:
        """Read the tokenizer's chat template."""
        self._tokenizer = tokenizer
        self._speech = Speech(tokenizer)
        self.end: int = tokenizer.convert_tokens_to_ids(END)
        """The token that ends a reply."""
        self._pad = tokenizer.convert_tokens_to_ids(VISION[2])
        processor = SimpleNamespace(image_processor=SimpleNamespace(**IMAGES))
        self._count = image_tokens(processor, COLUMNS, ROWS)

    def ids(self, text: str) -> list[int]:
        """Return the ids of a reply, its end included."""
        return self._tokenizer.encode(text + END, add_special_tokens=False)

    def prompt(self, trace: Trace) -> list[int]:
        """Return the first prompt of a trace."""
        return self._expanded(Conversation(self._speech, list(trace.messages), trace.tools).prompt())

    def policy(self, trace: Trace) -> Encoded:
        """Return an episode with weights on the agent's replies; a picture follows every reply but the last.

        Raises:
            ValueError: a prompt does not extend the one before, so an episode would not be one sample.
        """
        talk = Conversation(self._speech, list(trace.messages), trace.tools)
        ids: list[int] = []
        weights: list[float] = []
        for number, step in enumerate(trace.steps):
            bare, reply = talk.prompt(), self.ids(step.text)
            prompt = self._expanded(bare)
            if prompt[: len(ids)] != ids:
                raise ValueError("the chat template changes what was said before")
            weights += [0.0] * (len(prompt) - len(ids)) + [1.0] * len(reply)
            ids = prompt + reply
            read = self._speech.read(bare, reply, trace.tools, number)
            talk.said(bare, reply, read)
            heard = [FORM.answer(step.heard, action.call_id) for action in FORM.actions(read)]
            talk.heard([with_pictures(each, [PICTURE]) for each in heard])
        return Encoded(ids, weights, len(trace.steps))

    def action(self, trace: Trace, ids: Sequence[int]) -> Action | None:
        """Return the action of a first reply as the environment reads it; None: it has none."""
        bare = Conversation(self._speech, list(trace.messages), trace.tools).prompt()
        try:
            (found,) = FORM.actions(self._speech.read(bare, ids, trace.tools, 0))
            return read_call(found.content)
        except Malformed:
            return None

    def _expanded(self, ids: list[int]) -> list[int]:
        return repeat_placeholders(ids, self._pad, [self._count] * ids.count(self._pad))
