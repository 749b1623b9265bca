"""A judge of groups: scores several replies to one prompt against each other, by one question.

The prompt is shown once, then every reply, one message or a whole trajectory, with a number. The answer ends in one box with a
score from 0 to 1 for each number (`openclaw.judge.answers.read_scores`). Scores of different groups are not comparable, so a group
trains what lies above its mean against what lies below. The idea is that of ART's RULER: https://art.openpipe.ai/fundamentals/ruler.

Guarantees: one answer covers a group; an invalid one is asked for again, `CASTINGS` times in all. Every answer sees the members in an
order of its own, which is recorded, and scores come back in the group's order. Members that the judge would see alike are shown
once and get the same score; a group in which all are alike is not asked about. Judged text is data: each message is in a fence of
its own (`openclaw.judge.prompts`). A technical failure is a `JudgeError` and never a score. So long as fewer valid answers
than the quorum came, there is no score, which is not the same as a tie.

Long groups: a question has about `MAX_JUDGED_CHARACTERS` characters. The prompt gets up to a quarter of them, and the members equal shares of
the rest. Within a share the longest messages lose their middle, and so many messages that each would have fewer than
`FEWEST_CHARACTERS` lose those in the middle. A judge that refuses a question gets it again with a half, a quarter and an eighth of
that. A Python class gets everything as it is.
"""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

from groundwork.chat_messages import Message
from openclaw.exceptions import EngineRefusedError
from openclaw.judge.answers import read_scores, scores_grammar
from openclaw.judge.client import together
from openclaw.judge.endpoint import ClassJudge
from openclaw.judge.interface import MAX_JUDGED_CHARACTERS, Speaker, shown_text
from openclaw.judge.prompts import MOST_MEMBERS, group_messages
from openclaw.judge.voting import CASTINGS, has_quorum
from openclaw.ledger.records import InvalidVote
from openclaw.messages.text import response_text

logger = logging.getLogger(__name__)

SHARES = (1.0, 0.5, 0.25, 0.125)
"""Of a question's usual length, tried one after another until the judge takes it."""
PROMPT_SHARE = 0.25
FEWEST_CHARACTERS = 200
TIE = 1e-9
Outcome = Literal["scored", "tied", "alike", "no_quorum", "refused"]
"""What became of a group: different scores; equal ones; nothing to tell apart; too few valid answers; the judge takes no such question."""
Shown = tuple[tuple[str, str], ...]
"""(role, text) of each message."""


@dataclass(frozen=True)
class Group:
    """Replies to compare.

    Attributes:
        prompt: the messages that all of them answer.
        members: the messages of each reply: one, or those of a trajectory with what the environment answered.
        rubric: what makes a reply good.
    """

    prompt: Sequence[Message]
    members: Sequence[Sequence[Message]]
    rubric: str


@dataclass(frozen=True)
class GroupVote:
    """One answer about a group.

    Attributes:
        order: positions in the group of the members that were shown, in the order in which they were.
        scores: of these members in that order; None for an invalid answer.
        answer: what the judge wrote.
        seconds: how long it took.
        value: None for an invalid answer, otherwise 1.
        invalid: why it has no scores, as in `openclaw.ledger.records.Vote`.
    """

    order: tuple[int, ...]
    scores: tuple[float, ...] | None
    answer: str
    seconds: float
    invalid: InvalidVote | None = None

    @property
    def value(self) -> int | None:
        """Whether the answer counts towards a quorum: None, or 1."""
        return None if self.scores is None else 1


@dataclass(frozen=True)
class Comparison:
    """What a judge made of a group.

    Attributes:
        outcome: see `Outcome`.
        scores: one per member in the group's order, the mean over valid answers, 0 to 1; None unless ``scored`` or ``tied``.
        votes: the answers that counted, and at the end those that did not.
        shortened: whether the judge saw less than everything.
    """

    outcome: Outcome
    scores: tuple[float, ...] | None = None
    votes: tuple[GroupVote, ...] = ()
    shortened: bool = False

    @property
    def orders(self) -> list[list[int]]:
        """The order of each answer."""
        return [list(vote.order) for vote in self.votes]


