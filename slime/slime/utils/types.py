"""`Sample`, the one type from prompt to loss, and its small companions.

Guarantees: `append_response_tokens` keeps every per-token list as long as the response, and `validate` names a list
that is not. Plugins may set attributes that are not fields; they survive `to_dict` and `from_dict`.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any

from slime.args import Arguments
from slime.exceptions import EngineError, SampleError
from slime.utils import streams
from slime.utils.model_config import number_of_experts, read_config, text_config

RolloutBatch = dict[str, list[Any]]

IMAGES, PIXELS, GRID = "multimodal_train_inputs", "pixel_values", "image_grid_thw"
"""Field of a sample's images in training data, and its keys: all patches, and frames, rows and columns per image."""
EXPERTS = "rollout_routed_experts"
"""Field of the experts that an engine chose, ``[rows, layers, K]``."""
OWN_CHOICE = -1
"""Marks a token without experts to replay, for which the router chooses."""


@dataclass(frozen=True)
class ParamInfo:
    """One model parameter to send to an engine."""

    name: str
    dtype: Any
    shape: Any
    attrs: dict
    size: int
    src_rank: int


@dataclass(frozen=True)
class MultimodalType:
    """A kind of media and its placeholder in a prompt."""

    name: str
    placeholder: str


class MultimodalTypes:
    """The kinds of media a prompt can hold."""

    IMAGE = MultimodalType("image", "<image>")
    VIDEO = MultimodalType("video", "<video>")
    AUDIO = MultimodalType("audio", "<audio>")

    @classmethod
    def all(cls) -> list[MultimodalType]:
        """Return every kind."""
        return [cls.IMAGE, cls.VIDEO, cls.AUDIO]

    @classmethod
    def get(cls, name: str) -> MultimodalType | None:
        """Return the kind called ``name``, or None."""
        return next((kind for kind in cls.all() if kind.name == name), None)


@dataclass
class SpecInfo:
    """Counters of speculative decoding, summed over a sample's engine calls."""

    spec_accept_token_num: int = 0
    spec_draft_token_num: int = 0
    spec_verify_ct: int = 0
    completion_token_num: int = 0

    @property
    def spec_accept_rate(self) -> float:
        """Accepted share of drafted tokens; 0 without drafts."""
        return self.spec_accept_token_num / self.spec_draft_token_num if self.spec_draft_token_num else 0.0

    @property
    def spec_accept_length(self) -> float:
        """Completion tokens per verification; 0 without one."""
        return self.completion_token_num / self.spec_verify_ct if self.spec_verify_ct else 0.0

    def add(self, meta_info: dict) -> None:
        """Add the counters of one engine answer."""
        for name in ("spec_accept_token_num", "spec_draft_token_num", "spec_verify_ct"):
            setattr(self, name, getattr(self, name) + meta_info.get(name, 0))
        self.completion_token_num += meta_info.get("completion_tokens", 0)

    def to_dict(self) -> dict:
        """Return the counters."""
        return dict(vars(self))

    @classmethod
    def from_dict(cls, data: dict) -> SpecInfo:
        """Build from the result of `to_dict`."""
        return cls(**data)


@dataclass
class PrefixCacheInfo:
    """Cached prompt tokens, summed over a sample's engine calls."""

    cached_tokens: int = 0
    total_prompt_tokens: int = 0

    @property
    def prefix_cache_hit_rate(self) -> float:
        """Cached share of prompt tokens; 0 without prompts."""
        return self.cached_tokens / self.total_prompt_tokens if self.total_prompt_tokens else 0.0

    def add(self, meta_info: dict) -> None:
        """Add the counters of one engine answer."""
        self.cached_tokens += meta_info.get("cached_tokens", 0)
        self.total_prompt_tokens += meta_info.get("prompt_tokens", 0)

    def to_dict(self) -> dict:
        """Return the counters."""
        return dict(vars(self))

    @classmethod
    def from_dict(cls, data: dict) -> PrefixCacheInfo:
        """Build from the result of `to_dict`."""
        return cls(**data)


class SampleStatus(Enum):
    """State of a sample."""

    PENDING = "pending"
    COMPLETED = "completed"
    TRUNCATED = "truncated"
    ABORTED = "aborted"
    FAILED = "failed"


