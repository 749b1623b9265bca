"""``--group-rm --custom-rm-path agentrl.rollout.group_reward.group_reward``: a judge compares the episodes of a task.

One question shows the judge the prompt once and every episode beside it (`openclaw.judge.group`). With the score ``s`` of an episode, the
reward ``r`` that its generate function gave, and the share ``w`` (``AGENTRL_GROUP_SHARE``), its reward is ``(1 - w) r + w s``. An episode
is shown as text: what the loss trains is the policy's, without its thoughts, and what lies between came from the environment. So
any generate function with a loss mask will do.

The judge is ``OPENCLAW_JUDGE_CLASS`` or ``OPENCLAW_JUDGE_BASE_URL``, with ``PRM_M`` votes, or else that of ``--prm-sglang-url`` or
the run's judge engines, with ``--prm-m`` votes.

Guarantees: a group with an aborted episode is not asked about, nor one again that has its scores. While the judge is away its group
waits, until the rollout ends. A group without scores is not trained, and counted as ``rollout/grader_group_REASON`` beside those whose
question was shortened. A sample's ``metadata["group"]`` has its score, its place in the group, and the order of each answer.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import statistics
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any
from weakref import WeakKeyDictionary

from agentrl.rollout.generate import JUDGE_SECONDS, JUDGED_AT_A_TIME, agents_of, judge_of
from agentrl.rollout.settings import Settings
from agentrl.rollout.token_policy import ChatCodec
from groundwork.chat_messages import Message
from groundwork.exceptions import ConfigError
from openclaw.config.runtime_variables import RuntimeVariables
from openclaw.exceptions import EngineUnavailableError
from openclaw.judge.answers import THINKING_START, after_thinking
from openclaw.judge.client import JudgeClient, JudgeSampling
from openclaw.judge.endpoint import ClassJudge, EndpointJudge, load_scorer
from openclaw.judge.group import Comparison, Group, GroupJudge
from openclaw.judge.prompts import MOST_MEMBERS
from slime.args import Arguments
from slime.rollout.generation import GenerateState
from slime.rollout.rm_hub import PROBLEM
from slime.utils.types import Sample

logger = logging.getLogger(__name__)

NOTE = "group"
"""Entry of a sample's metadata about the comparison."""
PAUSE_SECONDS = 5.0
"""Until a judge that is away is asked again."""
RUBRIC = (
    "How far an episode gets towards the goal that the request states. One that reaches it scores clearly higher than one that does not. "
    "What counts is what the tools and the environment returned, not what the assistant claims. Of two that reach the goal, the one "
    "with fewer needless or repeated steps scores a little higher."
)
JUDGES: WeakKeyDictionary[GenerateState, GroupJudge] = WeakKeyDictionary()


async def group_reward(args: Arguments, samples: Any, **kwargs: Any) -> list[Any]:
    """Return the rewards of a group's members: a number or dict for a sample, a list of them for an episode of several samples.

    Raises:
        ConfigError: flags or variables cannot work.
    """
    if isinstance(samples, Sample):
        raise ConfigError("agentrl.rollout.group_reward compares episodes; add --group-rm")
    members: list[list[Sample]] = [each if isinstance(each, list) else [each] for each in samples]
    pieces = [sample for member in members for sample in member]
    settled = all(NOTE in sample.metadata for sample in pieces)
    if not settled and all(sample.status != Sample.Status.ABORTED for sample in pieces):
        await _compare(args, members)
    rewards = [[sample.reward for sample in member] for member in members]
    return [own if isinstance(each, list) else own[0] for each, own in zip(samples, rewards, strict=True)]


async def _compare(args: Arguments, members: list[list[Sample]]) -> None:
    """Give the samples of a group their rewards, or mark them as not trained."""
    _check(args, len(members))
    settings = Settings.from_env()
    judge = _judge_of(args)
    played = [member for member in members if not all(sample.remove_sample for sample in member)]
    group = group_of(agents_of(args).codec, played, settings.group_rubric or RUBRIC)
    first = members[0][0]
    found = await _asked(args, judge, group, f"{args.rollout_seed} {first.group_index}")
    if found is None:
        return
    for member in members:
        place = next((n for n, each in enumerate(played) if each is member), None)
        score = found.scores[place] if found.scores and place is not None else None
        for sample in member:
            sample.metadata[NOTE] = {"score": score, "place": place, "orders": found.orders, "outcome": found.outcome}
            if not found.scores or found.shortened:
                sample.metadata[PROBLEM] = f"group_{'shortened' if found.scores else found.outcome}"
            if score is not None:
                sample.reward = _mixed(args, sample.reward, score, settings.group_share)
            else:
                sample.remove_sample = True
                sample.reward = 0.0 if sample.reward is None else sample.reward
    if found.scores:
        _at_the_mean(args, members, played)


def _at_the_mean(args: Arguments, members: list[list[Sample]], played: list[list[Sample]]) -> None:
    """Give episodes that were not played the mean reward of the others, so that these are compared with nobody who failed."""
    key = args.reward_key
    values = [sample.reward if key is None else sample.reward[key] for member in played for sample in member[-1:]]
    mean = statistics.fmean(values)
    for member in members:
        if not any(member is each for each in played):
            for sample in member:
                sample.reward = (
                    mean if key is None else {**(sample.reward if isinstance(sample.reward, dict) else {}), key: mean}
                )