class GroupJudge:
    """Compares the members of groups; stateless."""

    def __init__(self, judge: Speaker | ClassJudge, votes: int, quorum: float) -> None:
        """Create it.

        Args:
            judge: a model that follows prompts, or a class with ``score_group``.
            votes: answers about a group, each with another order.
            quorum: least share of valid answers among those asked for.
        """
        self._judge = judge
        self._votes = votes
        self._quorum = quorum

    async def compare(self, group: Group, chance: random.Random | None = None) -> Comparison:
        """Return the scores of a group's members, or why there are none.

        Args:
            group: of at most `MOST_MEMBERS` members.
            chance: decides the orders; None: a source that nobody can foresee.

        Raises:
            JudgeError: the judge is unavailable.
            ValueError: there are more members.
        """
        if len(group.members) > MOST_MEMBERS:
            raise ValueError(f"{len(group.members)} members are more than the {MOST_MEMBERS} that a judge compares")
        chance = chance or random.SystemRandom()
        for share in SHARES:
            room = math.inf if isinstance(self._judge, ClassJudge) else share * MAX_JUDGED_CHARACTERS
            prompt, members = shown(group, room)
            shortened = (prompt, members) != shown(group, math.inf)
            same = [members.index(each) for each in members]
            distinct = sorted(set(same))
            if len(distinct) < 2:
                return Comparison("alike", shortened=shortened)
            try:
                votes = await self._cast(group, (prompt, members), distinct, chance)
            except EngineRefusedError as error:
                logger.warning("the judge refused a group of %d in %g characters: %s", len(distinct), room, error)
                continue
            return _counted(votes, same, self._quorum, shortened)
        return Comparison("refused", shortened=True)

    async def _cast(
        self, group: Group, seen: tuple[Shown, list[Shown]], distinct: Sequence[int], chance: random.Random
    ) -> list[GroupVote]:
        """Return the answers about a group; without a quorum the invalid ones are asked for again."""
        valid: list[GroupVote] = []
        invalid: list[GroupVote] = []
        for _ in range(CASTINGS):
            orders = orders_of(distinct, self._votes - len(valid), chance)
            votes = await together(*(self._vote(group, seen, order) for order in orders))
            valid += [vote for vote in votes if vote.scores is not None]
            invalid = [vote for vote in votes if vote.scores is None]
            if has_quorum([*valid, *invalid], self._quorum):
                break
        return [*valid, *invalid]

    async def _vote(self, group: Group, seen: tuple[Shown, list[Shown]], order: tuple[int, ...]) -> GroupVote:
        if isinstance(self._judge, ClassJudge):
            members = [group.members[place] for place in order]
            answer, seconds = await self._judge.group_scores(group.prompt, members, group.rubric)
            scores = _numbers(answer, len(order))
            return GroupVote(order, scores, repr(answer), seconds, None if scores else "other_box")
        prompt, members = seen
        rubric = shown_text(group.rubric, len(group.rubric))
        asked = group_messages(rubric, prompt, [members[place] for place in order])
        [said] = await self._judge.said(asked, 1, scores_grammar(len(order)))
        scores, why = read_scores(said.text, len(order), finish=said.finish, inside_thought=said.inside_thought)
        return GroupVote(order, scores, said.text, said.seconds, why)


def orders_of(members: Sequence[int], count: int, chance: random.Random) -> list[tuple[int, ...]]:
    """Return ``count`` orders of members: a random one and rotations of it, so that each member stands in as many places as can be."""
    shuffled = chance.sample(list(members), len(members))
    turns = [number * len(shuffled) // count for number in range(count)]
    return [tuple(shuffled[turn:] + shuffled[:turn]) for turn in turns]


def shown(group: Group, room: float) -> tuple[Shown, list[Shown]]:
    """Return the prompt and the members as a judge sees them in ``room`` characters; see the module."""
    prompt = _shortened(group.prompt, PROMPT_SHARE * room)
    left = room - sum(len(text) for _, text in prompt)
    return prompt, [_shortened(member, left / len(group.members)) for member in group.members]


def _shortened(messages: Sequence[Message], room: float) -> Shown:
    texts = [(str(message.get("role", "user")), response_text(message)) for message in messages]
    if len(texts) * FEWEST_CHARACTERS > room:
        ends = max(1, int(room / FEWEST_CHARACTERS) // 2)
        gap = len(texts) - 2 * ends
        if gap > 0:
            texts = [*texts[:ends], ("left out", f"{gap} messages"), *texts[-ends:]]
    most = fair_share([len(text) for _, text in texts], room)
    return tuple((role, shown_text(text, most)) for role, text in texts)


def fair_share(lengths: Sequence[int], room: float) -> int:
    """Return the length to which the longest of some texts are cut, so that all together have ``room``."""
    for number, length in enumerate(sorted(lengths)):
        share = room / (len(lengths) - number)
        if length > share:
            return int(share)
        room -= length
    return max(lengths, default=0)


def _numbers(answer: Any, count: int) -> tuple[float, ...] | None:
    """Return a class's scores, or None if they are not one number from 0 to 1 for each of ``count`` members."""
    if not isinstance(answer, list | tuple):
        return None
    given = cast(Sequence[Any], answer)
    numbers = [each for each in given if isinstance(each, int | float) and not isinstance(each, bool)]
    if not len(numbers) == len(given) == count or not all(0.0 <= each <= 1.0 for each in numbers):
        return None
    return tuple(map(float, numbers))


def _counted(votes: Sequence[GroupVote], same: Sequence[int], quorum: float, shortened: bool) -> Comparison:
    """Return the mean scores of answers; ``same``: the member that stood for each."""
    found = [dict(zip(vote.order, vote.scores, strict=True)) for vote in votes if vote.scores is not None]
    if not has_quorum(votes, quorum):
        return Comparison("no_quorum", None, tuple(votes), shortened)
    scores = tuple(math.fsum(each[place] for each in found) / len(found) for place in same)
    outcome: Outcome = "scored" if max(scores) - min(scores) > TIE else "tied"
    return Comparison(outcome, scores, tuple(votes), shortened)
