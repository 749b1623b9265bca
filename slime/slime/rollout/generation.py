"""One sample from prompt to reward: the process's state, and the calls that plugins build on.

Guarantees: a sample's tokens, logprobs and weight versions are what the engines returned, even if it was aborted and
continued later. Text is tokenised at most once (the prompt). `GenerateState` is the process's state, created from the
first ``args`` it sees; plugins use its tokenizer. `slime.rollout.sglang_rollout` exports these names to plugins.

A function of ``--rollout-sample-hook-path`` is called with every answered sample before it is scored: ``fn(args, sample, *,
rollout_id=None, evaluation=False)``, sync or async. It gets only the keywords that it declares, changes the sample and
returns None, or returns a new one. Hooks run in command-line order.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from groundwork.exceptions import ConfigError
from groundwork.images import placeholder_ids
from groundwork.processors import load_processor, load_tokenizer
from slime.args import Arguments
from slime.exceptions import EngineError, PluginError
from slime.rollout.engine_access import router_url, routing_headers
from slime.rollout.episode_plugin import generate_function
from slime.rollout.multimodal_prompts import copy_sharing_media
from slime.rollout.multimodal_requests import (
    CUT,
    PreparedPrompts,
    before_placeholder,
    check_prompt_length,
    image_fields,
    images_of,
)
from slime.rollout.rm_hub import async_rm, batched_async_rm
from slime.rollout.stored_pictures import decode_pictures
from slime.rollout.train_data import request_fields
from slime.utils.async_utils import gather_or_cancel
from slime.utils.http_utils import post
from slime.utils.misc import SingletonMeta, load_function
from slime.utils.types import Sample, take_experts
from slime.weight_sync import BASE

Group = list[Any]
FINISHED = (Sample.Status.COMPLETED, Sample.Status.TRUNCATED)
# Retries without a new token after an engine ends a request that nothing aborted.
FRUITLESS_ATTEMPTS = 10
MAX_GROUP = 1_000_000


class GenerateState(metaclass=SingletonMeta):
    """Tokenizer, request limit and pending groups of this process; created from the first ``args``."""

    def __init__(self, args: Arguments) -> None:
        self.args = args
        self.tokenizer = load_tokenizer(args.hf_checkpoint)
        self.processor = load_processor(args.hf_checkpoint)
        self.prepared = PreparedPrompts(self.processor)
        self.placeholders = placeholder_ids(self.processor)
        engines = max(1, (args.rollout_num_gpus or 1) // args.rollout_num_gpus_per_engine)
        limit = args.sglang_server_concurrency * engines
        self.semaphore = asyncio.Semaphore(limit)
        # Also bounds an evaluation's prompts with decoded pictures.
        self.pictured_prompts = asyncio.Semaphore(limit)
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
        # Held while aborting all engine requests, and by an evaluation, which must not be aborted.
        self.engines_lock = asyncio.Lock()
        # Seeds of a group's members: deterministic engines use the same seed for every request without one.
        deterministic = args.sglang_enable_deterministic_inference
        seeds = range(args.rollout_seed, args.rollout_seed + MAX_GROUP) if deterministic else None
        self.group_sampling_seeds: Sequence[int] | None = seeds
        self.dp_counts = [0]
        self.dp_rank = 0
        self.rollout_id: int | None = None
        self.reset()

    @contextlib.contextmanager
    def dp_rank_context(self) -> Iterator[int]:
        """Yield the engine replica for a request; always the same one, because the router balances."""
        self.dp_counts[0] += 1
        try:
            yield 0
        finally:
            self.dp_counts[0] -= 1

    def reset(self) -> None:
        """Forget the groups of the last rollout."""
        self.remaining_batch_size = 0
        self.pendings: set[asyncio.Task[Group]] = set()
        self.prompts: dict[asyncio.Task[Group], Group] = {}
        self.aborted = False

    def submit_generate_tasks(self, groups: list[Group]) -> None:
        """Start generating groups; ``prompts`` keeps the originals, ``pendings`` the tasks."""
        for group in groups:
            before = copy_sharing_media(group, group)
            coroutine = generate_and_rm_group(self.args, group, dict(self.sampling_params), evaluation=False)
            task = asyncio.create_task(coroutine)
            self.pendings.add(task)
            self.prompts[task] = before
        self.remaining_batch_size += len(groups)


def token_budget(args: Arguments, sample: Sample, sampling_params: dict[str, Any], evaluation: bool) -> int:
    """Return how many tokens the response may still get, by its own limit and the context's."""
    budget = sampling_params["max_new_tokens"] - sample.response_length
    context = args.eval_max_context_len if evaluation else args.rollout_max_context_len
    return budget if context is None else min(budget, context - len(sample.tokens))


