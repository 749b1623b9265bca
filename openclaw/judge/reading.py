"""What a teacher reads of a turn: a prompt, the reply in its own tokens, and which of the policy's tokens these stand for.

The teacher's prompt is the student's but for the hint: what stands around it keeps the ids that were served, because replies
that the policy sampled earlier may have other ids than their text gives (`with_served_ids`). Only where such replies stand on
both sides of the hint is the teacher's prompt as rendered. A teacher with a chat template of its own reads all messages in it.

Of the reply a teacher reads

* the sampled ids, if each of the policy's ids is the same token for both (`same_ids`), whatever the two are called;
* otherwise the reply's text in its own tokens. Both cut the same bytes into tokens. A span runs from one place where both have a
  cut to the next one, so it is as short as can be and has the same bytes on both sides. With t and s the log-probabilities of the
  tokens under teacher and student, both at temperature 1, each of a span's n tokens of the policy gets

      (sum of t over the teacher's tokens of the span - sum of s over the policy's tokens of the span) / n

  The sum over a span is its log ratio, and for spans of one token this is t - s. Comparing the likelihoods of aligned chunks of
  bytes is from Minixhofer, Vulic and Ponti, "Universal Cross-Tokenizer Distillation via Approximate Likelihood Matching",
  arXiv 2503.20083. A likelihood of several tokens is a product only at temperature 1, so nothing is compared elsewhere.

The end of a reply is a span of its own: the policy's end token, and the one with which the teacher's template ends a reply.

Guarantees: no number is made up. A token of the policy without a counterpart has no term, and is counted by reason:

* ``control``: a control token that the teacher lacks, such as ``<think>``. The teacher reads it as text, or not at all where it
  only frames messages.
* ``unaligned``: bytes that the teacher's tokens do not spell, such as half a character at the end of a reply that was cut off,
  or a character that its tokenizer normalises.

Text never becomes one of the teacher's control tokens.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, groupby, pairwise
from typing import Any

from chat_codec.detokenize import Vocabulary
from chat_codec.prompts import Controls
from chat_codec.renderer import Renderer, RenderError
from groundwork.chat_messages import Message
from openclaw.exceptions import TeacherMismatchError
from openclaw.ledger.records import PlainPart, Turn

Render = Callable[[Sequence[Message], list[dict[str, Any]] | None, dict[str, Any]], list[int]]
Span = tuple[range, range]
"""Positions of the policy's tokens, and of the teacher's that spell the same bytes."""


@dataclass(frozen=True)
class Reading:
    """What the teacher scores, and how its numbers become those of the policy's tokens.

    Attributes:
        prompt_ids: of the teacher's prompt.
        reply_ids: the reply as the teacher reads it.
        spans: which of the policy's tokens have a counterpart.
        untaught: how many of the policy's tokens have none, by reason.
    """

    prompt_ids: list[int]
    reply_ids: list[int]
    spans: list[Span]
    untaught: dict[str, int] = field(default_factory=dict[str, int])

    @staticmethod
    def of_same_tokens(prompt_ids: list[int], reply_ids: list[int]) -> Reading:
        """Return the reading of a teacher that scores exactly the sampled ids."""
        return Reading(prompt_ids, reply_ids, [(range(n, n + 1), range(n, n + 1)) for n in range(len(reply_ids))])

    def terms(self, teacher: Sequence[float], student: Sequence[float]) -> list[float | None]:
        """Return for each of the policy's tokens its share of its span's log ratio; None for an untaught token.

        Args:
            teacher: log-probabilities of ``reply_ids`` at temperature 1.
            student: those of the policy's tokens at temperature 1.
        """
        found: list[float | None] = [None] * len(student)
        for own, other in self.spans:
            ratio = math.fsum(teacher[n] for n in other) - math.fsum(student[n] for n in own)
            for position in own:
                found[position] = ratio / len(own)
        return found


def with_served_ids(served: Sequence[int], plain: Sequence[int], hinted: Sequence[int]) -> list[int] | None:
    """Return the prompt ``served`` with the change that leads from ``plain`` to ``hinted``; None if it has no place there.

    Args:
        served: ids of the prompt that the policy read.
        plain: ids of its messages as rendered.
        hinted: ids of the messages with the hint as rendered.
    """
    change = PlainPart.between(hinted, plain)
    new, after = hinted[change.start : change.end], plain[change.start + len(change.ids) :]
    old = [*change.ids, *after]
    if len(old) <= len(served) and list(served[len(served) - len(old) :]) == old:
        return [*served[: len(served) - len(old)], *new, *after]
    old = [*plain[: change.start], *change.ids]
    if list(served[: len(old)]) == old:
        return [*plain[: change.start], *new, *served[len(old) :]]
    return None


def prompt_under(render: Render, turn: Turn, messages: Sequence[Message]) -> list[int]:
    """Return the prompt ids of a turn with ``messages`` in place of its own; see the module about ids that were served.

    Raises:
        TeacherMismatchError: the template refuses the messages.
    """
    plain, hinted = (_rendered(render, turn, each) for each in (turn.messages, messages))
    student = turn.student_ids
    return hinted if student == plain else with_served_ids(student, plain, hinted) or hinted


def _rendered(render: Render, turn: Turn, messages: Sequence[Message]) -> list[int]:
    try:
        return render(messages, turn.tools, turn.chat_template_kwargs)
    except ValueError as error:
        raise TeacherMismatchError(f"turn {turn.id}: {error}") from error


def same_ids(policy: Any, teacher: Any) -> bool:
    """Return whether each of the policy's ids is the same token for the teacher, and both cut text alike.

    Compares contents: vocabulary, merges and added tokens. The teacher may have further added tokens.
    """
    if not policy.get_vocab().items() <= teacher.get_vocab().items():
        return False
    backends = [getattr(each, "backend_tokenizer", None) for each in (policy, teacher)]
    one, other = (None if each is None else json.loads(each.to_str())["model"] for each in backends)
    return one is not None and one == other


class OtherModel:
    """How a teacher that is another model reads turns; called in threads.

    ``exact`` says whether it scores the sampled ids, ``token_by_token`` whether it also ends a reply with the policy's token,
    so that whole distributions can be compared.
    """

    def __init__(self, policy: Any, teacher: Any, render: Render) -> None:
        """Compare two ``transformers`` tokenizers; ``render`` renders a prompt of the policy.

        Raises:
            RenderError: the teacher's tokenizer has no chat template, and is not the policy's.
            ConfigError: its control tokens cannot be told from text.
        """
        self._render = render
        self.exact = same_ids(policy, teacher)
        if self.exact and not teacher.chat_template:
            teacher = policy  # of a base model, for example
        self._same_prompts = self.exact and all(
            getattr(policy, name) == getattr(teacher, name) for name in ("chat_template", "special_tokens_map")
        )
        self._renderer = Renderer(teacher)
        self._own, self._other = Vocabulary(policy), Vocabulary(teacher)
        self._own_controls, self._other_controls = Controls(policy), Controls(teacher)
        self._end = None if self._same_prompts else _end_of_replies(self._renderer)
        self.token_by_token = self.exact and (self._same_prompts or self._end == _end_of_replies(Renderer(policy)))

    @property
    def mode(self) -> str:
        """How it scores a reply, in words."""
        if not self.exact:
            return "another tokenizer: aligned by spans"
        return "same tokenizer: exact" if self._same_prompts else "same tokenizer, own chat template: exact"

    def read(self, turn: Turn, messages: Sequence[Message]) -> Reading:
        """Return what the teacher reads of a turn as a reply to ``messages``.

        Raises:
            TeacherMismatchError: its template refuses the messages, or no token of the reply has a counterpart.
        """
        if self._same_prompts:
            return Reading.of_same_tokens(prompt_under(self._render, turn, messages), turn.response_ids)
        try:
            prompt_ids = _rendered(self._renderer.render, turn, messages)
            own = turn.response_ids
            if self.exact:
                ended = own[-1:] if self._end is None or not self._ends(own, len(own) - 1) else [self._end]
                return Reading.of_same_tokens(prompt_ids, [*own[:-1], *ended])
            return self._aligned(turn, prompt_ids)
        finally:
            self._renderer.forget()  # a conversation must not outlive its session

    def _ends(self, own: Sequence[int], position: int) -> bool:
        """Return whether the token there ends the reply: it is the last one, and only frames messages."""
        return position == len(own) - 1 and own[position] in self._own.silent

    def _aligned(self, turn: Turn, prompt_ids: list[int]) -> Reading:
        """Return the reading by spans."""
        own, ids, spans, control = turn.response_ids, list[int](), list[Span](), 0
        for is_control, run in groupby(range(len(own)), lambda position: own[position] in self._own_controls.texts):
            positions = list(run)
            if not is_control:
                run_ids, run_spans = self._text(own[positions[0] : positions[-1] + 1])
                spans += [_moved(span, positions[0], len(ids)) for span in run_spans]
                ids += run_ids
                continue
            for position in positions:
                text = self._own_controls.texts[own[position]]
                same = self._end if self._ends(own, position) else self._other_controls.ids.get(text)
                if same is not None:
                    spans.append((range(position, position + 1), range(len(ids), len(ids) + 1)))
                    ids.append(same)
                    continue
                control += 1
                if own[position] not in self._own.silent:
                    ids += self._renderer.encode_text(text)
        unaligned = len(own) - sum(len(each) for each, _ in spans) - control
        if not spans:
            raise TeacherMismatchError(
                f"turn {turn.id}: none of the reply's {len(own)} tokens has a counterpart among the teacher's"
            )
        untaught = {reason: count for reason, count in (("control", control), ("unaligned", unaligned)) if count}
        return Reading(prompt_ids, ids, spans, untaught)

    def _text(self, own: Sequence[int]) -> tuple[list[int], list[Span]]:
        """Return the teacher's ids of ordinary tokens' text, and the spans."""
        said, cuts = spelled(self._own, own)
        ids = self._renderer.encode_text(said.decode(errors="replace"))
        return ids, spans_of((said, cuts), spelled(self._other, ids))


Spelled = tuple[bytes, list[int | None]]


def spelled(vocabulary: Vocabulary, ids: Sequence[int]) -> Spelled:
    """Return the bytes that ids spell, and the offset after each token; None where a tokenizer hides it, inside a character."""
    if vocabulary.bytes_of is not None:
        pieces = [vocabulary.bytes_of.get(index, b"") for index in ids]
        return b"".join(pieces), [*accumulate(map(len, pieces))]
    detokenizer, text, cuts = vocabulary.detokenizer(frozenset()), b"", list[int | None]()
    for index in ids:
        piece = detokenizer.push([index]).encode()
        text += piece
        cuts.append(len(text) if piece else None)
    if rest := detokenizer.finish().encode():
        text += rest
        cuts[-1] = len(text)
    return text, cuts


def spans_of(own: Spelled, other: Spelled) -> list[Span]:
    """Return the shortest spans with the same bytes; texts that differ are aligned from their beginning and from their end."""
    (one, _), (two, _) = own, other
    change, shift = PlainPart.between(one, two), len(two) - len(one)
    of_one, of_two = ({0: 0} | {end: n for n, end in enumerate(cuts, 1) if end is not None} for _, cuts in (own, other))
    places = [(place, place) for place in of_one if place <= change.start and place in of_two]
    if one != two:
        places += [(place, place + shift) for place in of_one if place >= change.end and place + shift in of_two]
    return [
        (range(of_one[start], of_one[end]), range(of_two[from_], of_two[to]))
        for (start, from_), (end, to) in pairwise(sorted(places))
        if start < end and one[start:end] == two[from_:to]
    ]


def _moved(span: Span, own: int, other: int) -> Span:
    one, two = span
    return range(one.start + own, one.stop + own), range(two.start + other, two.stop + other)


def _end_of_replies(renderer: Renderer) -> int | None:
    """Return the token with which a template ends a reply, or None if it has none."""
    try:
        return renderer.render_reply([{"role": "user", "content": "Hi."}], {"role": "assistant", "content": "Hi."})[1][
            -1
        ]
    except RenderError:
        return None
