"""``--custom-generate-function-path agentrl.rollout.generate.generate``: slime's samples from episodes.

The prompt's ``metadata["task_id"]`` names the task, or else the prompt itself does; ``metadata["seed"]`` is the seed of its
reset (default 0).

Guarantees: an episode that is lost to the infrastructure is tried again with a new lease, `Settings.tries` times. After that
the sample is aborted without a reward, so that slime drops and counts its group and asks for another. An episode that
slime aborts keeps its lease with ``--partial-rollout`` and goes on when its sample comes back; after a restart of the
process, or `Settings.park_seconds`, it starts over.
"""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from agentrl.client import HttpLeases
from agentrl.protocol import LeaseService
from agentrl.rollout.episode import EpisodeRun, Result, samples_of
from agentrl.rollout.pictures import picture_tokens_of
from agentrl.rollout.play import EpisodeLost
from agentrl.rollout.records import EpisodeRecord
from agentrl.rollout.settings import Settings
from agentrl.rollout.step_judge import Fits, StepJudge
from agentrl.rollout.token_policy import ChatCodec, TokenPolicy
from groundwork.exceptions import ConfigError
from groundwork.processors import load_processor, load_tokenizer
from openclaw.judge.client import EngineHttp, JudgeClient, JudgeSampling
from openclaw.judge.interface import Question
from slime.args import Arguments
from slime.rollout.generation import GenerateState
from slime.utils.types import Sample

logger = logging.getLogger(__name__)
TICKET = "agent_ticket"
"""Entry of an aborted sample's metadata: under which its episode waits."""
JUDGED_AT_A_TIME = 16
Lend = Callable[[Settings], AbstractAsyncContextManager[LeaseService]]
JUDGE_SECONDS = 120.0
AGENTS: WeakKeyDictionary[GenerateState, Agents] = WeakKeyDictionary()


class SuspendedEpisodes:
    """Aborted episodes that wait, with their leases, until slime asks for their samples again, by ticket.

    Guarantees: an episode is taken by one caller only. One that nobody takes within its time is closed, so its lease is given
    back. Used from one event loop.
    """

    def __init__(self) -> None:
        self._waiting: dict[str, tuple[EpisodeRun, asyncio.Task[None]]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, run: EpisodeRun, seconds: float) -> str:
        """Keep an episode for ``seconds``; return its ticket."""
        ticket = secrets.token_hex(8)
        self._waiting[ticket] = run, asyncio.create_task(self._expire(ticket, seconds), name=f"suspended {run.name}")
        return ticket

    def take(self, ticket: str | None) -> EpisodeRun | None:
        """Return the episode of a ticket; None if there is none, or it was closed."""
        run, expiring = self._waiting.pop(ticket or "", (None, None))
        if expiring is not None:
            expiring.cancel()
        return run

    async def close(self) -> None:
        """Close all waiting episodes."""
        for ticket in list(self._waiting):
            if (run := self.take(ticket)) is not None:
                await run.close()

    async def _expire(self, ticket: str, seconds: float) -> None:
        await asyncio.sleep(seconds)
        run, _ = self._waiting.pop(ticket)
        logger.warning("episode %s was not taken up within %g s; its task starts over", run.name, seconds)
        await run.close()


class Agents:
    """What the episodes of a process share."""

    def __init__(self, args: Arguments, tokenizer: Any) -> None:
        """Read the tokenizer's chat template, and prepare the judge if the run has one."""
        self.codec = ChatCodec(tokenizer)
        self.suspended = SuspendedEpisodes()
        self._judge = judge_of(args)
        self._votes, self._answer_tokens = args.prm_m, args.prm_max_new_tokens
        self._unweighed = args.group_rm and not args.prm_step_coef
        self._slots = asyncio.Semaphore(JUDGED_AT_A_TIME)

    def step_judge(self, settings: Settings) -> StepJudge | None:
        """Return the judge of a new episode's steps, or None: the run has none, or has it for groups and steps weigh nothing.

        Raises:
            ConfigError: its answer alone takes all tokens that it may have.
        """
        if self._judge is None or self._unweighed:
            return None
        return StepJudge(self._judge, self._votes, self._slots, self._fits(self._judge, settings.judge_tokens))

    def _fits(self, judge: JudgeClient, most: int | None) -> Fits | None:
        if most is None:
            return None
        if (room := most - self._answer_tokens) <= 0:
            raise ConfigError(
                f"{most} tokens of the judge leave no room beside --prm-max-new-tokens {self._answer_tokens}; lower that, or "
                "raise AGENTRL_JUDGE_TOKENS (prm_max_total_tokens of a terminal run)"
            )

        async def fits(question: Question) -> bool:
            return await judge.length("prm", question) <= room

        return fits


def agents_of(args: Arguments) -> Agents:
    """Return what the episodes of this process share, created on the first call."""
    state = GenerateState(args)
    agents = AGENTS.get(state)
    if agents is None:
        agents = AGENTS[state] = Agents(args, state.tokenizer)
    return agents


def service_of(settings: Settings) -> AbstractAsyncContextManager[LeaseService]:
    """Return the pool or router of the settings.

    Raises:
        ConfigError: there is none.
    """
    if settings.pool_url is None:
        raise ConfigError("AGENTRL_POOL_URL is not set; set it to a pool's URL, such as http://127.0.0.1:30200")
    return HttpLeases(settings.pool_url, settings.key)


