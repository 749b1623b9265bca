"""Measures, after an update, whether the weights satisfy a person's lessons without them (`openclaw.lessons.lesson.Measure`).

The current weights, without lessons, answer up to `PROMPTS` of the person's stored prompts `REPLIES` times each; half of these
prompts were never practised, as far as there are such. Beside them stand as many replies of the base model
that reads the lesson. A reply ``a`` to a prompt ``x`` scores

    d = mean_k [log p_base(a_k | x + lesson, a_<k) - log p_base(a_k | x, a_<k)]    in nats per token,

which the lesson itself makes positive. A judge that follows instructions replaces ``d`` by its vote whether the reply obeys
(`Rubric`, which `openclaw.practice` also asks).

Guarantees: each person is measured at most once per live update, on prompts of its own, with a bounded number of replies and tokens,
`TOGETHER` at a time. All replies of a measurement come from the live weights; if they change meanwhile, it starts again. The
base model is frozen, so an update cannot move its own measure. An engine without a base model (a run that trains whole weights)
has no such measure: there only a judge's votes count, and without one nothing is measured, because a policy that ignores a lesson
and a policy that has learned it look the same to themselves. A prompt keeps the ids that were served around the lesson
(`openclaw.judge.teacher.with_served_ids`), so both prompts of a comparison differ in the lesson alone; one where this cannot be
is left out.
"""

from __future__ import annotations

import asyncio
import logging
import math
import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from openclaw.exceptions import EngineRefusedError, EngineUnavailableError, JudgeError
from openclaw.judge.client import Engine, together
from openclaw.judge.group import Comparison, Group, GroupJudge
from openclaw.judge.interface import Judge, Question
from openclaw.judge.prompts import obeys_messages
from openclaw.judge.reading import Render, with_served_ids
from openclaw.judge.teacher import score
from openclaw.judge.voting import JudgeMetrics
from openclaw.ledger.exceptions import LedgerUnavailableError
from openclaw.ledger.records import Turn
from openclaw.ledger.store import Ledger
from openclaw.lessons.lesson import MAX_SERVED, Lesson, Measure, Mode
from openclaw.messages.classify import user_words
from openclaw.messages.hints import append_hint
from openclaw.messages.text import clip_middle
from openclaw.owners import owner_of

logger = logging.getLogger(__name__)

PROMPTS = 8
REPLIES = 2
FEWEST_PROMPTS = 4
LOOKED_AT = 32
"""Newest turns among which prompts are sought."""
MAX_PROMPT_TOKENS = 8192
MAX_REPLY_TOKENS = 512
TOGETHER = 4
"""Requests at a time, so that replies to people hardly wait."""
TRIES = 3
POLL_SECONDS = 5.0
MAX_SHOWN = 10_000
"""Characters of a request or reply that a judge reads."""

ReadReply = Callable[[Sequence[int], Sequence[int]], str]
"""Returns the visible text of reply ids to prompt ids."""


@dataclass(frozen=True)
class Asked:
    """A prompt of a person, whether it was practised, and the replies of the weights to it without lessons."""

    turn: Turn
    practised: bool
    replies: list[list[int]]


class UnmeasurableError(Exception):
    """A lesson cannot be measured; the word of the metric says why."""


Candidate = tuple[Turn, bool]
"""A turn, and whether its prompt was practised."""


