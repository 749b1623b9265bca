"""The one loop that plays episodes: a policy replies, its actions meet an environment, and the episode ends with a verdict.

Training plays with `agentrl.rollout.token_policy`, evaluation with `agentrl.rollout.chat_policy`; limits, formats of actions,
what is left out of a long conversation, and endings are the same.

Guarantees: every limit ends the episode, and its state is still judged. An action that outlasts its time in the environment is
one of these limits; the environment was cut off in the middle, so the episode counts as failed. An episode without a reply has
no verdict. A failure that is not the agent's is an `AgentError`, so it has no reward. `Play.play` goes on exactly where a
policy suspended the episode; the time in between counts as no time of it.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from agentrl.exceptions import DeadlineError, InvalidError
from agentrl.protocol import PASSED, Ending, JsonObject, Observation, StepResult, Verdict
from agentrl.rollout.actions import Action, Form, Malformed, Opening, Reply, error_text, opening
from agentrl.rollout.pictures import IMAGE, numbers_of, parts_of, with_pictures
from agentrl.rollout.settings import Settings
from groundwork.chat_messages import Message
from groundwork.exceptions import ConfigError
from openclaw.messages.text import clip_middle, content_text

Kept = list[tuple[int | None, Message]]
"""The messages that stay, each with its old position; None if it is new or changed."""
Omission = Literal["none", "drop_middle", "elide"]
"""What is left out of a conversation that is too long; see `cut`."""
SHARE = 0.75
OLDEST_SHARE = 0.3
NOTE = "[{} earlier exchanges are left out]"
NO_PICTURE = "[an older picture is left out]"
ELIDED_CHARACTERS = (800, 200, 40)
"""An old observation's length, tried in this order."""
FAILED = Verdict(status="timeout", score=0.0, detail="an action of the agent took longer than a step may")
"""Of an episode that ends with `Ending.STEP_SECONDS`."""
LEAST_REPLY_SHARE = 4
"""At most one part in so many of the context is kept free for the next reply."""
Mode = Literal["binary", "partial", "raw"]


@dataclass(frozen=True)
class Cut:
    """A conversation that was cut, and what is missing: the old positions of messages that were dropped or shortened."""

    kept: Kept
    dropped: tuple[int, ...] = ()
    shortened: tuple[int, ...] = ()


def cut(
    policy: Omission,
    messages: Sequence[Message],
    budget: int,
    length: Callable[[Kept], int],
    *,
    first: int,
    keep_observations: int = 3,
    oldest_share: float = OLDEST_SHARE,
) -> Cut | None:
    """Return a conversation cut to at most ``budget`` tokens, or None if the policy cannot do that.

    What goes is whole messages, never tokens. A conversation is cut to `SHARE` of its budget if that is possible, so that the
    turns after it extend each other again. The first messages, with which the episode began, always stay. Deterministic.

    * ``none``: nothing is left out.
    * ``drop_middle``: exchanges (a reply and what followed it) go from the middle; of those that stay, ``oldest_share`` are the
      oldest.
    * ``elide``: all but the newest observations shrink to their ends; replies stay.

    Args:
        policy: what to leave out.
        messages: the conversation, which is too long.
        budget: most tokens of the prompt.
        length: number of tokens of the prompt of messages.
        first: number of messages with which the episode began.
        keep_observations: of ``elide``, the newest observations that stay whole.
        oldest_share: of the exchanges that ``drop_middle`` keeps, the share of the oldest.
    """
    candidates = {
        "none": lambda: iter(()),
        "drop_middle": lambda: _without_middle(messages, first, oldest_share),
        "elide": lambda: _elided(messages, first, keep_observations),
    }[policy]()
    fitting: Cut | None = None
    for candidate in candidates:
        count = length(candidate.kept)
        if count <= budget:
            fitting = candidate
        if count <= SHARE * budget:
            break
    return fitting


