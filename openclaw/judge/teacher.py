"""Teacher log-probabilities: the likelihood of each response token under the teacher's prompt.

The method chooses the teacher's prompt (`openclaw.method.JudgePlan`): the hint, unless the plan has its own context.

Guarantees: ids are joined (the teacher's prompt ids + response ids), never text, so each number belongs to the sampled
token. Scoring starts one token early, because an engine gives no value for the first position that it scores. So the
first response token has a true log-probability.

Temperature: a turn's stored log-probabilities are at its sampling temperature, but an engine scores given tokens only at
temperature 1. So both prompts are scored. With s = score of the reply under the turn's own prompt, and t = its score
under the teacher's prompt,

    teacher_log_probs[k] = response_logprobs[k] + (t[k] - s[k])

(A turn that read lessons is scored under its plain prompt, or the lessons would cancel the hint.)

so that teacher_log_probs - response_logprobs, the advantage of on-policy distillation, is exactly the log ratio of the
two distributions at temperature 1, free of any temperature mismatch. The top K (`TopK`) are the engine's own numbers at
temperature 1, where the loss compares them.

If the teacher is the policy itself, both scores come from the same weights: when the engine's weights change in between, scoring
starts again. If it is another model, s is of the weights that serve now. The term then is 0 exactly where the policy at temperature 1
is the teacher. At a sampling temperature T it also has the right direction: with ``log p_T(v) = log p(v) / T - log Z``,

    t - s = T (log p_T(v) of the teacher - log p_T(v) of the policy) + T (log Z of the teacher - log Z of the policy),

and the last part is the same for every token of a position. So ``E[(t - s) grad log pi_T]`` over the policy's own samples is
``-T grad KL(pi_T, teacher_T)``.

A teacher with another tokenizer scores spans of text (`openclaw.judge.reading`). A token of the policy without a counterpart
keeps the log-probability that it was sampled with: its term is exactly 0, as that of a sample without a teacher, it stays in every
normaliser, and `Verdict.teacher_untaught` counts it.

Of several hints one is chosen by how far the teacher that reads it agrees with the policy. A hint is the better for
distillation, the more of the policy's most likely tokens are the teacher's too: there the two distributions can be
compared. The overlap of a hint at a position is ``|topk(pi_old) & topk(pi_T under the hint)|`` (OpenClaw-RL, arXiv
2603.10165v2).

* ``sequence_optimal``: the hint with the largest overlap over the whole reply.
* ``token_optimal``: at each position the hint with the largest overlap there.
* ``shortest``: the hint with the fewest characters; needs no teacher.

Guarantees: of equals the shortest hint wins, then the first, so the choice does not depend on the order of answers that say
the same. Pure functions.

An engine scores given tokens at temperature 1 only, but the policy samples at ``T``. With ``a = 1/T`` and ``p`` the teacher's
probabilities at temperature 1,

    log p_T(v) = a log p(v) - log Z,    Z = sum_u p(u)^a.

The engine reports its likeliest tokens ``U``; each other token has a probability of at most ``m``, the smallest in ``U``. For
``T <= 1`` the rest of the sum is therefore between 0 and ``m^(a-1) (1 - sum_U p)``. At ``T = 1``, ``Z`` is 1.

Guarantees: a returned log probability is off by at most `TOLERANCE`, the engine's own arithmetic aside. Where ``U`` does not
settle it that closely, or lacks a token, and for every ``T > 1``, there is no value. Pure functions.

The teacher's log probabilities of the tokens that the policy itself found likeliest, at the policy's own temperature.

``S`` are the policy's K likeliest tokens at each position of the reply, kept by the gateway when the reply was sampled. The
teacher reads the request with a hint, then the reply's ids.

Guarantees:
* The teacher's numbers are at the turn's temperature, as those of ``S``. A teacher that is the policy without a hint gives
  the same numbers, up to `openclaw.judge.teacher.TOLERANCE` and the engine's arithmetic.
* A teacher that is the policy itself is compared with the student at the same weights. If other weights sampled the reply, or the
  prompt that was served had lessons, the plain prompt is scored, too: with ``t`` and ``s`` the numbers of ``S`` with and without
  the hint, the result is ``old + (t - s)``. So ``result - old``, which the loss reads, has nothing of what the weights have
  learned since, or of the lessons. Otherwise it is ``t``, because ``s`` is ``old``.
* No number is made up. One request scores the whole reply and reports the likeliest tokens at temperature 1. Where these do
  not settle ``S`` at the turn's temperature, the engine is asked for exactly ``S``: as the log probabilities of a next token
  that it samples at that temperature after the same ids. Those requests find their prompt in the engine's cache.
* All numbers of a turn come from the same weights; if the weights change meanwhile, scoring starts again.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from groundwork.chat_messages import Message, pictures_in
from openclaw.engine.client import scoring_payload
from openclaw.exceptions import EngineUnavailableError, JudgeError, TeacherMismatchError
from openclaw.judge.client import Engine, together
from openclaw.judge.reading import OtherModel, Reading, Render, prompt_under
from openclaw.judge.voting import JudgeMetrics
from openclaw.ledger.records import TopK, Turn, Verdict, Vote
from openclaw.messages.hints import append_hint
from openclaw.method import HintChoice, JudgePlan, TeacherContext
from openclaw.owners import owner_of

logger = logging.getLogger(__name__)

MAX_CANDIDATES = 3

Ids = Sequence[Sequence[int]]
"""Token ids, a row per position."""


def candidates(votes: Iterable[Vote], choice: HintChoice) -> list[str]:
    """Return up to `MAX_CANDIDATES` different accepted hints, the shortest first; one of them for ``shortest``."""
    hints = list(dict.fromkeys(vote.hint for vote in votes if vote.hint is not None))[:MAX_CANDIDATES]
    return sorted(hints, key=len)[: 1 if choice == "shortest" else None]


def overlaps(student: Ids, teacher: Ids) -> list[int]:
    """Return for each position how many of the student's tokens are among as many of the teacher's likeliest."""
    return [len({*own} & {*other[: len(own)]}) for own, other in zip(student, teacher, strict=True)]


def choose(choice: HintChoice, student: Ids, teachers: Sequence[Ids]) -> list[int]:
    """Return for each position the index of the teacher whose hint counts there; the first of equals."""
    found = [overlaps(student, teacher) for teacher in teachers]
    if choice == "token_optimal":
        return [max(range(len(found)), key=lambda n: found[n][position]) for position in range(len(student))]
    best = max(range(len(found)), key=lambda n: sum(found[n]))
    return [best] * len(student)


TOLERANCE = 1e-4
"""In nats; far below the bound of 1 on a token's log ratio."""