def chosen_turns(turns: Sequence[Candidate], most: int = PROMPTS) -> list[Candidate]:
    """Return up to ``most`` turns with different prompts, the first ones, half of them never practised if there are so many."""
    practised = {tuple(turn.student_ids) for turn, was in turns if was}
    different = {tuple(turn.student_ids): turn for turn, _ in reversed(turns)}
    candidates = [(turn, ids in practised) for ids, turn in reversed(different.items())]
    new, used = ([each for each in candidates if each[1] == was] for was in (False, True))
    half = max(most // 2, most - len(used))
    return [*new[:half], *used[: most - min(half, len(new))]]


def compared(plain: Sequence[Sequence[float]], taught: Sequence[Sequence[float]]) -> dict[str, float]:
    """Return the means and errors of a `Measure` from the scores of the replies to each prompt.

    Args:
        plain: scores without the lesson, a row per prompt.
        taught: scores with it, of the same prompts.
    """
    without, under = ([statistics.fmean(row) for row in rows] for rows in (plain, taught))
    count = len(without)
    differences = [a - b for a, b in zip(without, under, strict=True)]
    return {
        "plain": statistics.fmean(without),
        "taught": statistics.fmean(under),
        "error": statistics.stdev(differences) / math.sqrt(count),
        "taught_error": statistics.stdev(under) / math.sqrt(count),
    }


def _is_of(measure: Measure | None, live: tuple[str, float]) -> bool:
    """Return whether the weights that serve were measured; a restored checkpoint may serve for longer than later ones did."""
    return measure is not None and measure.weight_version == live[0] and measure.at >= live[1]


OBEYS_RUBRIC = (
    "How well a reply follows these standing wishes of the person, and nothing else. A reply that follows them scores high even if it "
    "is wrong or short; one that does not scores low."
)


class Rubric:
    """Scores replies against lessons, `TOGETHER` at a time."""

    def __init__(
        self,
        base: Engine,
        judge: tuple[Judge, ReadReply] | None = None,
        group: tuple[GroupJudge, ReadReply] | None = None,
    ) -> None:
        """Create a rubric.

        Args:
            base: the frozen base model.
            judge: one that follows instructions, and how it gets a reply's text; None: the base model scores.
            group: one that compares the replies to a prompt by one question; None: each reply is scored alone.
        """
        self._base = base
        self._judge = judge
        self._group = group
        self.slots = asyncio.Semaphore(TOGETHER)

    @property
    def votes(self) -> bool:
        """Whether a judge scores."""
        return self._judge is not None

    async def score(self, turn: Turn, wish: str, prompt: Sequence[int], reply: Sequence[int]) -> float:
        """Return how well a reply to a turn's prompt obeys a wish: a judge's vote, 1 or 0, or ``d`` in nats per token.

        Args:
            turn: whose prompt it is.
            wish: a lesson, or several.
            prompt: ids of the turn's prompt with the wish.
            reply: ids of the reply.

        Raises:
            UnmeasurableError: the judge's answer is no vote.
            JudgeError: an engine was unavailable or gave unusable numbers.
        """
        return await (self._difference(turn, prompt, reply) if self._judge is None else self._vote(turn, wish, reply))

    async def obeys(self, turn: Turn, wish: str, prompt: Sequence[int], reply: Sequence[int]) -> bool:
        """Return whether a reply obeys a wish; see `score`. By the base model it does if the wish makes it likelier."""
        return await self.score(turn, wish, prompt, reply) > 0

    async def compared(
        self, turn: Turn, wish: str, replies: Sequence[tuple[Sequence[int], Sequence[int]]]
    ) -> Comparison:
        """Return how well several replies to a turn's prompt obey a wish: a score each, or why there is none.

        Args:
            turn: whose prompt it is.
            wish: a lesson, or several.
            replies: ids of the prompt with the wish and of the reply, for each.

        Raises:
            JudgeError: an engine was unavailable or gave unusable numbers.
        """
        if self._group is None:
            try:
                obeyed = await together(*(self.obeys(turn, wish, prompt, reply) for prompt, reply in replies))
            except UnmeasurableError:
                return Comparison("no_quorum")
            return Comparison("scored" if len(set(obeyed)) > 1 else "tied", tuple(map(float, obeyed)))
        judge, read = self._group
        texts = [await asyncio.to_thread(read, turn.student_ids, reply) for _, reply in replies]
        members = [[{"role": "assistant", "content": text}] for text in texts]
        async with self.slots:
            return await judge.compare(Group(turn.messages, members, f"{OBEYS_RUBRIC}\n\n{wish}"))

    async def _difference(self, turn: Turn, prompt: Sequence[int], reply: Sequence[int]) -> float:
        """Return ``d`` of a reply."""
        owner = owner_of(turn.session_id)
        async with self.slots:
            under, without = [await score(self._base, ids, reply, owner=owner) for ids in (prompt, turn.student_ids)]
        return statistics.fmean(a - b for a, b in zip(under.log_probs, without.log_probs, strict=True))

    async def _vote(self, turn: Turn, wish: str, reply: Sequence[int]) -> float:
        """Return 1 if the judge finds that a reply obeys the wish, else 0."""
        assert self._judge is not None
        judge, read = self._judge
        text = await asyncio.to_thread(read, turn.student_ids, reply)
        said: list[Any] = [message for message in turn.messages if message.get("role") == "user"]
        words = clip_middle(user_words(said[-1]) if said else "", MAX_SHOWN)
        asked = Question("", (), prompt=obeys_messages(words, clip_middle(text, MAX_SHOWN), wish))
        async with self.slots:
            [vote] = await judge.votes("hint", asked, 1)
        if vote.value is None:
            raise UnmeasurableError("unread")
        return float(vote.value == 1)


class LessonMeter:
    """Measures lessons until stopped."""

    def __init__(
        self,
        ledger: Ledger,
        policy: Engine,
        base: Engine,
        render: Render,
        metrics: JudgeMetrics,
        *,
        temperature: float,
        default: Mode,
        rubric: Rubric,
        on_moved: Callable[[str], None],
        per_person: bool = False,
    ) -> None:
        """Create the meter.

        Args:
            ledger: has lessons, prompts and live updates.
            policy: the engine with the live weights.
            base: its frozen base model.
            render: renders messages, tools and template keywords to prompt ids; called in a thread.
            metrics: counts measurements.
            temperature: of the replies.
            default: the mode of a person who has not chosen.
            rubric: scores the replies.
            on_moved: called with a person whose lessons have moved.
            per_person: whether each person has an adapter, whose updates are this person's alone.
        """
        self._ledger = ledger
        self._policy = policy
        self._base = base
        self._render = render
        self._metrics = metrics
        self._temperature = temperature
        self._default: Mode = default
        self._rubric = rubric
        self._on_moved = on_moved
        self._per_person = per_person
        self._base_answers: bool | None = None
        self._measured: dict[str, tuple[str, float]] = {}
        self._done: set[str] = set()
        self._tries: Counter[str] = Counter()

    async def run(self, stop: asyncio.Event) -> None:
        """Measure after each update until ``stop`` is set."""
        stopped = asyncio.create_task(stop.wait())
        try:
            while not stop.is_set():
                try:
                    await self.step()
                except (EngineUnavailableError, LedgerUnavailableError) as error:
                    logger.warning("measuring lessons waits: %s", error)
                except Exception:
                    logger.exception("measuring lessons failed; it continues")
                await asyncio.wait([stopped], timeout=POLL_SECONDS)
        finally:
            stopped.cancel()

    async def step(self) -> None:
        """Measure everybody's lessons that have not been measured since the live update.

        Raises:
            EngineUnavailableError: the engine is away, or the weights changed meanwhile.
        """
        for person in await asyncio.to_thread(self._ledger.lessons.measurable_people):
            whose = person if self._per_person else None
            live = await asyncio.to_thread(self._ledger.samples.live_update, whose)
            if live is None:
                continue
            if live != self._measured.get(person):
                self._measured[person], self._tries[person] = live, 0
                self._done.discard(person)
            version, _ = live
            if person in self._done:
                continue
            self._tries[person] += 1
            lessons = await asyncio.to_thread(self._ledger.lessons.measurable, person)
            if not lessons or any(_is_of(each.measure, live) for each in lessons):
                self._done.add(person)
                continue
            if self._tries[person] > TRIES:
                self._metrics.measured_lessons.labels(outcome="failed").inc()
                self._done.add(person)
                continue
            if await asyncio.to_thread(self._ledger.lessons.mode, person, self._default) != "off":
                try:
                    await self._measure(person, lessons, version)
                except UnmeasurableError as error:
                    self._metrics.measured_lessons.labels(outcome=str(error)).inc()
                except EngineUnavailableError:
                    raise
                except JudgeError as error:
                    self._metrics.measured_lessons.labels(outcome="failed").inc()
                    logger.error("the lessons of a person cannot be measured: %s", error)
            self._done.add(person)

    async def _measure(self, person: str, lessons: Sequence[Lesson], version: str) -> None:
        has_base = await self._has_base()
        if not has_base and not self._rubric.votes:
            raise UnmeasurableError("no_base")
        scorer: Literal["judge", "base"] = "judge" if self._rubric.votes else "base"
        turns = await asyncio.to_thread(self._turns, person, lessons[0])
        if len(turns) < FEWEST_PROMPTS:
            raise UnmeasurableError("few_prompts")
        asked = await together(*(self._answered(*each, version) for each in turns))
        first = sorted(lessons, key=lambda each: (each.is_confirmed, each.measure.at if each.measure else 0.0))
        reader = None if has_base else version
        for lesson in first[:MAX_SERVED]:
            try:
                found = await together(*(self._scored(each, lesson, reader) for each in asked))
            except UnmeasurableError as error:
                self._metrics.measured_lessons.labels(outcome=str(error)).inc()
                continue
            measure = Measure(
                weight_version=version,
                at=self._ledger.database.clock(),
                scorer=scorer,
                prompts=len(asked),
                practised=sum(each.practised for each in asked),
                **compared([plain for plain, _ in found], [taught for _, taught in found]),
            )
            move = await asyncio.to_thread(self._ledger.lessons.record_measure, person, lesson.id, lesson.text, measure)
            outcome = {"learn": "learned", "return": "returned"}.get(move or "", "stays")
            self._metrics.measured_lessons.labels(outcome=outcome).inc()
            logger.info("lesson %s %s: %s", lesson.id, outcome, measure)
            if move is not None:
                self._on_moved(person)

    async def _has_base(self) -> bool:
        """Return whether the engine has a base model beside the trained weights."""
        if self._base_answers is None:
            try:
                await self._base.generate({"input_ids": [0], "sampling_params": {"max_new_tokens": 1}})
                self._base_answers = True
            except EngineRefusedError:
                self._base_answers = False
                logger.info("the engine has no base model beside the trained weights; only a judge can measure lessons")
        return self._base_answers

    def _turns(self, person: str, lesson: Lesson) -> list[Candidate]:
        """Return the turns of a person whose prompts are answered: those with a place for a lesson."""
        found = self._ledger.lessons.prompts(person, LOOKED_AT, MAX_PROMPT_TOKENS)
        return chosen_turns([each for each in found if self._prompt(each[0], lesson) is not None])

    def _prompt(self, turn: Turn, lesson: Lesson) -> list[int] | None:
        """Return the ids of a turn's prompt with a lesson, or None if it has no place for it."""
        try:
            hinted, plain = (
                self._render(messages, turn.tools, turn.chat_template_kwargs)
                for messages in (append_hint(turn.messages, lesson.text), turn.messages)
            )
        except ValueError:
            return None
        return with_served_ids(turn.student_ids, plain, hinted)

    async def _answered(self, turn: Turn, practised: bool, version: str) -> Asked:
        """Return the prompt of a turn with replies of the live weights."""
        replies = [self._reply(self._policy, turn, turn.student_ids, version) for _ in range(REPLIES)]
        return Asked(turn, practised, await together(*replies))

    async def _scored(self, asked: Asked, lesson: Lesson, version: str | None) -> tuple[list[float], list[float]]:
        """Return the scores of the replies to a prompt without a lesson and with it.

        ``version``: of the weights that read the lesson; None: the base model does.
        """
        turn = asked.turn
        prompt = await asyncio.to_thread(self._prompt, turn, lesson)
        if prompt is None:
            raise UnmeasurableError("few_prompts")
        reader = self._base if version is None else self._policy
        taught = await together(*(self._reply(reader, turn, prompt, version) for _ in range(REPLIES)))

        async def scores(replies: Sequence[Sequence[int]]) -> list[float]:
            return await together(*(self._rubric.score(turn, lesson.text, prompt, reply) for reply in replies))

        return await scores(asked.replies), await scores(taught)

    async def _reply(self, engine: Engine, turn: Turn, prompt: Sequence[int], version: str | None) -> list[int]:
        """Return the ids of a sampled reply.

        Raises:
            EngineUnavailableError: other weights than ``version`` gave it.
        """
        sampling = {"temperature": self._temperature, "max_new_tokens": MAX_REPLY_TOKENS}
        async with self._rubric.slots:
            answer = await engine.generate(
                {"input_ids": list(prompt), "sampling_params": sampling}, owner_of(turn.session_id)
            )
        had = str(answer["meta_info"].get("weight_version", ""))
        if version is not None and had != version:
            raise EngineUnavailableError(f"version {had} answered, not version {version}, which was to be measured")
        ids: list[int] = answer["output_ids"]
        if not ids:
            raise EngineUnavailableError("the engine gave an empty reply")
        return ids