async def _asked(args: Arguments, judge: GroupJudge, group: Group, seed: str) -> Comparison | None:
    """Return what the judge says as soon as it can be reached; None if the rollout ends before."""
    tries = 0
    while not GenerateState(args).aborted:
        try:
            return await judge.compare(group, random.Random(seed))
        except EngineUnavailableError as error:
            tries += 1
            if not tries & (tries - 1):
                logger.warning("the judge of groups is away; its group waits (try %d): %s", tries, error)
        except ConfigError:
            raise
        except Exception:  # of a person's own class: a defect there is no score, and ends no rollout
            logger.exception("the judge of groups failed; the group is not trained")
            return Comparison("no_quorum")
        await asyncio.sleep(PAUSE_SECONDS)
    return None


def group_of(codec: ChatCodec, members: Sequence[Sequence[Sample]], rubric: str) -> Group:
    """Return episodes as a judge compares them: the prompt that all share once, and what each has beyond it."""
    prompts = [member[0].tokens[: -member[0].response_length] for member in members]
    shared = min(prompts, key=len, default=[])
    for prompt in prompts:
        shared = shared[: _common(shared, prompt)]
    request: Message = {"role": "user", "content": codec.text(shared).strip()}
    return Group([request], [list(_messages(codec, member, len(shared))) for member in members], rubric)


def _messages(codec: ChatCodec, member: Sequence[Sample], shown: int) -> Iterator[Message]:
    """Yield an episode's messages after the first ``shown`` tokens; what a later sample repeats of the one before is left out."""
    before: list[int] = []
    for sample in member:
        start = len(sample.tokens) - sample.response_length
        known = _common(before, sample.tokens[:start]) if before else shown
        mask = [0] * start + list(sample.loss_mask or [1] * sample.response_length)
        opened = codec.text(sample.tokens[:start]).rstrip().endswith(THINKING_START)
        for sampled, run in groupby(range(known, len(mask)), key=mask.__getitem__):
            text = codec.text([sample.tokens[position] for position in run])
            said = (after_thinking(text, inside_thought=opened) or "") if sampled else text
            opened = not sampled and text.rstrip().endswith(THINKING_START)
            if said.strip():
                yield {"role": "assistant" if sampled else "tool", "content": said.strip()}
        before = sample.tokens


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    """Return the length of the longest common beginning."""
    return next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def _mixed(args: Arguments, reward: Any, score: float, share: float) -> Any:
    """Return a reward with a share of the judge's score in it, in the form of the reward."""
    given: float | None = reward[args.reward_key] if isinstance(reward, dict) else reward
    if given is None and share < 1.0:
        raise ConfigError(
            f"AGENTRL_GROUP_SHARE={share} leaves a part to another reward, but the generate function gives none; unset it"
        )
    mixed = score if given is None or share == 1.0 else (1.0 - share) * given + share * score
    if args.reward_key is None:
        return mixed
    return {**(reward if isinstance(reward, dict) else {}), args.reward_key: mixed, "group_score": score}


def _check(args: Arguments, members: int) -> None:
    if not 2 <= members <= MOST_MEMBERS:
        raise ConfigError(
            f"the judge of groups compares 2 to {MOST_MEMBERS} episodes, and got {members}; use --n-samples-per-prompt 8, and give an "
            "evaluation set a custom_rm_path of its own unless its generate function gives the reward"
        )
    if args.advantage_estimator == "step_wise":
        raise ConfigError(
            "--advantage-estimator step_wise reads the scores of steps, not those of groups; use --advantage-estimator grpo"
        )


def _judge_of(args: Arguments) -> GroupJudge:
    """Return the run's judge of groups, created on the first call.

    Raises:
        ConfigError: the run has none.
    """
    state = GenerateState(args)
    judge = JUDGES.get(state)
    if judge is None:
        variables = RuntimeVariables.from_env(os.environ)
        votes, speaker = _speaker(args, variables)
        judge = JUDGES[state] = GroupJudge(speaker, votes, variables.judge_quorum)
    return judge


def _speaker(args: Arguments, variables: RuntimeVariables) -> tuple[int, ClassJudge | EndpointJudge | JudgeClient]:
    """Return the number of votes, and who casts them."""
    votes = variables.prm_m or 1
    if variables.judge_class:
        judge = ClassJudge(load_scorer(variables.judge_class))
        if not judge.compares:
            raise ConfigError(
                f"OPENCLAW_JUDGE_CLASS={variables.judge_class} lacks: def score_group(self, prompt, replies, rubric)"
            )
        return votes, judge
    if variables.judge_base_url:
        if not variables.judge_model:
            raise ConfigError("OPENCLAW_JUDGE_BASE_URL needs OPENCLAW_JUDGE_MODEL; set it to the judge's name there")
        return votes, EndpointJudge(
            variables.judge_base_url,
            model=variables.judge_model,
            key=variables.judge_api_key,
            variant="full",
            sampling=JudgeSampling(variables.prm_temperature, max_new_tokens=variables.prm_max_new_tokens),
            timeout=JUDGE_SECONDS,
            concurrency=JUDGED_AT_A_TIME * votes,
        )
    engine = judge_of(args, grammar=variables.judge_grammar)
    if engine is None:
        raise ConfigError(
            "there is no judge of groups; set OPENCLAW_JUDGE_BASE_URL and OPENCLAW_JUDGE_MODEL, or OPENCLAW_JUDGE_CLASS, or "
            "add --prm-enable --prm-num-gpus 1 --prm-m 1 --prm-step-coef 0"
        )
    return args.prm_m, engine
