"""Traces as ids and loss weights, rendered by the agent loop's own code, and the questions of the step judge about them.

Guarantee: the prompt before each reply has the ids that the agent loop would send for the same messages.
"""

from __future__ import annotations

from random import Random
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence

from agentrl.rollout.actions import FORMS
from agentrl.rollout.step_judge import step_question
from agentrl.rollout.token_policy import ChatCodec, Conversation
from chat_codec.prompts import Prompts
from groundwork.chat_messages import Message
from lab.tiny_learning.traces import Step, Trace
from lab.tiny_learning.vocabulary import CONTROL_TOKENS
from lab.tiny_models.batches import Encoded
from lab.tiny_models.tokenizer import END, SPECIAL_TOKENS

DECISION_WEIGHT = 3.0
"""Of the first tokens of a judge's answer, which carry the decision."""
DECISION_TOKENS = 5
TURNS = ("<|im_start|>user\n", f"{END}\n<|im_start|>assistant\n")
ECHOED = (4, 24)
"""Fewest and most words that are repeated."""
FIRST_WORD = len(SPECIAL_TOKENS) + 256
"""The first token that is more than a byte."""


class Coder:
    """Encodes traces with one tokenizer."""

    def __init__(self, tokenizer: Any) -> None:
        """Read the tokenizer's chat template."""
        self._tokenizer = tokenizer
        self._codec = ChatCodec(tokenizer)
        self._prompts = Prompts(tokenizer)
        self._end = tokenizer.convert_tokens_to_ids(END)
        self._turns = [tokenizer.encode(text, add_special_tokens=False) for text in TURNS]
        self._words = range(FIRST_WORD, len(tokenizer) - len(CONTROL_TOKENS))

    def ids(self, text: str) -> list[int]:
        """Return the ids of a reply, its end included."""
        return self._tokenizer.encode(text + END, add_special_tokens=False)

    def prompt(self, trace: Trace, number: int = 0) -> list[int]:
        """Return the prompt of a step of a trace."""
        talk = Conversation(self._codec, list(trace.messages), trace.tools)
        for at, step in enumerate(trace.steps[:number]):
            self._go_on(talk, talk.prompt(), self.ids(step.text), step, trace, at)
        return talk.prompt()

    def policy(self, trace: Trace) -> Encoded:
        """Return an episode with weights on the agent's replies.

        Raises:
            ValueError: a prompt does not extend the one before, so an episode would not be one sample.
        """
        talk = Conversation(self._codec, list(trace.messages), trace.tools)
        ids: list[int] = []
        weights: list[float] = []
        for number, step in enumerate(trace.steps):
            prompt, reply = talk.prompt(), self.ids(step.text)
            if prompt[: len(ids)] != ids:
                raise ValueError("the chat template changes what was said before")
            weights += [0.0] * (len(prompt) - len(ids)) + [1.0] * len(reply)
            ids = prompt + reply
            self._go_on(talk, prompt, reply, step, trace, number)
        return Encoded(ids, weights)

    def echo(self, rng: Random) -> Encoded:
        """Return a conversation in which random words are repeated."""
        words = rng.sample(self._words, rng.randint(*ECHOED))
        asked = self._turns[0] + words + self._turns[1]
        return Encoded([*asked, *words, self._end], [0.0] * len(asked) + [1.0] * (len(words) + 1))

    def judge(self, trace: Trace, number: int) -> tuple[list[int], list[int]]:
        """Return the question about a step as the step judge asks it, and the answer."""
        talk = Conversation(self._codec, list(trace.messages), trace.tools)
        before: list[Message] = []
        for at, step in enumerate(trace.steps[: number + 1]):
            before = list(talk.messages)
            prompt, reply = talk.prompt(), self.ids(step.text)
            self._go_on(talk, prompt, reply, step, trace, at)
        said, *heard = talk.messages[len(before) :]
        goal = "\n\n".join(message["content"] for message in trace.messages)
        question = step_question(goal, before, said, heard)
        step = trace.steps[number]
        asked = self._prompts.ids(question.asked("prm", "full"))
        self._prompts.forget()
        told = "Good" if step.good else "Bad"
        return asked, self.ids(f"{told}. {step.reason}\n\\boxed{{{1 if step.good else -1}}}")

    def judged(self, trace: Trace, number: int) -> Encoded:
        """Return a question and its answer with weights on the answer."""
        asked, answer = self.judge(trace, number)
        weights = [DECISION_WEIGHT] * DECISION_TOKENS + [1.0] * (len(answer) - DECISION_TOKENS)
        return Encoded(asked + answer, [0.0] * len(asked) + weights)

    def _go_on(
        self, talk: Conversation, prompt: list[int], reply: list[int], step: Step, trace: Trace, number: int
    ) -> None:
        read = self._codec.read(prompt, reply, trace.tools, number)
        talk.said(prompt, reply, read)
        form = FORMS["tool_calls"]
        talk.heard([form.answer(step.heard, action.call_id) for action in form.actions(read)])


def padded(group: list[Encoded]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ids and weights of a batch, padded at the end."""
    ids = pad_sequence([torch.tensor(encoded.ids) for encoded in group], batch_first=True)
    return ids, pad_sequence([torch.tensor(encoded.weights) for encoded in group], batch_first=True)