def at_temperature(
    wanted: Sequence[int], ids: Sequence[int], log_probs: Sequence[float], temperature: float
) -> list[float] | None:
    """Return the log probabilities of ``wanted`` at ``temperature``, or None if the row does not settle them.

    Args:
        wanted: token ids.
        ids: the likeliest tokens of the position.
        log_probs: theirs at temperature 1.
        temperature: above 0.
    """
    known = dict(zip(ids, log_probs, strict=True))
    if any(token not in known for token in wanted):
        return None
    normaliser = log_normaliser(log_probs, 1.0 / temperature)
    return None if normaliser is None else [known[token] / temperature - normaliser for token in wanted]


def log_normaliser(log_probs: Sequence[float], power: float) -> float | None:
    """Return ``log sum_u p(u)^power`` from the largest probabilities, or None if they do not settle it."""
    if power == 1.0:
        return 0.0
    if power < 1.0:
        return None  # many tokens that are unlikely at 1 together matter above it
    most, least = max(log_probs), min(log_probs)
    inside = math.fsum(math.exp(power * (value - most)) for value in log_probs)
    outside = max(0.0, 1.0 - math.fsum(map(math.exp, log_probs)))
    rest = math.exp((power - 1.0) * least - power * most) * outside
    if math.log1p(rest / inside) > 2 * TOLERANCE:
        return None
    return power * most + math.log(inside + rest / 2)


VERSION_TRIES = 3


@dataclass(frozen=True)
class Scores:
    """Log-probabilities of response tokens at temperature 1, their weight version, and the top K if requested."""

    log_probs: list[float]
    weight_version: str
    topk: TopK | None = None


