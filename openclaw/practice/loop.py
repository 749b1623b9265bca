"""Draws the replies of practice: the present weights answer stored prompts, and the base model that reads the lessons scores them.

Guarantees: the ledger holds all state. A round is committed as a whole, so a process that dies in one loses the requests that were
under way and nothing else, and repeats nothing. A person's next round begins when the weights of the last one are live. An engine
that is away costs nobody a round; whatever else fails ends this person's round alone, is recorded and counted, and the next
person goes on. The prompts and replies of a person are sent under that person's cache key.
"""

from __future__ import annotations

import asyncio
import logging
import time
from bisect import bisect_right
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram

from openclaw.exceptions import EngineUnavailableError
from openclaw.judge.client import BaseModel, Engine, together
from openclaw.judge.measure import Rubric
from openclaw.judge.reading import Render, prompt_under
from openclaw.judge.teacher import Scores, TeacherMismatchError, log_normaliser, score
from openclaw.ledger.exceptions import LedgerUnavailableError
from openclaw.ledger.practice import HELDOUT, REPLAYED, Round, RoundOutcome
from openclaw.ledger.records import TopK, Turn
from openclaw.ledger.store import Ledger
from openclaw.lessons.lesson import Lesson, Mode, as_hint
from openclaw.messages.hints import append_hint
from openclaw.owners import LOCAL, owner_of
from openclaw.practice.plan import (
    HELDOUT_REPLIES,
    PROMPTS,
    REPLAYS,
    Prompt,
    Wanted,
    distance,
    emphasised,
    group_rewards,
    is_near,
    is_over,
    may_begin,
    may_go_unmeasured,
    person_name,
    replies_of_round,
    reply_room,
    series_of,
    taught,
    verdict_of,
)
from slime.utils.types import Sample

logger = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
AWAY_SECONDS = 5.0
SHARE_OF_TIME = 0.1
"""Most of the time that looking for something to do may take."""


@dataclass(frozen=True)
class PracticeSettings:
    """Settings of the loop.

    Attributes:
        lessons: which are practised.
        most_lessons: that the teacher reads together.
        budget: most tokens of prompts and replies in a round.
        rounds: most rounds of a person with the same lessons in a day.
        topk: tokens of the teacher at each position.
        temperature: of the replies.
        reply_tokens: longest reply.
        context: tokens of prompt plus reply.
        default: the mode of a person who has chosen none.
        made_by: what the ledger calls the method that trains the samples.
        replay: most turns of the person that a round trains again.
    """

    lessons: Wanted
    most_lessons: int
    budget: int
    rounds: int
    topk: int
    temperature: float
    reply_tokens: int
    context: int
    default: Mode
    made_by: str
    replay: int = 0