def without_old_pictures(messages: Sequence[Message], keep: int) -> Cut | None:
    """Return a conversation with only its ``keep`` newest pictures; None if it has no more."""
    old = len(numbers_of(messages)) - keep
    if old <= 0:
        return None
    kept: Kept = []
    shortened: list[int] = []
    for position, message in enumerate(messages):
        here = len(numbers_of([message]))
        if not here or old <= 0:
            kept.append((position, message))
            continue
        parts: list[Message] = []
        for part in parts_of(message):
            gone = part["type"] == IMAGE and old > 0
            old -= gone
            parts.append({"type": "text", "text": NO_PICTURE + "\n"} if gone else part)
        kept.append((None, {**message, "content": parts}))
        shortened.append(position)
    return Cut(kept, shortened=tuple(shortened))


def exchanges(messages: Sequence[Message], first: int) -> list[range]:
    """Return the positions of each exchange after the ``first`` messages."""
    replies = [position for position in range(first, len(messages)) if messages[position]["role"] == "assistant"]
    return [range(*pair) for pair in itertools.pairwise([*replies, len(messages)])]


def _without_middle(messages: Sequence[Message], first: int, oldest_share: float) -> Iterator[Cut]:
    """Yield the conversation with fewer and fewer exchanges; the newest always stays."""
    found = exchanges(messages, first)
    for stay in range(len(found) - 1, 0, -1):
        oldest = min(int(oldest_share * stay), stay - 1)
        gone = found[oldest : len(found) - (stay - oldest)]
        note: Message = {"role": "user", "content": NOTE.format(len(gone))}
        head: Kept = [(position, messages[position]) for position in range(gone[0].start)]
        tail: Kept = [(position, messages[position]) for position in range(gone[-1].stop, len(messages))]
        dropped = tuple(position for exchange in gone for position in exchange)
        yield Cut([*head, (None, note), *tail], dropped=dropped)


def _elided(messages: Sequence[Message], first: int, keep: int) -> Iterator[Cut]:
    """Yield the conversation with shorter and shorter old observations."""
    heard = [n for n in range(first, len(messages)) if messages[n]["role"] != "assistant"]
    old = heard[: len(heard) - keep] if keep else heard
    for characters in ELIDED_CHARACTERS:
        kept: Kept = []
        shortened: list[int] = []
        for position, message in enumerate(messages):
            text = content_text(message.get("content"))
            if position in old and len(short := clip_middle(text, characters)) < len(text):
                kept.append((None, {**message, "content": short}))
                shortened.append(position)
            else:
                kept.append((position, message))
        yield Cut(kept, shortened=tuple(shortened))