@dataclass(frozen=True)
class TeacherScore:
    """A turn's teacher log-probabilities, the weight versions of both scores, the teacher's top K, and tokens without a term by reason."""

    log_probs: tuple[float, ...]
    versions: tuple[str, ...]
    topk: TopK | None = None
    untaught: dict[str, int] = field(default_factory=dict[str, int])


async def score(
    engine: Engine, prompt_ids: Sequence[int], response_ids: Sequence[int], topk: int = 0, *, owner: str
) -> Scores:
    """Return log p(response_ids[k] | prompt_ids, response_ids[:k]) for each k, and the ``topk`` likeliest tokens.

    ``owner`` is whose conversation it is, see `Engine.generate`.

    Raises:
        TeacherMismatchError: if the engine scored other tokens or another number, or gave a value that is not finite.
        JudgeError: if the engine was unavailable.
    """
    start = len(prompt_ids) - 1
    answer = await engine.generate(
        scoring_payload(prompt_ids, response_ids) | ({"top_logprobs_num": topk} if topk else {}),
        owner,
    )
    meta = answer["meta_info"]
    entries = meta["input_token_logprobs"]
    ids = [entry[1] for entry in entries]
    if not _same([prompt_ids[start], *response_ids], ids):
        raise TeacherMismatchError(
            f"asked to score {len(response_ids)} tokens after position {start}, "
            f"but the engine scored {len(ids) - 1}, or other tokens"
        )
    values = [entry[0] for entry in entries[1:]]
    if not all(value is not None and math.isfinite(value) for value in values):
        raise TeacherMismatchError("the engine gave a log-probability that is not a finite number")
    found = _topk(meta.get("input_top_logprobs"), len(response_ids), topk) if topk else None
    return Scores(values, str(meta.get("weight_version", "")), found)


def _same(sent: Sequence[int], named: Sequence[int]) -> bool:
    """Return whether an engine that was sent tokens scored them; SGLang 0.5 calls the vocabulary's last token 0 and scores it rightly.

    See ``SchedulerLogprobResultProcessor._process_input_token_logprobs`` and the clamp in ``ScheduleBatch.prepare_for_extend``.
    """
    if len(sent) != len(named):
        return False
    other = {pair for pair in zip(sent, named, strict=True) if pair[0] != pair[1]}
    return other <= {(max(sent), 0)}


def _topk(rows: list[Any] | None, length: int, topk: int) -> TopK:
    """Return the top K of each response token; ``rows`` starts with an empty entry for the position before."""
    if rows is None or len(rows) != length + 1 or any(row is None or len(row) != topk for row in rows[1:]):
        raise TeacherMismatchError(f"the engine did not give the requested top {topk} of {length} positions")
    log_probs = [[entry[0] for entry in row] for row in rows[1:]]
    if not all(math.isfinite(value) for row in log_probs for value in row):
        raise TeacherMismatchError("the engine gave a top log-probability that is not a finite number")
    return TopK(log_probs, [[entry[1] for entry in row] for row in rows[1:]])


def under_hint(turn: Turn, verdict: Verdict) -> list[Message] | None:
    """Return the request with the hint appended to its last user message, the teacher's default context."""
    return None if verdict.hint is None else append_hint(turn.messages, verdict.hint)


def context_of(context: TeacherContext, turn: Turn, verdict: Verdict) -> Sequence[Message] | None:
    """Return the teacher's messages, or None if the turn has no teacher.

    Raises:
        TeacherMismatchError: if the turn lacks what the context is built from.
    """
    try:
        return context(turn, verdict)
    except ValueError as error:
        raise TeacherMismatchError(f"turn {turn.id}: {error}") from error


def read(render: Render, other: OtherModel | None, turn: Turn, messages: Sequence[Message]) -> Reading:
    """Return what the teacher reads: another model in its own way, the policy with ``render``.

    Raises:
        TeacherMismatchError: see `OtherModel.read`.
    """
    if other is not None:
        return other.read(turn, messages)
    return Reading.of_same_tokens(prompt_under(render, turn, messages), turn.response_ids)


