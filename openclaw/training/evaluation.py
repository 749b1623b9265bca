"""``generate`` and ``reward_func`` of the method folders: replies to data-set prompts, scored by the judge.

Guarantees: the reply comes from the policy engine with exact ids and log-probabilities. The score is the PRM's majority,
or 0 with the reason ``no_next_state``, because the judge needs a next state.
"""

from __future__ import annotations

from functools import cache, lru_cache
from typing import Any

from groundwork.processors import load_tokenizer
from openclaw.config.runtime import RuntimeConfig
from openclaw.judge.client import EngineHttp, JudgeClient, JudgeSampling, together
from openclaw.judge.interface import Question
from openclaw.judge.voting import has_quorum, majority
from slime.args import Arguments
from slime.rollout import sglang_rollout
from slime.utils.types import Sample

NEXT_STATE = "next_state"
load_judge_tokenizer = lru_cache(maxsize=1)(load_tokenizer)


@cache
def runtime_config() -> RuntimeConfig:
    """Return the variables of this process, which are read once."""
    return RuntimeConfig.from_env()


async def generate(
    args: Arguments, sample: Sample, sampling_params: dict[str, Any], evaluation: bool = False
) -> Sample:
    """Generate the reply to ``sample.prompt``, in training and evaluation alike."""
    return await sglang_rollout.generate(args, sample, sampling_params)


async def judge_reward(args: Arguments, sample: Sample | list[Sample], **kwargs: Any) -> Any:
    """Return ``{"score", "acc", "reason"}`` of a sample, or a list of them for a list.

    ``sample.metadata["next_state"]`` has the next state: the messages after the reply, or the text of a user message.
    """
    if isinstance(sample, list):
        return await together(*(judge_reward(args, one) for one in sample))
    next_state = sample.metadata.get(NEXT_STATE)
    if not next_state:
        return {"score": 0.0, "acc": 0.0, "reason": "no_next_state"}
    if isinstance(next_state, str):
        next_state = [{"role": "user", "content": next_state}]
    if not args.prm_router_ip:
        raise ValueError(
            "scoring replies needs a judge engine; add --prm-enable --prm-num-gpus 1 --prm-model-path PATH"
        )
    config = runtime_config()
    engine = EngineHttp(
        f"http://{args.prm_router_ip}:{args.prm_router_port}", timeout=config.judge_seconds, concurrency=args.prm_m
    )
    judge = JudgeClient(
        engine,
        load_judge_tokenizer(args.prm_model_path or args.hf_checkpoint),
        config.judge_prompts,
        JudgeSampling(args.prm_temperature, max_new_tokens=args.prm_max_new_tokens, grammar=config.judge_grammar),
    )
    try:
        question = Question.about([], {"content": sample.response}, next_state)
        votes = await judge.votes("prm", question, args.prm_m)
    finally:
        await engine.close()
    if not has_quorum(votes, config.judge_quorum):
        return {"score": 0.0, "acc": 0.0, "reason": "no_quorum"}
    score = majority([vote.value for vote in votes], config.majority_vote_threshold)
    return {"score": float(score), "acc": float(score > 0), "reason": "judged"}