async def generate(
    args: Arguments, sample: Sample, sampling_params: dict[str, Any], evaluation: bool = False
) -> Sample | list[Sample]:
    """Play the episode of a sample; return its training samples, or the sample itself, aborted.

    Raises:
        ConfigError: a flag, a variable or the task's name is wrong.
    """
    return await generate_in(args, sample, sampling_params, evaluation)


async def generate_in(
    args: Arguments,
    sample: Sample,
    sampling_params: dict[str, Any],
    evaluation: bool,
    *,
    lend: Lend | None = None,
    judged: Callable[[Result], Result] = lambda result: result,
    settings: Settings | None = None,
) -> Sample | list[Sample]:
    """Play an episode as `generate` does, with environments of another pool or with other settings.

    Args:
        args: of the run.
        sample: whose metadata or prompt names the task.
        sampling_params: of its replies.
        evaluation: whether this is an evaluation.
        lend: returns the service that lends environments; None: that of the settings.
        judged: may change a finished episode before it becomes samples.
        settings: of the episode; None: those of the environment's variables.

    Raises:
        ConfigError: a flag, a variable or the task's name is wrong.
    """
    settings = settings or Settings.from_env()
    if not (args.dynamic_history or evaluation):
        raise ConfigError("an episode can become several samples; add --dynamic-history")
    agents = agents_of(args)
    run = agents.suspended.take(sample.metadata.pop(TICKET, None))
    resumed = run is not None
    for attempt in range(1, settings.tries + 1):
        run = run or _new_run(args, agents, settings, sample, sampling_params, evaluation, lend or service_of)
        try:
            result = await run.play()
        except EpisodeLost as lost:
            logger.warning("episode %s (attempt %d of %d) is lost: %s", run.name, attempt, settings.tries, lost)
            sample.metadata["agent_lost"] = lost.reason
            run = None
            continue
        if result is None:
            return await _aborted(args, agents, settings, sample, run)
        notes = {"episode": run.name, "attempts": attempt, "resumed": resumed}
        tokenizer, gamma = GenerateState(args).tokenizer, settings.step_gamma
        # In a thread: the pixel values of many pictures take a while.
        return await asyncio.to_thread(
            samples_of,
            *(args, sample, judged(result), tokenizer),
            gamma=gamma,
            notes=notes,
            trained=not evaluation,
        )
    sample.status = Sample.Status.ABORTED
    return sample


def _new_run(
    args: Arguments,
    agents: Agents,
    settings: Settings,
    sample: Sample,
    sampling_params: dict[str, Any],
    evaluation: bool,
    lend: Lend,
) -> EpisodeRun:
    task_id = sample.metadata.get("task_id") or sample.prompt
    if not isinstance(task_id, str) or not task_id:
        raise ConfigError("the prompt names no task; give its row metadata with a task_id")
    parameters = dict(sampling_params)
    if settings.max_reply_tokens is not None:
        parameters["max_new_tokens"] = settings.max_reply_tokens
    name = f"{'eval' if evaluation else 'train'}-{sample.group_index}-{sample.index}-{secrets.token_hex(4)}"
    record = EpisodeRecord(Path(args.run_dir), name)
    policy = TokenPolicy(
        *(args, sample, parameters, agents.codec, record),
        evaluation=evaluation,
        keywords={**args.apply_chat_template_kwargs, **(sample.apply_chat_template_kwargs or {})},
        processor=GenerateState(args).processor,
    )
    return EpisodeRun(
        *(lend(settings), policy, settings, record),
        task_id=task_id,
        seed=_seed(sample),
        judge=agents.step_judge(settings),
    )


def _seed(sample: Sample) -> int:
    seed = sample.metadata.get("seed", 0)
    if not isinstance(seed, int) or not 0 <= seed < 2**63:
        raise ConfigError(f"the prompt's seed is {seed!r}; give its row a whole number from 0 to 2^63 - 1")
    return seed


async def _aborted(args: Arguments, agents: Agents, settings: Settings, sample: Sample, run: EpisodeRun) -> Sample:
    """Return the sample as slime gets it back: with a ticket if it will be continued."""
    if args.partial_rollout:
        sample.metadata[TICKET] = agents.suspended.put(run, settings.park_seconds)
    else:
        await run.close()
    sample.status = Sample.Status.ABORTED
    return sample


def judge_of(args: Arguments, *, grammar: bool = False) -> JudgeClient | None:
    """Return the judge of ``--prm-sglang-url``, or else of the run's judge engines; None if it has neither.

    ``grammar``: whether its engine holds answers to their grammar.

    Raises:
        ConfigError: the URL is none.
    """
    if args.prm_sglang_url:
        url = args.prm_sglang_url.rstrip("/").removesuffix("/generate")
        if not re.fullmatch(r"https?://[^/\s]+", url):
            raise ConfigError(f"--prm-sglang-url {args.prm_sglang_url} is not a URL; write http://HOST:PORT")
    elif args.prm_router_ip:
        url = f"http://{args.prm_router_ip}:{args.prm_router_port}"
    else:
        return None
    engine = EngineHttp(url, timeout=JUDGE_SECONDS, concurrency=JUDGED_AT_A_TIME * args.prm_m)
    sampling = JudgeSampling(temperature=args.prm_temperature, max_new_tokens=args.prm_max_new_tokens, grammar=grammar)
    tokenizer = load_tokenizer(args.prm_model_path)
    processor = load_processor(args.prm_model_path)
    return JudgeClient(engine, tokenizer, "full", sampling, picture_tokens_of(processor) if processor else None)