@dataclass
class Sample(streams.SampleStreams):
    """A prompt, its response, and everything that training needs to know about them.

    ``tokens`` holds prompt and response ids; the last ``response_length`` of them are the response (tool results inside
    it have mask 0). Per-token lists (see `slime.utils.streams.SampleStreams`) have length ``response_length``.
    ``weight_spans`` records which weights sampled which tokens: ``[version, start, end]``, half open, within the
    response.

    Example:
        >>> sample = Sample(prompt="2 + 2?", tokens=[5, 6, 7])
        >>> sample.append_response_tokens(tokens=[8, 9], log_probs=[-0.1, -0.2], text="add(2, 2)")
        >>> sample.append_response_tokens(tokens=[3], trainable=False, text="4")  # a tool's output
        >>> sample.tokens, sample.response_length, sample.loss_mask
        ([5, 6, 7, 8, 9, 3], 3, [1, 1, 0])
        >>> sample.rollout_log_probs, sample.effective_response_length
        ([-0.1, -0.2, 0.0], 2)
    """

    Status = SampleStatus
    SpecInfo = SpecInfo
    PrefixCacheInfo = PrefixCacheInfo

    group_index: int | None = None
    index: int | None = None
    prompt: Any = ""
    tokens: list[int] = field(default_factory=list)
    multimodal_inputs: dict | None = None
    multimodal_train_inputs: dict | None = None
    multimodal_train_input_id: str | None = None
    response: str = ""
    response_length: int = 0
    label: str | None = None
    reward: Any = None
    weight_versions: list[str] = field(default_factory=list)
    weight_spans: list[list[Any]] = field(default_factory=list)
    rollout_routed_experts: Any = None
    rollout_top_p_token_ids: Any = None
    rollout_top_p_token_offsets: Any = None
    remove_sample: bool = False
    status: SampleStatus = SampleStatus.PENDING
    metadata: dict[str, Any] = field(default_factory=dict)
    generate_function_path: str | None = None
    custom_rm_path: str | None = None
    apply_chat_template_kwargs: dict | None = None
    non_generation_time: float = 0.0
    rollout_id: int | None = None
    session_id: str | None = None
    spec_info: SpecInfo = field(default_factory=SpecInfo)
    prefix_cache_info: PrefixCacheInfo = field(default_factory=PrefixCacheInfo)

    def to_dict(self) -> dict[str, Any]:
        """Return all attributes, including those that are not fields; status and counters as plain data."""
        data = dict(vars(self))
        data["status"] = self.status.value
        data["spec_info"] = self.spec_info.to_dict()
        data["prefix_cache_info"] = self.prefix_cache_info.to_dict()
        return data

    @staticmethod
    def from_dict(data: dict[str, Any]) -> Sample:
        """Build a sample from the result of `to_dict`; unknown keys become attributes."""
        data = dict(data)
        status = data.pop("status", SampleStatus.PENDING)
        spec_info = data.pop("spec_info", {})
        prefix_cache_info = data.pop("prefix_cache_info", {})
        names = {item.name for item in fields(Sample)}
        sample = Sample(**{key: value for key, value in data.items() if key in names})
        sample.status = SampleStatus(status)
        sample.spec_info = spec_info if isinstance(spec_info, SpecInfo) else SpecInfo.from_dict(spec_info)
        sample.prefix_cache_info = (
            prefix_cache_info
            if isinstance(prefix_cache_info, PrefixCacheInfo)
            else PrefixCacheInfo.from_dict(prefix_cache_info)
        )
        for key, value in data.items():
            if key not in names:
                setattr(sample, key, value)
        return sample

    def get_reward_value(self, args: Arguments) -> float:
        """Return the reward, or its entry ``args.reward_key`` if the reward is a dict.

        Raises:
            SampleError: the reward is a dict and ``args.reward_key`` does not name one of its entries.
        """
        if not isinstance(self.reward, dict):
            return self.reward
        key = args.reward_key
        if key not in self.reward:
            known = ", ".join(map(str, self.reward))
            raise SampleError(f"the reward is a dict with {known}; name the entry to train on with --reward-key")
        return self.reward[key]

    @property
    def effective_response_length(self) -> int:
        """Number of response tokens that carry loss."""
        return sum(self.loss_mask) if self.loss_mask is not None else self.response_length

    def append_response_tokens(
        self,
        args: Arguments | None = None,
        *,
        tokens: Sequence[int] | None = None,
        log_probs: Sequence[float] | None = None,
        trainable: bool = True,
        meta_info: dict | None = None,
        text: str | None = None,
        update_terminal_info: bool = True,
    ) -> None:
        """Append response tokens and keep every per-token list as long as the response.

        A refused call changes nothing.

        Args:
            args: arguments of the run; needed for routed experts in ``meta_info`` and to count speculative drafts.
            tokens: [N] ids to append; None appends none.
            log_probs: [N] logprobs with which the policy sampled them; None if not ``trainable``.
            trainable: whether the loss reads the tokens (mask 1), or not, such as a tool's output (mask 0, logprob
                0.0).
            meta_info: metadata of the engine's answer with the tokens; see `update_from_meta_info`.
            text: text of the tokens.
            update_terminal_info: take the status from the finish reason in ``meta_info``.

        Raises:
            SampleError: (a ValueError) when the lengths differ, trainable tokens come without logprobs or others with them,
                earlier response tokens have no logprobs, or no prompt token comes before the response.
        """
        new = list(tokens) if tokens is not None else []
        sampled = list(log_probs) if log_probs is not None else [] if trainable else [0.0] * len(new)
        self._check_append(new, log_probs, sampled, trainable, meta_info, args)
        state = dict(vars(self))
        before, unlogged = self.response_length, self.rollout_log_probs is None and self.response_length > 0
        self.tokens = [*self.tokens, *new]
        self.response_length = before + len(new)
        self.response += text or ""
        self.loss_mask = [
            *(self.loss_mask if self.loss_mask is not None else [1] * before),
            *[int(trainable)] * len(new),
        ]
        if not unlogged:
            self.rollout_log_probs = [*(self.rollout_log_probs or []), *sampled]
        if meta_info is None:
            return
        try:
            self._take_experts(args, meta_info)
        except SampleError:
            vars(self).update(state)
            raise
        self.update_from_meta_info(args, meta_info, terminal=update_terminal_info)

    def _check_append(
        self,
        tokens: list[int],
        log_probs: Sequence[float] | None,
        sampled: list[float],
        trainable: bool,
        meta_info: dict | None,
        args: Arguments | None,
    ) -> None:
        """Raise SampleError if `append_response_tokens` cannot keep its guarantees."""
        self.validate()
        count = len(tokens)
        if not trainable and log_probs is not None:
            raise SampleError(
                "tokens that are not trainable must not have log_probs; leave them out, or pass trainable=True"
            )
        if len(sampled) != count:
            given = "no" if log_probs is None else str(len(sampled))
            raise SampleError(f"{count} trainable tokens came with {given} log_probs; pass one for each token")
        if not all(math.isfinite(value) for value in sampled):
            raise SampleError("log_probs has a value that is not finite")
        if trainable and count and self.rollout_log_probs is None and self.response_length:
            raise SampleError(
                f"the {self.response_length} response tokens so far have no rollout_log_probs; set them before appending tokens with "
                "log_probs"
            )
        if count and not self.tokens:
            raise SampleError(f"all {count} tokens are response; add a prompt token before them")
        for name, stream in streams.carried():
            if count and stream.per_token and not stream.grows and getattr(self, name, None) is not None:
                raise SampleError(
                    f"{name} is already set for {self.response_length} response tokens; append before setting it"
                )
        if meta_info is not None and meta_info.get("routed_experts") is not None and args is None:
            raise SampleError("meta_info has routed_experts; pass args, which describe the model's experts")

    def _take_experts(self, args: Arguments | None, meta_info: dict) -> None:
        """Decode the routed experts of an engine's answer; raise SampleError if they do not fit."""
        if args is None or meta_info.get("routed_experts") is None:
            return  # `_check_append` refuses experts without args
        try:
            take_experts(args, self, meta_info, len(self.tokens))
        except (EngineError, ValueError) as error:  # experts that the model does not have, or invalid base64
            raise SampleError(f"meta_info['routed_experts']: {error}") from error

    def validate(self) -> None:
        """Check the lengths of per-token lists, and that a prompt token precedes the response.

        Raises:
            SampleError: a list does not fit; the message names it and both lengths.
        """
        if not 0 <= self.response_length <= len(self.tokens):
            raise SampleError(f"response_length {self.response_length} does not fit {len(self.tokens)} tokens")
        if self.response_length and self.response_length == len(self.tokens):
            raise SampleError(f"all {len(self.tokens)} tokens are response; add a prompt token before them")
        for name, stream in streams.carried():
            values = getattr(self, name, None) if stream.per_token else None
            if values is not None and len(values) != self.response_length:
                raise SampleError(f"{name} has {len(values)} entries for {self.response_length} response tokens")
        for name, stream in streams.carried():
            values = getattr(self, name, None) if stream.finite else None
            if values is not None and not all(math.isfinite(value) for value in values):
                raise SampleError(f"{name} has a value that is not finite")

    def update_from_meta_info(self, args: Arguments | None, meta_info: dict, *, terminal: bool = True) -> None:
        """Copy counters, weight versions (per span, if the weights changed meanwhile) and status from ``meta_info``.

        Without ``terminal`` the status stays, because more tokens will follow.
        """
        if args is not None and args.sglang_speculative_algorithm:
            self.spec_info.add(meta_info)
        self.prefix_cache_info.add(meta_info)
        if meta_info.get("weight_versions"):
            self.weight_versions += [str(span["version"]) for span in meta_info["weight_versions"]]
        elif "weight_version" in meta_info:
            self.weight_versions.append(str(meta_info["weight_version"]))
        kinds = {"length": SampleStatus.TRUNCATED, "abort": SampleStatus.ABORTED, "stop": SampleStatus.COMPLETED}
        finish = (meta_info.get("finish_reason") or {}).get("type")
        if terminal and finish in kinds:
            self.status = kinds[finish]