class TeacherScorer:
    """Scores replies under the teacher's prompt, at most ``concurrency`` turns at a time."""

    def __init__(
        self,
        *,
        policy: Engine,
        teacher: Engine,
        render: Render,
        concurrency: int,
        topk: int = 0,
        other: OtherModel | None = None,
    ) -> None:
        """Create a scorer.

        Args:
            policy: the policy's engine; scores the reply under the turn's own prompt.
            teacher: scores the reply under the teacher's prompt: the same object for self-distillation, or another
            model's engine.
            render: renders messages, tools and template keywords to prompt ids, as the gateway does; called in a
            thread.
            concurrency: most turns at a time.
            topk: size of the teacher's top K; 0 for none.
            other: how the teacher reads a turn, if it is another model; None: as the policy does.
        """
        self._topk = topk
        self._policy = policy
        self._teacher = teacher
        self._render = render
        self._other = other
        self._slots = asyncio.Semaphore(concurrency)

    async def score_turn(self, turn: Turn, messages: Sequence[Message]) -> TeacherScore:
        """Return the teacher's log-probabilities of the turn's response as a reply to ``messages``.

        Raises:
            TeacherMismatchError: if they are unusable.
            JudgeError: if an engine was unavailable, or its weights changed during every try.
        """
        reading = await asyncio.to_thread(read, self._render, self._other, turn, messages)
        async with self._slots:
            owner = owner_of(turn.session_id)
            for _ in range(VERSION_TRIES):
                teacher, student = await together(
                    score(self._teacher, reading.prompt_ids, reading.reply_ids, self._topk, owner=owner),
                    score(self._policy, turn.student_ids, turn.response_ids, owner=owner),
                )
                if self._teacher is not self._policy or teacher.weight_version == student.weight_version:
                    break
            else:
                raise EngineUnavailableError(
                    f"the weights changed during each of {VERSION_TRIES} tries to score a turn"
                )
        terms = reading.terms(teacher.log_probs, student.log_probs)
        log_probs = tuple(
            sampled if term is None else sampled + term
            for sampled, term in zip(turn.response_logprobs, terms, strict=True)
        )
        versions = tuple(dict.fromkeys((teacher.weight_version, student.weight_version)))
        return TeacherScore(log_probs, versions, teacher.topk, reading.untaught)


@dataclass(frozen=True)
class SupportScore:
    """The teacher's numbers of ``S``.

    Attributes:
        topk: ``S`` with the teacher's log probabilities at the turn's temperature.
        chosen: index of the hint that counts at most positions.
        overlap: mean share of ``S`` among as many of the teacher's likeliest tokens.
        asked: positions that needed a request of their own.
        version: weight version of the teacher.
    """

    topk: TopK
    chosen: int
    overlap: float
    asked: int
    version: str


