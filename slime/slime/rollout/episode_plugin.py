"""Generate functions that play an episode as guides write them: ``async def play(agent_model, task_description)``.

The function asks ``await agent_model.generate(prompt)`` for a reply as often as it likes, and returns a list with a dict per
reply, whose ``reward`` is a number. A ``vision_model`` also takes ``image``, a picture in any form that Pillow reads.
``max_new_tokens`` shortens one reply. The task is the row's prompt, as it stands in the file.

Guarantees: each reply is a sample with the ids and log probabilities that the engine returned, in the order of the calls; no
text is tokenized again. The samples of an episode share its place in the group, so they count as one rollout. A prompt is
rendered as a user message with the model's chat template, if there is one. The function runs in a thread with an event loop
of its own, so it may block. An engine's abort ends the episode, and its sample is played again from the start.
"""

from __future__ import annotations

import asyncio
import copy
import functools
import inspect
import math
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from groundwork.exceptions import ConfigError
from groundwork.processors import load_tokenizer
from slime.args import Arguments
from slime.arguments.plugin_forms import FormError, episode_values
from slime.exceptions import PluginError
from slime.rollout.multimodal_prompts import StoredPicture, image_processor_of, rendered_prompt
from slime.rollout.stored_pictures import decode_pictures
from slime.utils.misc import load_function
from slime.utils.types import Sample

Generate = Callable[..., Awaitable[Sample]]
REWARD = "reward"
_tokenizer = functools.lru_cache(maxsize=1)(load_tokenizer)


class EpisodeAbortedError(PluginError):
    """The engines aborted the reply, so the episode cannot go on; it is played again."""


def generate_function(path: str, generate: Generate) -> Callable[..., Any]:
    """Return the plugin at ``path`` as a generate function of the contract, which calls ``generate`` for each reply.

    Raises:
        PluginError: the path names nothing, or a function of neither form.
    """
    function = load_function(path)
    names = episode_values(inspect.signature(function)) if callable(function) else None
    if names is None:
        return function
    if not inspect.iscoroutinefunction(function):
        raise FormError(
            "generate-2", f"{path} is declared with def; write async def, and await {names[0]}.generate(prompt)"
        )
    return functools.partial(_play, path, function, names, generate)


class EpisodeModel:
    """What an episode asks for replies; it keeps each reply as a sample.

    Attributes:
        aborted: whether the engines aborted one.
    """

    def __init__(
        self, args: Arguments, task: Sample, answer: Callable[[Sample, dict[str, Any]], Awaitable[Sample]]
    ) -> None:
        self._replies: dict[int, Sample] = {}
        self.aborted = False
        self._args, self._task, self._answer = args, task, answer
        self._loop = asyncio.get_running_loop()
        self._over = False
        self._calls = 0

    @property
    def replies(self) -> list[Sample]:
        """The samples of the replies so far, in the order of the calls."""
        return [self._replies[call] for call in sorted(self._replies)]

    async def generate(self, prompt: str, image: Any = None, max_new_tokens: int | None = None) -> str:
        """Return the policy's reply to a prompt, without control tokens."""
        limits = {} if max_new_tokens is None else {"max_new_tokens": max_new_tokens}
        reply = asyncio.run_coroutine_threadsafe(self._reply(prompt, image, limits), self._loop)
        return await asyncio.wrap_future(reply)

    def close(self) -> None:
        """Refuse further calls: nobody waits for the episode any more."""
        self._over = True

    async def _reply(self, prompt: str, image: Any, limits: dict[str, Any]) -> str:
        if self._over or self.aborted:
            raise EpisodeAbortedError("the episode has ended; no reply is generated")
        sample = self._sample(prompt, image)
        call, self._calls = self._calls, self._calls + 1
        await decode_pictures(self._args, [sample])
        self._replies[call] = reply = await self._answer(sample, limits)
        if reply.status == Sample.Status.ABORTED:
            self.aborted = True
            raise EpisodeAbortedError("the engines aborted the reply")
        return reply.response

    def _sample(self, prompt: str, image: Any) -> Sample:
        """Return a reply's sample before it is generated: the task's, with the prompt in place of the task."""
        tokenizer = _tokenizer(self._args.hf_checkpoint)
        renderer = tokenizer if image is None else image_processor_of(self._args.hf_checkpoint)
        parts = prompt if image is None else [{"type": "image", "image": image}, {"type": "text", "text": prompt}]
        if tokenizer.chat_template or image is not None:
            args = self._args.changed(multimodal_keys={"image": "image"}) if image is not None else self._args
            prompt = rendered_prompt(args, renderer, [{"role": "user", "content": parts}], None)
        sample = copy.deepcopy(self._task)
        sample.prompt = prompt
        sample.multimodal_inputs = None if image is None else {"images": [StoredPicture(image)], "videos": None}
        return sample


@functools.cache
def _threads(count: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(count, thread_name_prefix="episode")


async def _play(
    path: str,
    function: Callable[..., Any],
    names: tuple[str, str],
    generate: Generate,
    args: Arguments,
    sample: Sample,
    sampling_params: dict[str, Any],
    evaluation: bool = False,
) -> list[Sample]:
    """Play the episode of ``sample`` and return a scored sample per reply; one aborted sample after an abort."""
    if args.apply_chat_template or not isinstance(sample.prompt, str):
        raise ConfigError(
            f"{path} gets the task as text; remove --apply-chat-template, and give --prompt-data with texts as prompts: its own "
            "prompts are rendered with the chat template"
        )

    def answer(reply: Sample, limits: dict[str, Any]) -> Awaitable[Sample]:
        return generate(args, reply, {**sampling_params, **limits, "skip_special_tokens": True}, evaluation)

    model = EpisodeModel(args, sample, answer)

    def play() -> Any:
        return asyncio.run(function(**{names[0]: model, names[1]: sample.prompt}))

    threads = _threads(args.sglang_server_concurrency)
    try:
        steps = await asyncio.get_running_loop().run_in_executor(threads, play)
    except EpisodeAbortedError:
        steps = []
    finally:
        model.close()
    if model.aborted:
        sample.status = Sample.Status.ABORTED
        return [sample]
    for reply, reward in zip(model.replies, _rewards(path, steps, len(model.replies)), strict=True):
        reply.reward = reward
    return model.replies


def _rewards(path: str, steps: Any, replies: int) -> list[float]:
    """Return the reward of each reply.

    Raises:
        FormError: the episode does not have one step per reply, or a step has no reward.
    """
    if not isinstance(steps, list) or not all(isinstance(step, dict) for step in steps):
        raise FormError(
            "generate-4", f"{path} must return a list with a dict per reply; it returned a {type(steps).__name__}"
        )
    if len(steps) != replies or not replies:
        raise FormError("generate-4", f"{path} returned {len(steps)} steps for {replies} replies; return one for each")
    for number, step in enumerate(steps, 1):
        reward = step.get(REWARD)
        if not isinstance(reward, int | float) or not math.isfinite(reward):
            raise FormError("generate-4", f"{path}: step {number} has the reward {reward!r}; give it a number")
    return [float(step[REWARD]) for step in steps]