async def generate(
    args: Arguments, sample: Sample, sampling_params: dict[str, Any], evaluation: bool = False
) -> Sample:
    """Answer one prompt in one turn; continue an aborted sample where it stopped.

    Prompt and response stay within ``--rollout-max-context-len``, or in evaluation ``--eval-max-context-len``.
    With ``--mask-offpolicy-in-partial-rollout`` only the tokens of the newest weights carry loss.

    Raises:
        ConfigError: the prompt is not text.
        EngineError: the engine keeps ending a request that was not aborted.
    """
    state = GenerateState(args)
    fruitless = 0
    while True:
        before = sample.response_length
        payload = await request_of(state, sample, sampling_params, evaluation)
        if payload is None:
            sample.status = Sample.Status.TRUNCATED
            return sample
        answer = await post(f"{router_url(args)}/generate", payload, headers=routing_headers(sample))
        take_answer(args, sample, answer)
        if sample.status != Sample.Status.ABORTED or state.aborted:
            return sample
        fruitless = 0 if sample.response_length > before else fruitless + 1
        if fruitless == FRUITLESS_ATTEMPTS:
            reason = answer["meta_info"]["finish_reason"]
            raise EngineError(f"the engine ended sample {sample.index} early {fruitless} times in a row: {reason}")


async def request_of(
    state: GenerateState, sample: Sample, sampling_params: dict[str, Any], evaluation: bool = False
) -> dict[str, Any] | None:
    """Return the ``/generate`` request for the rest of a response, or None if it has its maximum length.

    Prompt and response stay within ``--rollout-max-context-len``, or in evaluation ``--eval-max-context-len``.

    Raises:
        ConfigError: the prompt is not text.
    """
    if not sample.tokens:
        if not isinstance(sample.prompt, str):
            raise ConfigError("the prompt is a list of messages; use --apply-chat-template to render it")
        if images_of(sample):
            await state.prepared.take(sample)
        else:
            sample.tokens = state.tokenizer.encode(sample.prompt, add_special_tokens=False)
    budget = token_budget(state.args, sample, sampling_params, evaluation)
    if budget <= 0:
        return None
    parameters = {**sampling_params, "max_new_tokens": budget}
    if state.placeholders:
        parameters["stop_token_ids"] = [*(sampling_params.get("stop_token_ids") or []), *sorted(state.placeholders)]
    request = {"input_ids": list(sample.tokens), "sampling_params": parameters, "return_logprob": True}
    if state.args.adapter_per_person:
        request["lora_path"] = BASE  # a data set's prompts are nobody's
    if not evaluation:
        request |= request_fields(state.args, sample)
    return request | await image_fields(state.processor, sample)


def take_answer(args: Arguments, sample: Sample, answer: dict[str, Any]) -> None:
    """Append an engine's ``/generate`` answer to ``sample``: tokens, logprobs, experts, text, weight versions, status.

    Raises:
        EngineError: the engine read the pictures differently, or its experts do not fit.
    """
    meta = answer["meta_info"]
    start, asked = sample.response_length, len(sample.tokens)
    check_prompt_length(sample, asked, meta)
    entries = meta.get("output_token_logprobs") or []
    cut = append_answer(args, sample, entries, answer["text"])
    take_experts(args, sample, meta, asked + len(entries))
    sample.update_from_meta_info(args, meta)
    if cut:
        sample.status = Sample.Status.TRUNCATED
    add_weight_spans(sample, start, meta)
    if args.mask_offpolicy_in_partial_rollout:
        mask_older_weights(sample)


def append_answer(args: Arguments, sample: Sample, entries: list[list[Any]], text: str) -> bool:
    """Append an engine's ``[logprob, token, …]`` entries; stop at a placeholder and return whether there was one."""
    state = GenerateState(args)
    token_ids = [entry[1] for entry in entries]
    kept = before_placeholder(token_ids, state.placeholders)
    cut = kept < len(entries)
    if cut:
        text = state.tokenizer.decode(token_ids[:kept], skip_special_tokens=args.rollout_skip_special_tokens)
        sample.metadata[CUT] = True
    log_probs = [float(entry[0]) for entry in entries[:kept]]
    sample.append_response_tokens(tokens=token_ids[:kept], log_probs=log_probs, text=text)
    return cut


def add_weight_spans(sample: Sample, start: int, meta: dict[str, Any]) -> None:
    """Record which weights sampled the response tokens from ``start`` on, by the engine's spans or version."""
    count = sample.response_length - start
    spans = meta.get("weight_versions") or [{"version": meta.get("weight_version"), "start": 0, "end": count}]
    for span in spans:
        first, end = start + span["start"], min(start + span["end"], sample.response_length)
        if span["version"] is None or first >= end:
            continue
        last = sample.weight_spans[-1] if sample.weight_spans else None
        version = str(span["version"])
        if last and last[0] == version and last[2] == first:
            last[2] = end
        else:
            sample.weight_spans.append([version, first, end])