class SupportScorer:
    """Scores ``S`` under the hints' prompts, at most ``concurrency`` turns at a time."""

    def __init__(
        self,
        *,
        teacher: Engine,
        render: Render,
        choice: HintChoice,
        rows: int,
        concurrency: int,
        teaches_itself: bool = False,
        other: OtherModel | None = None,
    ) -> None:
        """Create a scorer.

        Args:
            teacher: scores; the policy's engine, or another model's with the policy's tokenizer.
            render: renders messages, tools and template keywords to prompt ids, as the gateway does; called in a thread.
            choice: which of several hints counts.
            rows: how many of its likeliest tokens the teacher reports per position, at least K.
            concurrency: most turns at a time.
            teaches_itself: whether the teacher is the policy's engine.
            other: how the teacher reads a turn, if it is another model; it scores token by token.
        """
        self._teacher = teacher
        self._other = other
        self._teaches_itself = teaches_itself
        self._render = render
        self._choice: HintChoice = choice
        self._rows = rows
        self._slots = asyncio.Semaphore(concurrency)

    async def score_turn(self, turn: Turn, contexts: Sequence[Sequence[Message]]) -> SupportScore:
        """Return the teacher's numbers of the turn's ``S`` as a reply to the best of ``contexts``.

        Raises:
            TeacherMismatchError: if they are unusable, or the turn has no ``S``.
            JudgeError: if the engine was unavailable, or its weights changed during every try.
        """
        if turn.response_topk is None:
            raise TeacherMismatchError(f"turn {turn.id} was recorded without the policy's likeliest tokens")
        readings = [await asyncio.to_thread(read, self._render, self._other, turn, messages) for messages in contexts]
        prompts = [reading.prompt_ids for reading in readings]
        async with self._slots:
            for _ in range(VERSION_TRIES):
                if (found := await self._score(turn, turn.response_topk.ids, prompts)) is not None:
                    return found
        raise EngineUnavailableError(f"the weights changed during each of {VERSION_TRIES} tries to score a turn")

    async def _score(
        self, turn: Turn, support: Sequence[Sequence[int]], prompts: Sequence[list[int]]
    ) -> SupportScore | None:
        """Return the score, or None if the weights changed meanwhile."""
        assert turn.response_topk is not None
        owner = owner_of(turn.session_id)
        scored = await together(
            *(score(self._teacher, ids, turn.response_ids, self._rows, owner=owner) for ids in prompts)
        )
        teachers = [_rows_of(scores) for scores in scored]
        picks = choose(self._choice, support, [teacher.ids for teacher in teachers])
        chosen = [(teachers[pick].ids[n], teachers[pick].log_probs[n]) for n, pick in enumerate(picks)]
        found, asked, versions = await self._settled(turn, support, chosen, [prompts[pick] for pick in picks])
        versions |= {scores.weight_version for scores in scored}
        if self._teaches_itself and (
            turn.plain is not None or {span.version for span in turn.weight_versions} - versions
        ):
            student = await score(self._teacher, turn.student_ids, turn.response_ids, self._rows, owner=owner)
            own, alone, seen = await self._settled(turn, support, _pairs_of(student), [turn.student_ids] * len(support))
            asked, versions = asked + alone, versions | seen | {student.weight_version}
            found = [
                [sampled + (taught - without) for sampled, taught, without in zip(*row, strict=True)]
                for row in zip(turn.response_topk.log_probs, found, own, strict=True)
            ]
        if len(versions) > 1:
            return None
        shared = overlaps(support, [ids for ids, _ in chosen])
        return SupportScore(
            topk=TopK(found, [list(own) for own in support]),
            chosen=Counter(picks).most_common(1)[0][0],
            overlap=sum(shared) / sum(map(len, support)),
            asked=asked,
            version=versions.pop(),
        )

    async def _settled(
        self,
        turn: Turn,
        support: Sequence[Sequence[int]],
        rows: Sequence[tuple[Sequence[int], Sequence[float]]],
        prompts: Sequence[Sequence[int]],
    ) -> tuple[list[list[float]], int, set[str]]:
        """Return the numbers of ``S`` at the turn's temperature, how many positions were asked for alone, and the versions of these.

        ``rows`` has the likeliest tokens at each position with their numbers at temperature 1, ``prompts`` its prompt.
        """
        settled = [at_temperature(own, *row, turn.temperature) for own, row in zip(support, rows, strict=True)]
        missing = [position for position, values in enumerate(settled) if values is None]
        answers = await together(
            *(self._next(turn, prompts[position], position, support[position]) for position in missing)
        )
        for position, (values, _) in zip(missing, answers, strict=True):
            settled[position] = values
        found = [values for values in settled if values is not None]
        return found, len(missing), {version for _, version in answers}

    async def _next(
        self, turn: Turn, prompt_ids: Sequence[int], position: int, ids: Sequence[int]
    ) -> tuple[list[float], str]:
        """Return the log probabilities of ``ids`` as the next token, at the turn's temperature, and the weight version."""
        before = [*prompt_ids, *turn.response_ids[:position]]
        owner = owner_of(turn.session_id)
        return await next_token_log_probs(self._teacher, before, ids, turn.temperature, owner=owner)


