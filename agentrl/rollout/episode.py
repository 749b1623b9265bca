"""An episode of training: a lease, the play in it, the judge's scores, and the samples that they make.

With the outcome ``o``, the scores ``s_t`` of the scored steps and the coefficient ``c``: a trajectory's reward is
``R = o + c * mean(s_t)`` (`slime.rollout.rewards.trajectory_reward`), a step's ``r_t = o * gamma^(T-1-t) + c * s_t``.

Guarantees: the lease is given back however the episode ends, cancellation included. An episode that the rollout aborts keeps
its lease and its half reply; `EpisodeRun.play` then goes on exactly there. A step without a valid vote has no score, and its
term is missing rather than 0. Group, index and rollout id of the samples are those of the sample that the episode answers, so a
trajectory has one loss denominator. Each reply is in exactly one sample. An episode without a reply is one sample that is not
trained.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from agentrl.client import episode
from agentrl.exceptions import AgentError, InvalidError
from agentrl.protocol import Ending, LeaseService
from agentrl.rollout.pictures import Pictures, numbers_of
from agentrl.rollout.play import EpisodeLost, Observer, Play, Played, outcome
from agentrl.rollout.records import EpisodeRecord
from agentrl.rollout.settings import Settings
from agentrl.rollout.step_judge import StepJudge, View, step_question
from agentrl.rollout.token_policy import TokenPolicy, Turn
from groundwork.chat_messages import Message
from groundwork.exceptions import ConfigError
from openclaw.messages.text import content_text
from slime.args import Arguments
from slime.rollout.generation import mask_older_weights
from slime.rollout.rewards import trajectory_reward
from slime.rollout.segments import Segment, merge
from slime.utils.types import PrefixCacheInfo, Sample

NEVER = ("unknown_task", "larger_than_pool")
"""Codes of errors that no other lease would avoid."""


@dataclass(frozen=True)
class Result:
    """A finished episode.

    Attributes:
        turns: in order; none if the task alone is too long.
        first_prompt: ids of the first prompt.
        ending: why it ended.
        outcome: of the verdict; None without turns.
        counts: numbers for metrics, by name.
        prefix_cache: cached tokens of all requests.
        outside_seconds: time spent outside the engine.
        pictures: that the policy saw.
    """

    turns: list[Turn]
    first_prompt: list[int]
    ending: Ending
    outcome: float | None
    counts: dict[str, int]
    prefix_cache: PrefixCacheInfo
    outside_seconds: float
    pictures: Pictures


class EpisodeRun(Observer):
    """Runs one episode; owns its lease, record and judge until it ends or `close` is called."""

    def __init__(
        self,
        service: AbstractAsyncContextManager[LeaseService],
        policy: TokenPolicy,
        settings: Settings,
        record: EpisodeRecord,
        *,
        task_id: str,
        seed: int,
        judge: StepJudge | None = None,
    ) -> None:
        """Prepare; nothing is leased before `play`.

        Args:
            service: lends the environment; entered and left with the episode.
            policy: samples.
            settings: limits.
            record: of the episode.
            task_id: of the pool's registry.
            seed: of the environment's start.
            judge: of the steps.
        """
        self._service, self._policy, self._settings, self._record = service, policy, settings, record
        self._task_id, self._seed, self._judge = task_id, seed, judge
        self._stack = AsyncExitStack()
        self._play: Play | None = None
        self._goal = ""
        self._waited = 0.0

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
            with self._infrastructure():
                self._play = self._play or await self._leased()
                played = await self._play.play()
            return None if played is None else await self._ended(played)
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

    @contextmanager
    def _infrastructure(self) -> Iterator[None]:
        """Turn errors of pool, environment and engine into `EpisodeLost`, or into `ConfigError` if no retry helps."""
        try:
            yield
        except AgentError as error:
            if error.code in NEVER or isinstance(error, InvalidError):
                raise ConfigError(f"task {self._task_id!r}: {error}") from error
            raise EpisodeLost(error.kind, str(error)) from error

    async def _leased(self) -> Play:
        settings, begun = self._settings, time.monotonic()
        service = await self._stack.enter_async_context(self._service)
        lending = episode(
            *(service, self._task_id),
            ttl_s=settings.ttl_seconds,
            wait_s=settings.wait_seconds,
            close_s=settings.close_seconds,
        )
        lent = await self._stack.enter_async_context(lending)
        self._waited = time.monotonic() - begun
        return Play(self._policy, lent, settings, task_id=self._task_id, seed=self._seed, observer=self)

    def write(self, kind: str, **fields: Any) -> None:
        """See `Observer.write`."""
        if kind == "reset":
            self._goal = "\n\n".join(content_text(message["content"]) for message in fields["messages"])
        self._record.write(kind, **fields)

    async def stepped(
        self, turn: int, before: Sequence[Message], reply: Message, heard: Sequence[Message], ending: Ending | None
    ) -> None:
        """Ask the judge about a step, if there is one."""
        settings = self._settings
        if self._judge is None or (ending is Ending.DONE and not settings.judge_last):
            return
        view = View(settings.judge_steps, settings.judge_goal, settings.judge_output, settings.judge_past)
        seen, after = await self._for_judge(before, heard)
        ask = partial(step_question, self._goal, before, reply, heard, settings.judge_history, view=view)
        self._judge.ask(self._policy.turns[turn].step_id, partial(ask, before=seen, after=after))

    async def _for_judge(self, before: Sequence[Message], heard: Sequence[Message]) -> tuple[list[str], list[str]]:
        """Return the newest pictures before and after a step, as the judge gets them."""
        most = self._settings.judge_pictures
        if not most:
            return [], []
        after = numbers_of(heard)[-most:]
        seen = numbers_of(before)[max(0, len(numbers_of(before)) - most + len(after)) :]
        pictures = self._policy.pictures
        return await pictures.encoded(seen), await pictures.encoded(after)

    async def _ended(self, played: Played) -> Result:
        policy, verdict = self._policy, played.verdict
        reached = None if verdict is None else outcome(verdict, self._settings.reward)
        await self._stack.aclose()  # the judge needs no environment
        turns = await self._scored(policy.turns)
        self._record.write("end", ending=played.ending, outcome=reached, turns=len(turns))
        counts = {
            "malformed": played.malformed,
            "calls": played.calls,
            "context_cuts": played.cuts,
            "aborts": played.suspensions,
            "rendered": policy.rendered,
            "judge_skipped": self._judge.skipped.total() if self._judge else 0,
        }
        await self.close()
        return Result(
            *(turns, policy.first_prompt, played.ending, reached, counts, policy.prefix_cache),
            outside_seconds=self._waited + played.outside_seconds,
            pictures=policy.pictures,
        )

    async def _scored(self, turns: list[Turn]) -> list[Turn]:
        if self._judge is None:
            return turns
        scores = await self._judge.scores(self._settings.step_seconds)
        for step_id, judged in scores.items():
            self._record.write("judge", step=step_id, score=judged.score, votes=judged.votes)
        return [replace(turn, score=scores[turn.step_id].score if turn.step_id in scores else None) for turn in turns]


def samples_of(
    args: Arguments,
    origin: Sample,
    result: Result,
    tokenizer: Any,
    *,
    gamma: float,
    notes: dict[str, Any],
    trained: bool = True,
) -> list[Sample]:
    """Return the samples of an episode, at least one.

    Args:
        args: of the run; ``prm_step_coef`` weighs the judge's scores.
        origin: the sample that the episode answers.
        result: of the episode.
        tokenizer: decodes responses, for people only.
        gamma: discount of the outcome per step before the last.
        notes: for ``metadata["agent"]``, beside the episode's counts.
        trained: whether the samples need the pixel values of their pictures.
    """
    fields: dict[str, Any] = {
        "group_index": origin.group_index,
        "index": origin.index,
        "prompt": origin.prompt,
        "label": origin.label,
        "rollout_id": origin.rollout_id,
        "generate_function_path": origin.generate_function_path,
        "custom_rm_path": origin.custom_rm_path,
        "non_generation_time": result.outside_seconds,
        "status": Sample.Status.COMPLETED if result.ending is Ending.DONE else Sample.Status.TRUNCATED,
    }
    agent = {
        **notes,
        **result.counts,
        "ending": result.ending.value,
        "turns": len(result.turns),
        "outcome": result.outcome,
    }
    metadata = {**origin.metadata, "round_number": len(result.turns), "agent": agent}
    if result.outcome is None:
        empty = Segment(result.first_prompt, len(result.first_prompt))
        return [empty.sample(**fields, metadata=metadata, reward=0.0, remove_sample=True)]
    scores = [turn.score for turn in result.turns]
    coefficient = args.prm_step_coef
    reward = trajectory_reward(result.outcome, scores, coefficient)
    steps = step_rewards(result.outcome, scores, coefficient, gamma)
    samples: list[Sample] = []
    for segment in merge([turn.sampled for turn in result.turns]):
        wise = {
            "step_scores": [scores[turn] for turn in segment.turns],
            "step_scores_with_outcome": [steps[turn] for turn in segment.turns],
            "step_token_spans": [list(span) for span in segment.turn_spans],
            "step_indices": list(segment.turns),
        }
        sample = segment.sample(**fields, metadata={**metadata, "step_wise": wise}, reward=reward)
        numbers = pictures_of(segment, result)
        if trained and numbers:
            sample.multimodal_train_inputs = result.pictures.tensors(numbers)
        sample.response = tokenizer.decode(sample.tokens[segment.prompt_length :])
        if args.mask_offpolicy_in_partial_rollout:
            mask_older_weights(sample)
        samples.append(sample)
    samples[0].prefix_cache_info = result.prefix_cache
    return samples


def pictures_of(segment: Segment, result: Result) -> tuple[int, ...]:
    """Return the numbers of the pictures in a segment's tokens: those of its last prompt, which extends the others.

    Raises:
        RuntimeError: the pictures of a prompt do not extend those before, although its tokens do.
    """
    numbers: tuple[int, ...] = ()
    for turn in segment.turns:
        longer = result.turns[turn].pictures
        if longer[: len(numbers)] != numbers:
            raise RuntimeError(
                f"a prompt's tokens extend those before, but its pictures {longer} do not extend {numbers}"
            )
        numbers = longer
    return numbers


def step_rewards(result: float, scores: Sequence[float | None], coefficient: float, gamma: float) -> list[float]:
    """Return the reward of each step from the outcome and the scores of all steps, in order."""
    last = len(scores) - 1
    return [
        result * gamma ** (last - step) + (0.0 if score is None else coefficient * score)
        for step, score in enumerate(scores)
    ]
