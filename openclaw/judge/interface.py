"""What a judge is to the judge loop, and what it is asked.

`openclaw.judge.client` asks an engine of the run, `openclaw.judge.endpoint` any OpenAI-compatible server, and
`openclaw.judge.endpoint` a Python class. Guarantees: a judge never turns a failure into a vote.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from groundwork.chat_messages import Message
from openclaw.judge.answers import with_plain_boxes
from openclaw.judge.prompts import Variant, judge_messages
from openclaw.ledger.records import JudgeKind, Vote
from openclaw.messages.text import clip_middle, response_text

MAX_JUDGED_CHARACTERS = 30_000


@dataclass(frozen=True)
class Question:
    """A judge's input.

    Attributes:
        reply: what the assistant said and did, as text.
        next_state: (role, text) of each message that followed.
        messages: the request, the reply and what followed, as they were.
        prompt: a method's own prompt, in place of the standard one.
        images: ``data:`` URLs of the pictures that the own prompt has places for, in order.

    Example:
        >>> question = Question.about(
        ...     [{"role": "user", "content": "2 + 2?"}],
        ...     {"role": "assistant", "content": "4"},
        ...     [{"role": "user", "content": "thanks"}],
        ... )
        >>> question.reply, question.next_state
        ('4', (('user', 'thanks'),))
    """

    reply: str
    next_state: tuple[tuple[str, str], ...]
    messages: Exchange = field(default_factory=lambda: Exchange([], {}, []), repr=False)
    prompt: Sequence[Message] | None = None
    images: Sequence[str] = ()

    def asked(self, kind: JudgeKind, variant: Variant) -> Sequence[Message]:
        """Return the chat messages that ask a model the question ``kind``."""
        return self.prompt or judge_messages(kind, self.reply, self.next_state, variant)

    @staticmethod
    def about(prompt: Sequence[Message], reply: Message, next_state: Sequence[Message]) -> Question:
        """Return the question about a reply to ``prompt`` and the messages after it; long texts lose their middle."""
        share = MAX_JUDGED_CHARACTERS // max(1, len(next_state))
        return Question(
            _shown(reply, MAX_JUDGED_CHARACTERS),
            tuple((message.get("role", "user"), _shown(message, share)) for message in next_state),
            Exchange(prompt, reply, next_state),
        )


@dataclass(frozen=True)
class Exchange:
    """The messages of a question: the request's, the reply, and those after it."""

    prompt: Sequence[Message]
    reply: Message
    next_state: Sequence[Message]


def _shown(message: Message, limit: int) -> str:
    """Return a message as a judge sees it, before `openclaw.judge.prompts.defuse`."""
    return shown_text(response_text(message), limit)


def shown_text(text: str, limit: int) -> str:
    """Return judged text with plain boxes, before `openclaw.judge.prompts.defuse`; if it is longer, without its middle."""
    return with_plain_boxes(clip_middle(text, limit))


@dataclass(frozen=True)
class Said:
    """An answer of a model that judges: its text, how and after how many seconds it ended, and whether the prompt opened a thought."""

    text: str
    finish: str
    seconds: float
    inside_thought: bool = False


class Speaker(Protocol):
    """A model that answers a judge's prompts."""

    async def said(
        self, messages: Sequence[Message], count: int, grammar: str, images: Sequence[str] = ()
    ) -> list[Said]:
        """Return ``count`` answers to chat messages.

        Args:
            messages: the question: one system and one user message.
            count: how many answers.
            grammar: structural tag of the answers, for a model that can follow one.
            images: ``data:`` URLs of the pictures that the messages have places for.

        Raises:
            JudgeError: if any of them failed.
        """
        ...


class Judge(Protocol):
    """Casts votes on a reply."""

    async def votes(self, kind: JudgeKind, question: Question, count: int) -> list[Vote]:
        """Return ``count`` votes.

        Raises:
            JudgeError: if any of them failed; there is no verdict from incomplete votes.
        """
        ...

    async def answers(self) -> bool:
        """Return whether the judge can be reached now."""
        ...

    async def close(self) -> None:
        """Release its connections."""
        ...


class NoJudge:
    """The judge of a method that asks none."""

    async def votes(self, kind: JudgeKind, question: Question, count: int) -> list[Vote]:
        """Return no vote.

        Raises:
            ValueError: if votes are asked for.
        """
        if count:
            raise ValueError(f"{count} votes are asked for, but the method's plan has no judge")
        return []

    async def answers(self) -> bool:
        """Return True: nobody is missed."""
        return True

    async def close(self) -> None:
        """Do nothing: there are no connections."""