async def next_token_log_probs(
    engine: Engine, before: Sequence[int], ids: Sequence[int], temperature: float, *, owner: str
) -> tuple[list[float], str]:
    """Return the log probabilities of ``ids`` as the next token after ``before``, at a temperature, and the weight version.

    Raises:
        TeacherMismatchError: if the engine gave other tokens, or a value that is not finite.
        JudgeError: if the engine was unavailable.
    """
    answer = await engine.generate(
        {
            "input_ids": list(before),
            "sampling_params": {"max_new_tokens": 1, "temperature": temperature},
            "return_logprob": True,
            "token_ids_logprob": list(ids),
        },
        owner,
    )
    meta = answer["meta_info"]
    rows: list[list[list[Any]]] = meta.get("output_token_ids_logprobs") or [[]]
    if [entry[1] for entry in rows[0]] != list(ids):
        raise TeacherMismatchError(f"asked for the log-probabilities of {list(ids)}, the engine gave others")
    values = [entry[0] for entry in rows[0]]
    if not all(value is not None and math.isfinite(value) for value in values):
        raise TeacherMismatchError("the engine gave a log-probability that is not a finite number")
    return values, str(meta.get("weight_version", ""))


def _rows_of(scores: Scores) -> TopK:
    if scores.topk is None:
        raise TeacherMismatchError("the engine gave no likeliest tokens")
    return scores.topk


def _pairs_of(scores: Scores) -> list[tuple[list[int], list[float]]]:
    """Return the likeliest tokens of each position, and their numbers."""
    rows = _rows_of(scores)
    return [*zip(rows.ids, rows.log_probs, strict=True)]


class Teaching:
    """Scores replies as a plan wants it."""

    def __init__(self, teacher: TeacherScorer | SupportScorer | None, plan: JudgePlan, metrics: JudgeMetrics) -> None:
        """``teacher``: None if the plan needs none."""
        self._teacher = teacher
        self._plan = plan
        self._metrics = metrics

    async def taught(self, turn: Turn, verdict: Verdict) -> Verdict:
        """Return the verdict with the teacher's numbers; without them if the turn has no teacher or has pictures, or it refused the turn.

        Raises:
            EngineUnavailableError: the teacher's engine is away.
        """
        teacher = self._teacher
        if teacher is None or not self._plan.needs_teacher:
            return verdict
        if pictures_in(turn.messages):
            self._metrics.teacher_failures.labels(kind="pictures").inc()
            logger.warning(
                "turn %s has no teacher logprobs: its prompt has pictures, which the teacher does not see", turn.id
            )
            return verdict
        try:
            if isinstance(teacher, SupportScorer):
                return await self._with_support(teacher, turn, verdict)
            messages = context_of(self._plan.teacher_context or under_hint, turn, verdict)
            if messages is None:
                return verdict
            scored = await teacher.score_turn(turn, messages)
        except EngineUnavailableError:
            raise
        except JudgeError as error:
            kind = "mismatch" if isinstance(error, TeacherMismatchError) else "refused"
            self._metrics.teacher_failures.labels(kind=kind).inc()
            logger.error("turn %s has no teacher logprobs (%s): %s", turn.id, kind, error)
            return verdict
        untaught = scored.untaught
        taught = {"taught": len(scored.log_probs) - sum(untaught.values())}
        for outcome, count in {**taught, **untaught}.items():
            self._metrics.teacher_tokens.labels(outcome=outcome).inc(count)
        return replace(
            verdict,
            teacher_log_probs=scored.log_probs,
            teacher_versions=scored.versions,
            teacher_topk=scored.topk,
            teacher_untaught=untaught,
        )

    async def _with_support(self, teacher: SupportScorer, turn: Turn, verdict: Verdict) -> Verdict:
        """Return the verdict with the teacher's numbers of the policy's top K, and the hint that it read for them."""
        hints = [verdict.hint]
        if verdict.hint is not None:
            hints = [*candidates(verdict.votes, self._plan.hint_choice)]
        readings = [replace(verdict, hint=hint) for hint in hints]
        contexts = [context_of(self._plan.teacher_context or under_hint, turn, reading) for reading in readings]
        read = [(reading, messages) for reading, messages in zip(readings, contexts, strict=True) if messages]
        if not read:
            return verdict
        scored = await teacher.score_turn(turn, [messages for _, messages in read])
        self._metrics.hint_overlap.observe(scored.overlap)
        self._metrics.teacher_positions.labels(settled="together").inc(len(turn.response_ids) - scored.asked)
        self._metrics.teacher_positions.labels(settled="alone").inc(scored.asked)
        return replace(read[scored.chosen][0], teacher_topk=scored.topk, teacher_versions=(scored.version,))
