"""One episode: lease, reset, replies and steps, verdict.

Guarantees: the lease is given back however the episode ends, cancellation included. An episode that the rollout aborts keeps
its lease and its half reply; `EpisodeRun.play` then goes on exactly there. A failure that is not the agent's is an
`EpisodeLost`, so it has no reward. Every limit ends the episode as truncated, and its state is still judged. An action that
outlasts its time in the environment is one of these limits; it cannot be judged, so it counts as failed. A pool that does
not answer is infrastructure. The wait for a lease and the time between an abort and the next `play` count as no time of it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from agentrl.client.episode import Episode, episode
from agentrl.deadlines import PASSED
from agentrl.exceptions import AgentError, DeadlineError, InvalidError
from agentrl.protocol import StepResult, Verdict
from agentrl.rollout.actions import Action, Malformed, error_text
from agentrl.rollout.context import Kept, cut, without_old_pictures
from agentrl.rollout.exceptions import EpisodeLost
from agentrl.rollout.opening import Opening, opening
from agentrl.rollout.pictures import Pictures, numbers_of, with_pictures
from agentrl.rollout.policy import Policy, turn_of
from agentrl.rollout.prompts import Conversation, Reply, Speech
from agentrl.rollout.records import EpisodeRecord
from agentrl.rollout.retool import AppendedConversation
from agentrl.rollout.rewards import outcome
from agentrl.rollout.settings import Settings
from agentrl.rollout.step_judge import StepJudge, View, step_question
from agentrl.service import LeaseService
from groundwork.chat_messages import Message
from groundwork.exceptions import ConfigError
from openclaw.messages.text import content_text
from slime.rollout.segments import SampledTurn
from slime.utils.types import PrefixCacheInfo, Sample

DONE = "done"
LATE = "step_seconds"
FAILED = Verdict(status="timeout", score=0.0, detail="an action of the agent took longer than a step may")
"""Of an episode that ends `LATE`: its environment was cut off in the middle, and cannot judge."""
NEVER = ("unknown_task", "larger_than_pool")
"""Codes of errors that no other lease would avoid."""
LEAST_REPLY_SHARE = 4
"""At most one part in so many of the context is kept free for the next reply."""


@dataclass(frozen=True)
class Turn:
    """A reply, its id for the judge, the numbers of its prompt's pictures, and its score."""

    sampled: SampledTurn
    step_id: str
    pictures: tuple[int, ...] = ()
    score: float | None = None


@dataclass(frozen=True)
class Result:
    """A finished episode.

    Attributes:
        turns: in order; none if the task alone is too long.
        first_prompt: ids of the first prompt.
        ending: `DONE`, or the limit that ended it.
        outcome: of the verdict; None without turns.
        counts: numbers for metrics, by name.
        prefix_cache: cached tokens of all requests.
        outside_seconds: time spent outside the engine.
        pictures: that the policy saw.
    """

    turns: list[Turn]
    first_prompt: list[int]
    ending: str
    outcome: float | None
    counts: dict[str, int]
    prefix_cache: PrefixCacheInfo
    outside_seconds: float
    pictures: Pictures