def mask_older_weights(sample: Sample) -> None:
    """Zero the loss mask of response tokens that older weights than the sample's newest sampled."""
    if not sample.weight_spans or sample.loss_mask is None:
        return
    newest = sample.weight_spans[-1][0]
    for version, start, end in sample.weight_spans:
        if version != newest:
            sample.loss_mask[start:end] = [0] * (end - start)


def is_finished(sample: Sample) -> bool:
    """Return whether a sample from a buffer has its whole response."""
    return sample.status in FINISHED and sample.response_length > 0


def load_generate_function(path: str) -> Callable[..., Any]:
    """Return the generate function at a plugin path; one that plays an episode is adapted to the contract.

    Raises:
        PluginError: there is none, or its signature is of neither form.
    """
    return generate_function(path, generate)


async def generate_and_rm(
    args: Arguments, sample: Sample | list[Sample], sampling_params: dict[str, Any], evaluation: bool = False
) -> Sample | list[Sample]:
    """Answer and score one sample; see the contract of the generate function for what plugins may return.

    A finished sample, or a finished list that a plugin made of one, is returned unchanged.
    """
    if isinstance(sample, list) or is_finished(sample):
        for member in sample if isinstance(sample, list) else [sample]:
            if member.reward is None and not args.group_rm:
                raise ValueError(f"sample {member.index} is finished but has no reward")
        return sample
    state = GenerateState(args)
    async with state.semaphore:
        if state.aborted:
            sample.status = Sample.Status.ABORTED
            return sample
        path = sample.generate_function_path or args.custom_generate_function_path
        function = load_generate_function(path) if path else generate
        extra = {"evaluation": evaluation} if "evaluation" in inspect.signature(function).parameters else {}
        with state.dp_rank_context():
            result = await function(args, sample, sampling_params, **extra)
    result = await apply_sample_hooks(args, result, rollout_id=state.rollout_id, evaluation=evaluation)
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
    args: Arguments, group: Group, sampling_params: dict[str, Any], evaluation: bool = False
) -> Group:
    """Answer and score a prompt's samples together; with deterministic engines each gets its own ``sampling_seed``.

    If one raises, the others' requests are cancelled before the exception propagates. With ``--group-rm`` a member that a generate
    function turned into a list is one member: its reward is that of all its samples, or a list with one for each. An evaluation, whose
    answers are not compared, keeps the rewards that a generate function gave.
    """
    state = GenerateState(args)
    if state.aborted:
        return group
    await decode_pictures(args, group)
    parameters = [dict(sampling_params) for _ in group]
    if state.group_sampling_seeds is not None:
        for own, seed in zip(parameters, state.group_sampling_seeds, strict=False):
            own["sampling_seed"] = seed
    answered = await gather_or_cancel(
        generate_and_rm(args, one, own, evaluation) for one, own in zip(group, parameters, strict=True)
    )
    if args.group_rm and not state.aborted and not (evaluation and _are_rewarded(answered)):
        for member, reward in zip(answered, await batched_async_rm(args, answered), strict=True):
            samples = member if isinstance(member, list) else [member]
            rewards = reward if isinstance(reward, list) else [reward] * len(samples)
            for sample, own in zip(samples, rewards, strict=True):
                sample.reward = own
    return answered


def _are_rewarded(group: Group) -> bool:
    samples = [sample for member in group for sample in (member if isinstance(member, list) else [member])]
    return all(sample.reward is not None for sample in samples)


async def apply_sample_hooks(
    args: Arguments, result: Sample | list[Sample], *, rollout_id: int | None, evaluation: bool
) -> Sample | list[Sample]:
    """Run the hooks on a sample or on each of a list; skip an aborted sample until it is complete."""
    paths = args.rollout_sample_hook_path
    if not paths:
        return result
    if isinstance(result, list):
        return [await _apply(args, member, paths, rollout_id, evaluation) for member in result]
    return await _apply(args, result, paths, rollout_id, evaluation)


async def _apply(args: Arguments, sample: Sample, paths: list[str], rollout_id: int | None, evaluation: bool) -> Sample:
    if sample.status == Sample.Status.ABORTED:
        return sample
    known = {"rollout_id": rollout_id, "evaluation": evaluation}
    for path in paths:
        hook = load_function(path)
        changed = hook(args, sample, **{name: known[name] for name in _declared(hook) if name in known})
        if inspect.isawaitable(changed):
            changed = await changed
        if changed is not None and not isinstance(changed, Sample):
            raise PluginError(
                f"--rollout-sample-hook-path {path} returned {type(changed).__name__}, not a Sample or None"
            )
        sample = sample if changed is None else changed
    return sample


@functools.cache
def _declared(hook: Callable[..., Any]) -> tuple[str, ...]:
    parameters = inspect.signature(hook).parameters
    if any(parameter.kind == inspect.Parameter.VAR_KEYWORD for parameter in parameters.values()):
        return ("rollout_id", "evaluation")
    return tuple(parameters)
