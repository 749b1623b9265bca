"""The default rollout function: prompts of a data source, answered by the engines, scored by a reward function.

Guarantees: a sample's tokens and logprobs are what the engine returned, text is tokenised once at most (the prompt);
collection stops with exactly ``rollout_batch_size`` groups that the filter kept, and no request of the surplus is left
running. :class:`GenerateState` is the state of the process, made from the first ``args`` it sees; plugins use its tokenizer.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from slime.exceptions import ConfigurationError
from slime.rollout.base_types import RolloutFnEvalOutput, RolloutFnTrainOutput
from slime.rollout.evaluation import eval_rollout, eval_rollout_single_dataset
from slime.rollout.rm_hub import async_rm, batched_async_rm
from slime.utils.async_utils import run
from slime.utils.http_utils import get, post
from slime.utils.misc import SingletonMeta, load_function
from slime.utils.processing_utils import load_processor, load_tokenizer
from slime.utils.types import Sample

__all__ = [
    "GenerateState",
    "eval_rollout",
    "eval_rollout_single_dataset",
    "generate",
    "generate_and_rm",
    "generate_rollout",
]

logger = logging.getLogger(__name__)

Group = list[Any]
_FINISHED = (Sample.Status.COMPLETED, Sample.Status.TRUNCATED)


class GenerateState(metaclass=SingletonMeta):
    """Tokenizer, request limit and pending groups of this process; the first ``args`` wins."""

    def __init__(self, args: Namespace) -> None:
        self.args = args
        self.tokenizer = load_tokenizer(args.hf_checkpoint, trust_remote_code=True)
        self.processor = load_processor(args.hf_checkpoint, trust_remote_code=True)
        engines = max(1, (args.rollout_num_gpus or 1) // args.rollout_num_gpus_per_engine)
        self.semaphore = asyncio.Semaphore(args.sglang_server_concurrency * engines)
        self.sampling_params: dict[str, Any] = {
            "temperature": args.rollout_temperature,
            "top_p": args.rollout_top_p,
            "top_k": args.rollout_top_k,
            "max_new_tokens": args.rollout_max_response_len,
            "stop": args.rollout_stop,
            "stop_token_ids": args.rollout_stop_token_ids,
            "skip_special_tokens": args.rollout_skip_special_tokens,
            "no_stop_trim": True,
            "spaces_between_special_tokens": False,
        }
        self.dp_counts = [0]
        self.dp_rank = 0
        self.reset()

    @contextlib.contextmanager
    def dp_rank_context(self) -> Iterator[int]:
        """The engine replica a request should go to; the router balances, so there is one."""
        self.dp_counts[0] += 1
        try:
            yield 0
        finally:
            self.dp_counts[0] -= 1

    def reset(self) -> None:
        """Forget the groups of the last rollout."""
        self.remaining_batch_size = 0
        self.pendings: set[asyncio.Task[Group]] = set()
        self.aborted = False

    def submit_generate_tasks(self, groups: list[Group]) -> None:
        """Start generating groups."""
        for group in groups:
            task = generate_and_rm_group(self.args, group, dict(self.sampling_params), evaluation=False)
            self.pendings.add(asyncio.create_task(task))
        self.remaining_batch_size += len(groups)


def router_url(args: Namespace) -> str:
    """Base address of the policy engines."""
    return f"http://{args.sglang_router_ip}:{args.sglang_router_port}"


async def generate(args: Namespace, sample: Sample, sampling_params: dict[str, Any]) -> Sample:
    """Answer one prompt in one turn; a sample that was aborted goes on where it stopped."""
    state = GenerateState(args)
    if not sample.tokens:
        if not isinstance(sample.prompt, str):
            raise ConfigurationError("the prompt is a list of messages; use --apply-chat-template to render it")
        sample.tokens = state.tokenizer.encode(sample.prompt, add_special_tokens=False)
    budget = sampling_params["max_new_tokens"] - sample.response_length
    if budget <= 0:
        sample.status = Sample.Status.TRUNCATED
        return sample
    payload = {
        "input_ids": list(sample.tokens),
        "sampling_params": {**sampling_params, "max_new_tokens": budget},
        "return_logprob": True,
    }
    answer = await post(f"{router_url(args)}/generate", payload)
    entries = answer["meta_info"]["output_token_logprobs"]
    sample.append_response_tokens(
        [entry[1] for entry in entries], [float(entry[0]) for entry in entries], text=answer["text"]
    )
    sample.update_from_meta_info(args, answer["meta_info"])
    return sample


async def generate_and_rm(
    args: Namespace, sample: Sample, sampling_params: dict[str, Any], evaluation: bool = False
) -> Sample | list[Sample]:
    """Answer and score one sample; see the contract of the generate function for what plugins may return."""
    if sample.status in _FINISHED and sample.response_length:
        if sample.reward is None and not args.group_rm:
            raise ValueError(f"sample {sample.index} came back finished without a reward")
        return sample
    state = GenerateState(args)
    async with state.semaphore:
        if state.aborted:
            sample.status = Sample.Status.ABORTED
            return sample
        path = sample.generate_function_path or args.custom_generate_function_path
        function = load_function(path) if path else generate
        extra = {"evaluation": evaluation} if "evaluation" in inspect.signature(function).parameters else {}
        with state.dp_rank_context():
            result = await function(args, sample, sampling_params, **extra)
    if args.group_rm:
        return result
    if isinstance(result, list):
        if any(member.status == Sample.Status.ABORTED for member in result):
            return result
        unscored = [member for member in result if member.reward is None]
        for member, reward in zip(unscored, await batched_async_rm(args, unscored), strict=True):
            member.reward = reward
        return result
    if result.status != Sample.Status.ABORTED and result.reward is None:
        result.reward = await async_rm(args, result)
    return result


async def generate_and_rm_group(
    args: Namespace, group: Group, sampling_params: dict[str, Any], evaluation: bool = False
) -> Group:
    """Answer and score the samples of one prompt together."""
    state = GenerateState(args)
    if state.aborted:
        return group
    answered: list[Any] = await asyncio.gather(
        *(generate_and_rm(args, one, dict(sampling_params), evaluation) for one in group)
    )
    if args.group_rm and not state.aborted:
        for member, reward in zip(answered, await batched_async_rm(args, answered), strict=True):
            member.reward = reward
    return answered


async def abort(args: Namespace, rollout_id: int) -> list[Group]:
    """Stop the surplus requests and return the groups they leave; they are counted and not used."""
    state = GenerateState(args)
    state.aborted = True
    for url in await _worker_urls(args):
        await post(f"{url}/abort_request", {"abort_all": True})
    groups = [await task for task in asyncio.as_completed(state.pendings)] if state.pendings else []
    state.pendings = set()
    return groups


async def _worker_urls(args: Namespace) -> list[str]:
    """Addresses of the engines: the router knows them, and an engine addressed directly is its own."""
    if getattr(args, "router", "auto") == "direct" or args.rollout_num_gpus == args.rollout_num_gpus_per_engine:
        return [router_url(args)]
    workers = await get(f"{router_url(args)}/workers")
    return [worker["url"] for worker in workers["workers"]]


async def generate_rollout_async(
    args: Namespace, rollout_id: int, get_samples: Callable[[int], list[Group]]
) -> tuple[RolloutFnTrainOutput, list[Group]]:
    """Collect ``rollout_batch_size`` groups that the filter keeps; return them and what was aborted."""
    state = GenerateState(args)
    state.reset()
    keep_group = load_function(args.dynamic_sampling_filter_path) if args.dynamic_sampling_filter_path else None
    wanted = args.rollout_batch_size
    kept: list[Group] = []
    dropped: Counter[str] = Counter()
    while len(kept) < wanted:
        while state.remaining_batch_size < wanted:
            state.submit_generate_tasks(get_samples(args.over_sampling_batch_size or wanted))
        done, state.pendings = await asyncio.wait(state.pendings, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            group = task.result()
            verdict = keep_group(args, group) if keep_group else True
            if not getattr(verdict, "keep", verdict):
                dropped[getattr(verdict, "reason", None) or "filter"] += 1
                state.remaining_batch_size -= 1
            elif len(kept) < wanted:
                kept.append(group)
    aborted = await abort(args, rollout_id) if state.pendings else []
    kept.sort(key=_first_index)
    if args.rollout_sample_filter_path:
        load_function(args.rollout_sample_filter_path)(args, kept)
    metrics: dict[str, Any] = {f"rollout/dynamic_filter/drop_{reason}": count for reason, count in dropped.items()}
    metrics["rollout/aborted_groups"] = len(aborted)
    state.reset()
    return RolloutFnTrainOutput(samples=kept, metrics=metrics), aborted


def _first_index(group: Group) -> int:
    first = group[0][0] if isinstance(group[0], list) else group[0]
    return first.index or 0


def generate_rollout(
    args: Namespace, rollout_id: int, data_source: Any, evaluation: bool = False
) -> RolloutFnTrainOutput | RolloutFnEvalOutput:
    """``--rollout-function-path slime.rollout.sglang_rollout.generate_rollout``."""
    if not args.rollout_global_dataset:
        raise ConfigurationError(
            "the default rollout needs prompts: give --prompt-data and drop --disable-rollout-global-dataset"
        )
    if evaluation:
        return run(eval_rollout(args, rollout_id))[0]
    return run(generate_rollout_async(args, rollout_id, data_source.get_samples))[0]