class EpisodeRun:
    """Runs one episode; owns its lease, record and judge until it ends or `close` is called."""

    def __init__(
        self,
        service: AbstractAsyncContextManager[LeaseService],
        policy: Policy,
        speech: Speech,
        settings: Settings,
        record: EpisodeRecord,
        *,
        task_id: str,
        seed: int,
        keywords: Mapping[str, Any] | None = None,
        judge: StepJudge | None = None,
        processor: Any | None = None,
    ) -> None:
        """Prepare; nothing is leased before `play`.

        Args:
            service: lends the environment; entered and left with the episode.
            policy: samples.
            speech: of the model.
            settings: limits.
            record: of the episode.
            task_id: of the pool's registry.
            seed: of the environment's start.
            keywords: for the chat template; those of the environment win.
            judge: of the steps.
            processor: of the policy's pictures; None: it has no eyes.
        """
        self._service = service
        self._policy = policy
        self._speech = speech
        self._settings = settings
        self._record = record
        self._task_id = task_id
        self._seed = seed
        self._keywords = keywords or {}
        self._judge = judge
        self._stack = AsyncExitStack()
        self._lent: Episode | None = None
        self._opening: Opening
        self._conversation: Conversation | AppendedConversation
        self._first_prompt: list[int] = []
        self._turns: list[Turn] = []
        self._reply: Sample | None = None
        self._asked: list[int] = []
        self._pictures = Pictures(processor)
        self._ending: str | None = None
        self._malformed = self._cuts = self._aborts = self._calls = 0
        self._prefix_cache = PrefixCacheInfo()
        self._since = self._played = self._outside = 0.0

    @property
    def name(self) -> str:
        """Name of the episode's record."""
        return self._record.name

    async def play(self) -> Result | None:
        """Play to the end; return None if the rollout is aborted, after which `play` goes on or `close` gives up.

        Raises:
            EpisodeLost: the infrastructure failed.
            ConfigError: another try cannot help: there is no such task, the key or the task's size is wrong, or
                this loop cannot play the environment.
        """
        try:
            lent = self._lent or await self._begin()
            self._since = time.monotonic()
            while self._ending is None:
                if self._policy.stopping or not await self._turn(lent):
                    self._played = self._seconds()
                    self._aborts += 1
                    self._record.write("aborted", t=len(self._turns))
                    return None
            return await self._end(lent)
        except EpisodeLost as lost:
            self._record.write("lost", reason=lost.reason, message=str(lost))
            await self.close()
            raise
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Give the lease back and stop the judge."""
        if self._judge is not None:
            await self._judge.cancel()
        await self._stack.aclose()
        self._record.close()

    async def _begin(self) -> Episode:
        settings = self._settings
        with self._outside_engine(), _no_deadline():
            service = await self._stack.enter_async_context(self._service)
            lending = episode(
                *(service, self._task_id),
                ttl_s=settings.ttl_seconds,
                wait_s=settings.wait_seconds,
                close_s=settings.close_seconds,
            )
            self._lent = lent = await self._stack.enter_async_context(lending)
            seen = await lent.reset(self._seed, timeout_s=settings.reset_seconds or settings.step_seconds)
        pictures = await self._shown(seen.images)
        self._opening = begin = opening(seen, settings.prompt_note, pictures)
        keywords = {**self._keywords, **begin.keywords}
        if begin.form.appended:
            self._conversation = AppendedConversation(self._speech, list(begin.messages), keywords)
        else:
            self._conversation = Conversation(self._speech, list(begin.messages), begin.tools, keywords)
        self._policy.stop_after(begin.form.stops)
        self._record.write("reset", task_id=self._task_id, seed=self._seed, messages=begin.messages, tools=begin.tools)
        return lent

    async def _turn(self, lent: Episode) -> bool:
        """Sample a reply and carry it out, or set the ending; return False if the rollout is being aborted."""
        if self._reply is None:
            prompt_ids = self._next_prompt()
            if prompt_ids is None:
                return True
            self._asked = prompt_ids
            numbers = numbers_of(self._conversation.messages)
            whole = self._pictures.expanded(prompt_ids, numbers)
            self._reply = self._policy.ask(whole, self._pictures.images(numbers))
        if not await self._went_on(self._reply):
            return False
        sample, self._reply = self._reply, None
        self._prefix_cache.cached_tokens += sample.prefix_cache_info.cached_tokens
        self._prefix_cache.total_prompt_tokens += sample.prefix_cache_info.total_prompt_tokens
        if not sample.response_length:
            self._ending = "context"
            return True
        before = list(self._conversation.messages)
        turn = Turn(turn_of(sample), f"{self.name}:{len(self._turns)}", tuple(numbers_of(before)))
        ids = list(turn.sampled.response_ids)
        reply = self._conversation.read(self._asked, ids, len(self._turns))
        self._conversation.said(self._asked, ids, reply)
        self._turns.append(turn)
        self._record.policy(
            turn.sampled.prompt_ids,
            ids,
            turn.sampled.log_probs,
            t=len(self._turns) - 1,
            message=reply.message,
            weight_spans=[list(span) for span in turn.sampled.weight_spans],
            finish=sample.status.value,
        )
        if sample.status == Sample.Status.TRUNCATED:
            self._ending = "reply_tokens"
            return True
        heard = await self._acted(lent, reply)
        self._conversation.heard(heard)
        settings = self._settings
        if self._judge is not None and (settings.judge_last or self._ending != DONE):
            view = View(settings.judge_steps, settings.judge_goal, settings.judge_output, settings.judge_past)
            goal = "\n\n".join(content_text(message["content"]) for message in self._opening.messages)
            seen, after = await self._for_judge(before, heard)
            ask = partial(step_question, goal, before, reply.message, heard, settings.judge_history, view=view)
            self._judge.ask(turn.step_id, partial(ask, before=seen, after=after))
        return True

    async def _for_judge(self, before: Sequence[Message], heard: Sequence[Message]) -> tuple[list[str], list[str]]:
        """Return the newest pictures before and after a step, as the judge gets them."""
        most = self._settings.judge_pictures
        if not most:
            return [], []
        after = numbers_of(heard)[-most:]
        seen = numbers_of(before)[max(0, len(numbers_of(before)) - most + len(after)) :]
        return await self._pictures.encoded(seen), await self._pictures.encoded(after)

    async def _went_on(self, reply: Sample) -> bool:
        """Sample the rest of a reply, unless that takes too long; return False if the rollout is being aborted."""
        limit = asyncio.timeout(self._settings.reply_seconds)
        try:
            async with limit:
                return await self._policy.go_on(reply, self._tokens_left())
        except TimeoutError as error:
            if not limit.expired():
                raise
            seconds = self._settings.reply_seconds
            raise EpisodeLost("timeout", f"the engine gave no whole reply within {seconds:g} s") from error

    def _next_prompt(self) -> list[int] | None:
        """Return the next prompt, or None after setting the ending."""
        settings, talk = self._settings, self._conversation
        if len(self._turns) >= settings.max_turns:
            self._ending = "turns"
        elif self._tokens_left() <= 0:
            self._ending = "sampled_tokens"
        elif self._seconds() >= settings.episode_seconds:
            self._ending = "seconds"
        elif settings.max_malformed is not None and self._malformed >= settings.max_malformed:
            self._ending = "malformed"
        if self._ending is not None:
            return None
        if (fewer := without_old_pictures(talk.messages, settings.keep_pictures)) is not None:
            talk.replace(fewer.kept)
        ids = talk.prompt()
        more = self._pictures.more_tokens(talk.messages)
        if not self._first_prompt:
            self._first_prompt = self._pictures.expanded(ids, numbers_of(talk.messages))
        context = self._policy.context
        if context is None:
            return ids
        budget = context - min(self._policy.reply_tokens, context // LEAST_REPLY_SHARE)
        if len(ids) + more <= budget:
            return ids
        keep = settings.keep_observations
        first = len(self._opening.messages)
        found = cut(
            settings.context,
            talk.messages,
            budget,
            self._length_of,
            first=first,
            keep_observations=keep,
            oldest_share=settings.context_oldest,
        )
        if found is None:
            self._ending = "context"
            return None
        self._cuts += 1
        talk.replace(found.kept)
        after = talk.prompt()
        self._record.write(
            "context",
            t=len(self._turns),
            policy=settings.context,
            dropped=found.dropped,
            shortened=found.shortened,
            tokens=[len(ids) + more, len(after) + self._pictures.more_tokens(talk.messages)],
        )
        return after

    def _length_of(self, kept: Kept) -> int:
        more = self._pictures.more_tokens([message for _, message in kept])
        return self._conversation.length_of(kept) + more

    async def _shown(self, encoded: Sequence[str]) -> list[Message]:
        """Return the parts of new pictures, which the record gets as well."""
        parts = await self._pictures.add(encoded)
        for part in parts:
            await asyncio.to_thread(self._record.picture, part["number"], self._pictures.image(part["number"]))
        return parts

    def _seconds(self) -> float:
        """Return how long the episode was played: neither in the pool's queue nor parked."""
        return self._played + time.monotonic() - self._since

    def _tokens_left(self) -> int:
        return self._settings.max_sampled_tokens - sum(len(turn.sampled.response_ids) for turn in self._turns)

    async def _acted(self, lent: Episode, reply: Reply) -> list[Message]:
        """Carry out a reply's actions; return the messages that follow, and set the ending if the episode is over."""
        t = len(self._turns) - 1
        try:
            actions = self._opening.form.actions(reply)
        except Malformed as error:
            self._malformed += 1
            self._record.write("malformed", t=t, message=str(error))
            return [self._opening.form.answer(error_text("malformed_action", str(error)), None)]
        heard: list[Message] = []
        for action in actions:
            self._record.write("action", t=t, action=action.content)
            self._calls += "tool" in action.content
            text, pictures = await self._step(lent, action, t)
            heard.append(with_pictures(self._opening.form.answer(text, action.call_id), pictures))
            if self._ending is not None:
                break
        return heard

    async def _step(self, lent: Episode, action: Action, t: int) -> tuple[str, list[Message]]:
        """Return what the policy sees of one action: a text, and parts of pictures."""
        pictures: list[Message] = []
        try:
            with self._outside_engine():
                result = await self._stepped(lent, action)
        except DeadlineError as error:
            if error.code != PASSED:
                raise EpisodeLost(error.kind, str(error)) from error
            self._ending, text = LATE, error_text(error.code, error.message)
        else:
            if isinstance(result, InvalidError):
                text = error_text(result.code, result.message)
            else:
                text = result.observation.text
                pictures = await self._shown(result.observation.images)
                self._ending = DONE if result.done else "environment" if result.truncated else None
        seen = {"pictures": [part["number"] for part in pictures]} if pictures else {}
        self._record.write("observation", t=t, text=text, ending=self._ending, **seen)
        return text, pictures

    async def _stepped(self, lent: Episode, action: Action) -> StepResult | InvalidError:
        try:
            seconds = self._opening.step_seconds or self._settings.step_seconds
            return await lent.step(action.content, timeout_s=seconds)
        except InvalidError as error:
            return error

    async def _end(self, lent: Episode) -> Result:
        assert self._ending is not None
        verdict = await self._judged(lent) if self._turns else None
        if verdict is not None:
            self._record.write("verdict", **verdict.model_dump())
        reached = None if verdict is None else outcome(verdict, self._settings.reward)
        await self._stack.aclose()  # the judge needs no environment
        turns = await self._scored()
        self._record.write("end", ending=self._ending, outcome=reached, turns=len(turns))
        counts = {
            "malformed": self._malformed,
            "calls": self._calls,
            "context_cuts": self._cuts,
            "aborts": self._aborts,
            "rendered": self._conversation.rendered,
            "judge_skipped": self._judge.skipped.total() if self._judge else 0,
        }
        await self.close()
        seen = self._pictures
        return Result(turns, self._first_prompt, self._ending, reached, counts, self._prefix_cache, self._outside, seen)

    async def _judged(self, lent: Episode) -> Verdict:
        if self._ending == LATE:
            return FAILED
        with self._outside_engine(), _no_deadline():
            return await lent.evaluate(timeout_s=self._settings.evaluate_seconds)

    async def _scored(self) -> list[Turn]:
        if self._judge is None:
            return self._turns
        scores = await self._judge.scores(self._settings.step_seconds)
        for step_id, judged in scores.items():
            self._record.write("judge", step=step_id, score=judged.score, votes=judged.votes)
        return [
            replace(turn, score=scores[turn.step_id].score if turn.step_id in scores else None) for turn in self._turns
        ]

    @contextmanager
    def _outside_engine(self) -> Iterator[None]:
        """Time a call to the pool; its errors are `EpisodeLost` or `ConfigError`, except passed deadlines."""
        begun = time.monotonic()
        try:
            yield
        except DeadlineError:
            raise
        except AgentError as error:
            if error.code in NEVER or isinstance(error, InvalidError):
                raise ConfigError(f"task {self._task_id!r}: {error}") from error
            raise EpisodeLost(error.kind, str(error)) from error
        finally:
            self._outside += time.monotonic() - begun


@contextmanager
def _no_deadline() -> Iterator[None]:
    """Turn a passed deadline, which the agent did not cause, into an `EpisodeLost`."""
    try:
        yield
    except DeadlineError as error:
        raise EpisodeLost(error.kind, str(error)) from error