class EpisodeLost(Exception):
    """The infrastructure failed, not the policy; nothing of the episode may be rewarded.

    Attributes:
        reason: machine-readable name: the kind of the pool's error, or ``verdict``.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class Playable(Protocol):
    """The environment of one episode: a lease (`agentrl.client.Episode`), or one without a pool."""

    async def reset(self, seed: int = 0, *, timeout_s: float) -> Observation: ...
    async def step(self, action: JsonObject, *, timeout_s: float) -> StepResult: ...
    async def evaluate(self, *, timeout_s: float) -> Verdict: ...


class Policy(ABC):
    """Replies in one episode, and holds its conversation.

    Attributes:
        messages: so far, but for what was left out.
        context: most tokens of prompt and reply; None without a bound.
        reply_tokens: most tokens of a reply.
        stopping: whether no reply may begin, since the episode is about to be suspended.
    """

    messages: list[Message]
    context: int | None = None
    reply_tokens: int = 0
    stopping: bool = False

    @abstractmethod
    def begin(self, begin: Opening) -> None:
        """Take the first messages, tools and format of an episode."""

    @abstractmethod
    async def look(self, encoded: Sequence[str]) -> list[Message]:
        """Return the parts of a message for new pictures, which are base64 of PNG files."""

    @abstractmethod
    def prepare(self) -> int:
        """Prepare the next prompt; return its number of tokens, also without a `context`, since any limit may read it."""

    @abstractmethod
    def length_of(self, kept: Kept) -> int:
        """Return the number of tokens of the prompt after `replace`."""

    @abstractmethod
    def replace(self, kept: Kept) -> None:
        """Put other messages in place of all, each with its old position, or None if it is new or changed."""

    @abstractmethod
    async def reply(self, turn: int, most: int) -> Reply | None:
        """Reply to the prepared prompt with at most ``most`` tokens, and add that to the messages.

        Returns:
            None if the episode is suspended; the next call goes on with the same reply. A reply without tokens, which had no
            room in the context, is not added.
        """

    @abstractmethod
    def heard(self, messages: Sequence[Message]) -> None:
        """Add what followed a reply."""

    def answers(self, form: Form, text: str, call_id: str | None, pictures: Sequence[Message]) -> list[Message]:
        """Return the messages with what an action led to."""
        return [with_pictures(form.answer(text, call_id), pictures)]

    def refusals(self, form: Form, reply: Message, text: str) -> list[Message]:
        """Return the messages that answer a reply that cannot be read."""
        return [form.answer(text, None)]


class Observer:
    """Sees an episode while it is played; this one ignores all."""

    def write(self, kind: str, **fields: Any) -> None:
        """Take an event with JSON values; `agentrl.rollout.records` has the kinds."""

    async def stepped(
        self, turn: int, before: Sequence[Message], reply: Message, heard: Sequence[Message], ending: Ending | None
    ) -> None:
        """Take a reply that was carried out, with the messages before it and those that followed."""


@dataclass(frozen=True)
class Played:
    """A finished episode.

    Attributes:
        ending: why it ended.
        verdict: None without a reply.
        turns: replies.
        malformed: of them, those that could not be read.
        actions: that were carried out or refused.
        calls: of tools, among them.
        cuts: how often something was left out of the conversation.
        suspensions: how often the episode was suspended.
        outside_seconds: spent in the environment.
        messages: everything that was said, also what was left out later.
    """

    ending: Ending
    verdict: Verdict | None
    turns: int
    malformed: int
    actions: int
    calls: int
    cuts: int
    suspensions: int
    outside_seconds: float
    messages: list[Message]

    @property
    def score(self) -> float | None:
        """Return the score of the verdict; 0 without a reply, None if the verdict has none."""
        return 0.0 if self.verdict is None else self.verdict.score


class Play:
    """Plays one episode, whose environment the caller opens and closes.

    Example:
        >>> from agentrl.environment import Environment, Task
        >>> from agentrl.rollout.chat_policy import ChatPolicy, Unpooled
        >>> class Guess(Environment):
        ...     @classmethod
        ...     def tasks(cls):
        ...         return [Task("guess/7")]
        ...     async def reset(self, task, seed):
        ...         self.right = False
        ...         return Observation(text="Guess a number from 1 to 10.")
        ...     async def step(self, action):
        ...         self.right = action["text"] == "7"
        ...         return StepResult(observation=Observation(text="right" if self.right else "wrong"), done=self.right)
        ...     async def evaluate(self):
        ...         return Verdict(status="ok", score=float(self.right))
        ...     async def close(self):
        ...         pass
        >>> class Counts:
        ...     async def ask(self, messages, tools, parameters):
        ...         number = 5 + sum(message["role"] == "assistant" for message in messages)
        ...         return {"choices": [{"message": {"role": "assistant", "content": str(number)}}]}
        >>> environment = Unpooled(Guess(processes=None), Task("guess/7"))
        >>> play = Play(ChatPolicy(Counts()), environment, Settings(max_turns=5), task_id="guess/7")
        >>> played = asyncio.run(play.play())
        >>> played.ending, played.turns, played.score
        (<Ending.DONE: 'done'>, 3, 1.0)
    """

    def __init__(
        self,
        policy: Policy,
        environment: Playable,
        limits: Settings,
        *,
        task_id: str,
        seed: int = 0,
        observer: Observer | None = None,
    ) -> None:
        """Prepare.

        Args:
            policy: replies.
            environment: answers.
            limits: of the episode.
            task_id: names the task in events.
            seed: of the environment's start.
            observer: sees what happens.
        """
        self._policy, self._environment, self._limits = policy, environment, limits
        self._task_id, self._seed, self._observer = task_id, seed, observer or Observer()
        self._opening: Opening | None = None
        self._said: list[Message] = []
        self._asking = False
        self._ending: Ending | None = None
        self._turns = self._tokens = self._malformed = self._actions = self._calls = self._cuts = self._suspensions = 0
        self._since = self._played = self._outside = 0.0

    async def play(self) -> Played | None:
        """Play to the end; return None if the policy suspends the episode, after which `play` goes on.

        Raises:
            AgentError: environment or policy failed.
            ConfigError: this loop cannot play the environment.
        """
        begin = self._opening or await self._begin()
        self._since = time.monotonic()
        while self._ending is None:
            if self._policy.stopping or not await self._turn(begin):
                self._played = self._seconds()
                self._suspensions += 1
                self._observer.write("aborted", t=self._turns)
                return None
        verdict = await self._judged(self._ending) if self._turns else None
        if verdict is not None:
            self._observer.write("verdict", **verdict.model_dump())
        return Played(
            *(self._ending, verdict, self._turns, self._malformed, self._actions, self._calls, self._cuts),
            suspensions=self._suspensions,
            outside_seconds=self._outside,
            messages=self._said,
        )

    async def _begin(self) -> Opening:
        limits = self._limits
        with self._outside_engine():
            seen = await self._environment.reset(self._seed, timeout_s=limits.reset_seconds or limits.step_seconds)
        begin = opening(seen, limits.prompt_note, await self._policy.look(seen.images))
        self._policy.begin(begin)
        self._said = list(begin.messages)
        self._observer.write(
            "reset", task_id=self._task_id, seed=self._seed, messages=begin.messages, tools=begin.tools
        )
        self._opening = begin
        return begin

    async def _turn(self, begin: Opening) -> bool:
        """Get a reply and carry it out, or set the ending; return False if the episode is suspended."""
        if not self._asking:
            self._ending = self._limit() or self._fit(begin)
            if self._ending is not None:
                return True
            self._asking = True
        before = list(self._policy.messages)
        reply = await self._replied()
        if reply is None:
            return False
        self._asking = False
        self._ending = reply.ending
        if reply.ending is Ending.CONTEXT:
            return True
        turn, self._turns, self._tokens = self._turns, self._turns + 1, self._tokens + reply.tokens
        self._said.append(reply.message)
        if self._ending is not None:
            return True
        heard = await self._acted(begin, reply, turn)
        self._said += heard
        self._policy.heard(heard)
        await self._observer.stepped(turn, before, reply.message, heard, self._ending)
        return True

    async def _replied(self) -> Reply | None:
        """Return the policy's reply.

        Raises:
            DeadlineError: it takes too long.
        """
        seconds = self._limits.reply_seconds
        limit = asyncio.timeout(seconds)
        try:
            async with limit:
                return await self._policy.reply(self._turns, self._limits.max_sampled_tokens - self._tokens)
        except TimeoutError as error:
            if not limit.expired():
                raise
            message = f"the engine gave no whole reply within {seconds:g} s"
            raise DeadlineError(message, code="no_reply") from error

    def _limit(self) -> Ending | None:
        """Return the limit that is reached before another reply."""
        limits = self._limits
        if self._turns >= limits.max_turns:
            return Ending.TURNS
        if self._tokens >= limits.max_sampled_tokens:
            return Ending.SAMPLED_TOKENS
        if self._seconds() >= limits.episode_seconds:
            return Ending.SECONDS
        if limits.max_malformed is not None and self._malformed >= limits.max_malformed:
            return Ending.MALFORMED
        return None

    def _fit(self, begin: Opening) -> Ending | None:
        """Prepare a prompt that fits the context; return an ending if there is none."""
        policy, limits = self._policy, self._limits
        if (fewer := without_old_pictures(policy.messages, limits.keep_pictures)) is not None:
            policy.replace(fewer.kept)
        tokens, context = policy.prepare(), policy.context
        if context is None:
            return None
        budget = context - min(policy.reply_tokens, context // LEAST_REPLY_SHARE)
        if tokens <= budget:
            return None
        found = cut(
            *(limits.context, policy.messages, budget, policy.length_of),
            first=len(begin.messages),
            keep_observations=limits.keep_observations,
            oldest_share=limits.context_oldest,
        )
        if found is None:
            return Ending.CONTEXT
        self._cuts += 1
        policy.replace(found.kept)
        self._observer.write(
            "context",
            t=self._turns,
            policy=limits.context,
            dropped=found.dropped,
            shortened=found.shortened,
            tokens=[tokens, policy.prepare()],
        )
        return None

    def _seconds(self) -> float:
        """Return how long the episode was played: neither in the pool's queue nor suspended."""
        return self._played + time.monotonic() - self._since

    async def _acted(self, begin: Opening, reply: Reply, turn: int) -> list[Message]:
        """Carry out a reply's actions; return the messages that follow, and set the ending if the episode is over."""
        try:
            actions = begin.form.actions(reply)
        except Malformed as error:
            self._malformed += 1
            self._observer.write("malformed", t=turn, message=str(error))
            return self._policy.refusals(begin.form, reply.message, error_text("malformed_action", str(error)))
        heard: list[Message] = []
        for action in actions:
            self._observer.write("action", t=turn, action=action.content)
            self._actions += 1
            self._calls += "tool" in action.content
            text, pictures = await self._step(begin, action, turn)
            heard += self._policy.answers(begin.form, text, action.call_id, pictures)
            if self._ending is not None:
                break
        return heard

    async def _step(self, begin: Opening, action: Action, turn: int) -> tuple[str, list[Message]]:
        """Return what the policy sees of one action: a text, and parts of pictures."""
        pictures: list[Message] = []
        try:
            with self._outside_engine():
                result = await self._stepped(begin, action)
        except DeadlineError as error:
            if error.code != PASSED:
                raise
            self._ending, text = Ending.STEP_SECONDS, error_text(error.code, error.message)
        else:
            if isinstance(result, InvalidError):
                text = error_text(result.code, result.message)
            else:
                text = result.observation.text
                pictures = await self._policy.look(result.observation.images)
                self._ending = Ending.DONE if result.done else Ending.ENVIRONMENT if result.truncated else None
        seen = {"pictures": [part["number"] for part in pictures]} if pictures else {}
        self._observer.write("observation", t=turn, text=text, ending=self._ending, **seen)
        return text, pictures

    async def _stepped(self, begin: Opening, action: Action) -> StepResult | InvalidError:
        try:
            seconds = begin.step_seconds or self._limits.step_seconds
            return await self._environment.step(action.content, timeout_s=seconds)
        except InvalidError as error:
            return error

    async def _judged(self, ending: Ending) -> Verdict:
        if ending is Ending.STEP_SECONDS:
            return FAILED
        with self._outside_engine():
            return await self._environment.evaluate(timeout_s=self._limits.evaluate_seconds)

    @contextmanager
    def _outside_engine(self) -> Iterator[None]:
        """Time a call of the environment."""
        begun = time.monotonic()
        try:
            yield
        finally:
            self._outside += time.monotonic() - begun


def outcome(verdict: Verdict, mode: Mode) -> float:
    """Return the outcome: 1 or -1 by whether the score is at least 1, or ``2f - 1`` of a score from 0 to 1, or the score.

    Raises:
        EpisodeLost: the verdict has no score.
        ConfigError: the mode cannot read the environment's scores.
    """
    score = verdict.score
    if score is None:
        raise EpisodeLost("verdict", f"the verdict is {verdict.status} without a score: {verdict.detail}")
    if mode == "raw":
        return score
    if mode == "binary":
        return 1.0 if score >= 1 else -1.0
    if not 0 <= score <= 1:
        raise ConfigError(
            f"AGENTRL_REWARD=partial takes scores from 0 to 1, but the environment's is {score:g}; use AGENTRL_REWARD=raw"
        )
    return 2 * score - 1