_SENT = "<i4"


@dataclass(frozen=True)
class ExpertShape:
    """Layers of a model, experts per token, and experts to choose from."""

    layers: int
    per_token: int
    experts: int


@cache
def expert_shape(checkpoint: str) -> ExpertShape:
    """Return the shape of the Hugging Face folder ``checkpoint``, a mixture of experts."""
    config = text_config(read_config(Path(checkpoint)))
    return ExpertShape(config["num_hidden_layers"], config["num_experts_per_tok"], number_of_experts(config) or 0)


def take_experts(args: Arguments, sample: Sample, meta: Mapping[str, Any], seen: int) -> None:
    """Append the rows of an engine's answer to those of ``sample``.

    A row is exactly what the engine reported, checked against the model's experts, or an error; none is recomputed.

    Args:
        args: arguments of the run.
        sample: the sample, already with the answer's tokens.
        meta: metadata of the answer; an answer aborted before it ran has no experts, and the next one brings its rows.
        seen: prompt and answer tokens that the engine counted; ``sample`` may have fewer.

    Raises:
        EngineError: the rows do not match tokens and model.
    """
    encoded = meta.get("routed_experts")
    if not args.use_rollout_routing_replay or encoded is None:
        return
    import numpy as np  # only here: every command line imports this module

    shape, held = expert_shape(args.hf_checkpoint), sample.rollout_routed_experts
    rows = max(0, seen - 1 - (0 if held is None else len(held)))
    sent = np.frombuffer(base64.b64decode(encoded), dtype=_SENT)
    if sent.size != rows * shape.layers * shape.per_token:
        raise EngineError(
            f"sample {sample.index}: the engine sent {sent.size} experts for {rows} tokens in {shape.layers} layers with "
            f"{shape.per_token} each"
        )
    if sent.size and not 0 <= sent.min() <= sent.max() < shape.experts:
        raise EngineError(f"sample {sample.index}: the engine sent an expert id outside the model's {shape.experts}")
    new = sent.reshape(rows, shape.layers, shape.per_token).astype(np.int16)
    new = new if held is None else np.concatenate([held, new])
    sample.rollout_routed_experts = new[: len(sample.tokens) - 1]