class PracticeMetrics:
    """Registers the metrics of practice; owned by the loop."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.rounds = Counter(
            "openclaw_practice_rounds",
            "Rounds of practice by outcome: drawn, reached, stuck, failed",
            ["outcome"],
            registry=registry,
        )
        self.groups = Counter(
            "openclaw_practice_groups",
            "Groups of replies compared, by outcome: scored, tied, alike, no_quorum, refused; and whether the judge saw them shortened",
            ["outcome", "shortened"],
            registry=registry,
        )
        self.tokens = Counter("openclaw_practice_tokens", "Tokens of practised prompts and replies", registry=registry)
        self.idle = Counter(
            "openclaw_practice_idle_looks", "Searches that found nothing to practise with anybody", registry=registry
        )
        self.kl = Histogram(
            "openclaw_practice_kl",
            "Nats per token from the weights to the teacher on held-out prompts, before each round",
            buckets=(0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0),
            registry=registry,
        )


@dataclass(frozen=True)
class Due:
    """What a person practises next.

    Attributes:
        at: when this was found, seconds since the epoch.
        lessons: that the teacher reads.
        series: their digest.
        rounds: those with the same lessons.
        practised: turns whose prompts may be practised.
        heldout: turns whose prompts measure it; none if the person has too few prompts.
    """

    person: str
    at: float
    lessons: list[Lesson]
    series: str
    rounds: list[Round]
    practised: list[Turn]
    heldout: list[Turn]


@dataclass(frozen=True)
class Reply:
    """A reply of the present weights, the end token included; ``spans``: version, start and end of each stretch."""

    prompt: Prompt
    ids: list[int]
    log_probs: list[float]
    spans: list[tuple[str, int, int]]
    finish: str

    @property
    def tokens(self) -> int:
        """Tokens of prompt and reply."""
        return len(self.prompt.student_ids) + len(self.ids)


class PracticeLoop:
    """Practises for one person after the other until stopped."""

    def __init__(
        self,
        ledger: Ledger,
        engine: Engine,
        render: Render,
        count_tokens: Callable[[str], int],
        settings: PracticeSettings,
        metrics: PracticeMetrics,
        paused: Callable[[], Collection[str]] = tuple,
        rubric: Rubric | None = None,
    ) -> None:
        """Create the loop.

        Args:
            ledger: of the run.
            engine: of the policy, with adapters.
            render: renders messages, tools and template keywords to prompt ids, as the gateway does; called in a thread.
            count_tokens: of a lesson's text, as the gateway counts them.
            settings: of the loop.
            metrics: of the loop.
            paused: returns the people whose training is paused; they do not practise.
            rubric: tells which replies to a prompt obey, so that they give rewards as a group; None: they give none.
        """
        self._paused = paused
        self._rubric = rubric
        self._ledger = ledger
        self._engine = engine
        self._base = BaseModel(engine)
        self._render = render
        self._count_tokens = count_tokens
        self._settings = settings
        self._metrics = metrics
        self._last = LOCAL
        """Whom the loop has looked at last."""

    async def run(self, stop: asyncio.Event) -> None:
        """Practise until ``stop`` is set, then close the engine's connections."""
        stopping = asyncio.create_task(stop.wait())
        working = asyncio.create_task(self._work())
        try:
            await asyncio.wait([stopping, working], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (stopping, working):
                task.cancel()
            await asyncio.gather(stopping, working, return_exceptions=True)
            await self._engine.close()

    async def _work(self) -> None:
        while True:
            started, pause = time.monotonic(), LOOK_SECONDS
            try:
                looked = await self._look()
            except (EngineUnavailableError, LedgerUnavailableError) as error:
                logger.warning("practice waits: %s", error)
                pause = AWAY_SECONDS
            except Exception:
                logger.exception("looking for something to practise failed; it is tried again")
                pause = AWAY_SECONDS
            else:
                pause = max(pause, (looked - started) / SHARE_OF_TIME)
            await asyncio.sleep(pause)

    async def _look(self) -> float:
        """Practise a round with each person for whom one is due; return when the search ended, as if it alone took time.

        After an engine failed a person, the next search begins with the one after: the engine may lack this person's adapter alone.
        """
        spent, found = 0.0, False
        people = await asyncio.to_thread(self._ledger.practices.people)
        first = bisect_right(people, self._last)
        for person in [*people[first:], *people[:first]]:
            self._last = person
            due = await asyncio.to_thread(self.due, person)
            if due is not None:
                found = True
                began = time.monotonic()
                await self.practise(due)
                spent += time.monotonic() - began
        self._metrics.idle.inc(not found)
        return time.monotonic() - spent

    def due(self, person: str) -> Due | None:
        """Return what a person practises now, or None if nothing is due."""
        settings, ledger = self._settings, self._ledger
        if person in self._paused():
            return None
        lessons = self._read_now(person)
        series = series_of(lessons)
        if ledger.practices.under_way(person, series) or not lessons:
            return None
        rounds = ledger.practices.rounds(person, series)
        now = ledger.database.clock()
        if is_over(rounds, now) or not may_begin(rounds, now, settings.rounds):
            return None
        longest = min(settings.context, settings.budget) - 1
        names = [lesson.id for lesson in lessons]
        practised, heldout = ledger.practices.prompts(person, names, PROMPTS, longest)
        if not practised or not (heldout or may_go_unmeasured(rounds, len(practised), settings.rounds)):
            return None
        return Due(person, now, lessons, series, rounds, practised, heldout)

    def _read_now(self, person: str) -> list[Lesson]:
        """Return the lessons that a person's teacher reads now; none if the person's lessons are off."""
        settings, lessons = self._settings, self._ledger.lessons
        if lessons.mode(person, settings.default) == "off":
            return []
        known, most = lessons.of(person), settings.most_lessons
        return taught(known, settings.lessons, self._count_tokens, settings.context, most)

    async def practise(self, due: Due) -> None:
        """Measure how far the weights are from the teacher, and draw a round unless they are near or come no nearer.

        A person with few prompts practises them unmeasured, so that a first complaint works at once.

        Raises:
            EngineUnavailableError: the engine is away; nothing is recorded.
            LedgerUnavailableError: the same for the ledger.
        """
        try:
            await self._practise(due)
        except (EngineUnavailableError, LedgerUnavailableError):
            raise
        except Exception:
            logger.exception("practice of person %s failed; other people's goes on", person_name(due.person))
            await self._record(due, "failed", None)

    async def _practise(self, due: Due) -> None:
        heldout = await self._prompts(due, due.heldout)
        kl = None
        if heldout:
            kl = await self._distance(await self._draw([(prompt, HELDOUT_REPLIES) for prompt in heldout]))
            self._metrics.kl.observe(kl)
        outcome = verdict_of(kl, due.rounds, measured=len(heldout) == HELDOUT)
        if outcome != "drawn":
            await self._record(due, outcome, kl)
            return
        settings = self._settings
        prompts = await self._prompts(due, due.practised)
        wanted = replies_of_round(prompts, settings.budget, settings.reply_tokens, settings.context)
        replies = await self._draw(wanted)
        if not replies:
            raise ValueError("no prompt has room for a reply")
        scores = await together(*(self._taught(reply) for reply in replies))
        samples = [(reply.prompt.turn.id, sample_of(reply, topk)) for reply, topk in zip(replies, scores, strict=True)]
        left = settings.budget - sum(reply.tokens for reply in replies)
        for turn_id, sample in [*await self._compared(due, replies), *await self._replayed(due)]:
            if len(sample.tokens) <= left:
                left -= len(sample.tokens)
                samples.append((turn_id, sample))
        await self._record(due, "drawn", kl, samples, sum(len(sample.tokens) for _, sample in samples))

    async def _record(
        self,
        due: Due,
        outcome: RoundOutcome,
        kl: float | None,
        samples: list[tuple[str, Sample]] | None = None,
        tokens: int = 0,
    ) -> None:
        done = Round(series=due.series, outcome=outcome, kl=kl, tokens=tokens, at=due.at)
        heldout = [turn.id for turn in due.heldout]

        def still_true() -> bool:
            return series_of(self._read_now(due.person)) == due.series

        written = await asyncio.to_thread(
            self._ledger.practices.record, due.person, done, still_true, samples or (), heldout, self._settings.made_by
        )
        name, distance = person_name(due.person), "unknown" if kl is None else f"{kl:.3f} nats per token"
        if not written:
            logger.info(
                "practice of person %s: a prompt was deleted or a lesson changed meanwhile; the round is lost", name
            )
            return
        self._metrics.rounds.labels(outcome=outcome).inc()
        self._metrics.tokens.inc(tokens)
        logger.info(
            "practice of person %s, %d lessons, round %d: %s; %s from the teacher; %d replies, %d tokens",
            *(name, len(due.lessons), len(due.rounds) + 1, outcome, distance, len(samples or ()), tokens),
        )

    async def _prompts(self, due: Due, turns: list[Turn]) -> list[Prompt]:
        """Return the prompts of turns, as the student and as the teacher reads them."""
        hint = as_hint(due.lessons)

        def rendered(turn: Turn) -> Prompt:
            return Prompt(turn, turn.student_ids, prompt_under(self._render, turn, append_hint(turn.messages, hint)))

        return [await asyncio.to_thread(rendered, turn) for turn in turns]

    async def _draw(self, wanted: list[tuple[Prompt, int]]) -> list[Reply]:
        """Return replies of the present weights to prompts, without lessons; empty ones are left out."""
        asked = [prompt for prompt, count in wanted for _ in range(count)]
        replies = await together(*map(self._reply, asked))
        return [reply for reply in replies if reply.ids]

    async def _reply(self, prompt: Prompt) -> Reply:
        settings = self._settings
        room = reply_room(prompt, settings.reply_tokens, settings.context)
        answer = await self._engine.generate(
            {
                "input_ids": prompt.student_ids,
                "sampling_params": {"temperature": settings.temperature, "max_new_tokens": room},
                "return_logprob": True,
            },
            owner_of(prompt.turn.session_id),
        )
        return read_reply(prompt, answer)

    async def _taught(self, reply: Reply) -> TopK:
        """Return the teacher's likeliest tokens at each token of a reply.

        To a prompt without the lessons it means them a little more than the base model does.
        """
        taught = self._likeliest(self._base, reply.prompt.teacher_ids, reply)
        if not reply.prompt.is_plain:
            return await taught
        plain = self._likeliest(self._base, reply.prompt.student_ids, reply)
        with_lessons, without = await together(taught, plain)
        return emphasised(with_lessons, without)

    async def _compared(self, due: Due, replies: list[Reply]) -> list[tuple[str, Sample]]:
        """Return the replies to plain prompts with the rewards of their groups, with their turns; none without a rubric."""
        rubric, wish = self._rubric, as_hint(due.lessons)
        if rubric is None:
            return []
        groups: dict[str, list[Reply]] = {}
        for reply in replies:
            if reply.prompt.is_plain:
                groups.setdefault(reply.prompt.turn.id, []).append(reply)
        samples: list[tuple[str, Sample]] = []
        for turn_id, group in groups.items():
            found = await rubric.compared(
                group[0].prompt.turn, wish, [(each.prompt.teacher_ids, each.ids) for each in group]
            )
            self._metrics.groups.labels(outcome=found.outcome, shortened=found.shortened).inc()
            if found.outcome != "scored":
                logger.info(
                    "practice of person %s: a group of %d replies trains nothing: %s",
                    *(person_name(due.person), len(group), found.outcome),
                )
                continue
            scores = found.scores or ()
            for place, (reply, reward) in enumerate(zip(group, group_rewards(scores), strict=True)):
                sample = sample_of(reply, reward=reward)
                sample.metadata["group"] = {"score": scores[place], "place": place, "orders": found.orders}
                samples.append((turn_id, sample))
        return samples

    async def _replayed(self, due: Due) -> list[tuple[str, Sample]]:
        """Return the person's own turns that are trained again, each with its sample: those that the weights are still near to."""
        settings = self._settings
        if not settings.replay or not settings.temperature:
            return []
        held = [turn.id for turn in due.heldout]
        known = await asyncio.to_thread(self._ledger.practices.replayable, due.person, held, settings.replay, REPLAYS)
        near = await together(*map(self._is_near, known))
        return [
            (replayed.metadata["turn_id"], again(replayed)) for replayed, fits in zip(known, near, strict=True) if fits
        ]

    async def _is_near(self, sample: Sample) -> bool:
        """Return whether the present weights are near those that sampled a reply; not if that cannot be told."""
        start, power = len(sample.tokens) - sample.response_length, 1.0 / self._settings.temperature
        prompt, ids, owner = sample.tokens[:start], sample.tokens[start:], owner_of(sample.session_id or "")
        found = await score(self._engine, prompt, ids, self._settings.topk, owner=owner)
        normalisers = [log_normaliser(row, power) for row in likeliest(found).log_probs]
        sampled, known = sample.rollout_log_probs, [each for each in normalisers if each is not None]
        if not sampled or len(known) < len(ids):
            return False
        return is_near(sampled, [value * power - each for value, each in zip(found.log_probs, known, strict=True)])

    async def _likeliest(self, engine: Engine, prompt_ids: list[int], reply: Reply) -> TopK:
        owner = owner_of(reply.prompt.turn.session_id)
        return likeliest(await score(engine, prompt_ids, reply.ids, self._settings.topk, owner=owner))

    async def _distance(self, replies: list[Reply]) -> float:
        """Return the mean KL per token of the present weights without lessons from the teacher, at the tokens of replies.

        Raises:
            ValueError: there is no reply.
        """
        if not replies:
            raise ValueError("the held-out prompts have no replies")

        async def one(reply: Reply) -> float:
            student = self._likeliest(self._engine, reply.prompt.student_ids, reply)
            return distance(*await together(student, self._taught(reply)))

        return sum(await together(*map(one, replies))) / sum(len(reply.ids) for reply in replies)


def likeliest(scores: Scores) -> TopK:
    """Return the likeliest tokens that were asked for."""
    if scores.topk is None:
        raise TeacherMismatchError("the engine gave no likeliest tokens")
    return scores.topk


def read_reply(prompt: Prompt, answer: dict[str, Any]) -> Reply:
    """Return the reply of an engine's answer.

    Raises:
        TeacherMismatchError: the answer lacks numbers for its tokens, or its weight version.
    """
    meta = answer["meta_info"]
    ids: list[int] = list(answer.get("output_ids") or ())
    entries = meta.get("output_token_logprobs") or ()
    if [entry[1] for entry in entries] != ids:
        raise TeacherMismatchError("the engine's logprobs belong to other tokens than it sampled")
    spans = [(str(each["version"]), each["start"], each["end"]) for each in meta.get("weight_versions") or ()]
    finish = (meta.get("finish_reason") or {}).get("type", "stop")
    whole = [(str(meta["weight_version"]), 0, len(ids))]
    return Reply(prompt, ids, [entry[0] for entry in entries], spans or whole, finish)


def sample_of(reply: Reply, teacher: TopK | None = None, reward: float = 0.0) -> Sample:
    """Return the sample that distils the teacher's numbers into a reply's tokens, or without them trains its reward."""
    turn = reply.prompt.turn
    return Sample(
        prompt=turn.messages,
        tokens=[*reply.prompt.student_ids, *reply.ids],
        response_length=len(reply.ids),
        reward=reward,
        loss_mask=[1] * len(reply.ids),
        weight_versions=list(dict.fromkeys(version for version, _, _ in reply.spans)),
        weight_spans=[list(span) for span in reply.spans],
        rollout_log_probs=reply.log_probs,
        teacher_topk_log_probs=None if teacher is None else teacher.log_probs,
        teacher_topk_indices=None if teacher is None else teacher.ids,
        session_id=turn.session_id,
        status=Sample.Status.TRUNCATED if reply.finish == "length" else Sample.Status.COMPLETED,
        metadata={"turn_index": turn.index, "next_state_at": None, "raw_reward": reward},
    )


def again(sample: Sample) -> Sample:
    """Return a trained turn's sample as one that is trained again: with its reward and with what it was sampled with."""
    return replace(sample, metadata={**sample.metadata, REPLAYED: True})
