"""`Sample`, the one type from prompt to loss, and its small companions.

Guarantees: `append_response_tokens` keeps every per-token list as long as the response, and `validate` names the list that is
not. A sample accepts attributes that are not fields (plugins set them); they survive `to_dict` and `from_dict`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import Any

from slime.args import Arguments
from slime.exceptions import SampleError

RolloutBatch = dict[str, list[Any]]


@dataclass(frozen=True)
class ParamInfo:
    """One parameter of a model that is sent to an engine."""

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
    """Counters of speculative decoding, summed over the engine calls of a sample."""

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
        """Build from `to_dict`'s answer."""
        return cls(**data)


@dataclass
class PrefixCacheInfo:
    """How much of the prompts an engine had cached, summed over the calls of a sample."""

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
        """Build from `to_dict`'s answer."""
        return cls(**data)


class SampleStatus(Enum):
    """Where a sample is in its life."""

    PENDING = "pending"
    COMPLETED = "completed"
    TRUNCATED = "truncated"
    ABORTED = "aborted"
    FAILED = "failed"


@dataclass
class Sample:
    """A prompt, its response, and everything training needs to know about it.

    ``tokens`` holds prompt and response ids; the last ``response_length`` of them are the response (tool results inside it
    have mask 0). Per-token lists (``loss_mask``, ``rollout_log_probs``, ``teacher_log_probs``) have length ``response_length``.
    ``weight_spans`` says which weights sampled which tokens: ``[version, start, end]``, half open, within the response.
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
    loss_mask: list[int] | None = None
    weight_versions: list[str] = field(default_factory=list)
    weight_spans: list[list[Any]] = field(default_factory=list)
    rollout_log_probs: list[float] | None = None
    rollout_routed_experts: Any = None
    rollout_top_p_token_ids: Any = None
    rollout_top_p_token_offsets: Any = None
    remove_sample: bool = False
    status: SampleStatus = SampleStatus.PENDING
    metadata: dict = field(default_factory=dict)
    generate_function_path: str | None = None
    custom_rm_path: str | None = None
    train_metadata: dict | None = None
    apply_chat_template_kwargs: dict | None = None
    non_generation_time: float = 0.0
    rollout_id: int | None = None
    session_id: str | None = None
    teacher_log_probs: Any = None
    teacher_topk_log_probs: Any = None
    teacher_topk_indices: Any = None
    rollout_topk_log_probs: Any = None
    spec_info: SpecInfo = field(default_factory=SpecInfo)
    prefix_cache_info: PrefixCacheInfo = field(default_factory=PrefixCacheInfo)

    def to_dict(self) -> dict:
        """Return all attributes, those that are not fields too; status and counters as plain data."""
        data = dict(vars(self))
        data["status"] = self.status.value
        data["spec_info"] = self.spec_info.to_dict()
        data["prefix_cache_info"] = self.prefix_cache_info.to_dict()
        return data

    @staticmethod
    def from_dict(data: dict) -> Sample:
        """Build a sample from `to_dict`'s answer; unknown keys become attributes."""
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
        """Return the reward, or its entry ``args.reward_key`` when the reward is a dict.

        Raises:
            SampleError: when the reward is a dict and its entry to train on is not known.
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
        """Response tokens that carry loss."""
        return sum(self.loss_mask) if self.loss_mask is not None else self.response_length

    def append_response_tokens(
        self,
        token_ids: Sequence[int],
        log_probs: Sequence[float] | None = None,
        loss_mask: Sequence[int] | None = None,
        text: str = "",
        metadata: dict | None = None,
    ) -> None:
        """Append tokens with their logprobs and mask, keeping all per-token lists aligned.

        Args:
            token_ids: [N] ids to append to the response.
            log_probs: [N] logprobs they were sampled with; None for tokens the policy did not sample (stored as 0.0 under a
                zero mask, where no loss reads them).
            loss_mask: [N] 1 where the policy is trained; default 1 with ``log_probs``, else 0.
            text: what the tokens say.
            metadata: entries to set in ``self.metadata``.

        Raises:
            SampleError: when the lengths differ, tokens without logprobs are to be trained on, or there is no prompt token.
        """
        count = len(token_ids)
        mask = list(loss_mask) if loss_mask is not None else [int(log_probs is not None)] * count
        if len(mask) != count or (log_probs is not None and len(log_probs) != count):
            raise SampleError(f"{count} tokens need as many logprobs and mask entries")
        if log_probs is None and any(mask):
            raise SampleError("tokens without logprobs cannot carry loss; pass loss_mask of zeros")
        before = self.response_length
        self.loss_mask = [*(self.loss_mask if self.loss_mask is not None else [1] * before), *mask]
        self.rollout_log_probs = [
            *(self.rollout_log_probs or []),
            *(log_probs if log_probs is not None else [0.0] * count),
        ]
        self.tokens = [*self.tokens, *token_ids]
        self.response_length = before + count
        self.response += text
        self.metadata.update(metadata or {})
        self.validate()

    def validate(self) -> None:
        """Check that per-token lists fit, and that a token precedes the response, which predicts its first.

        Raises:
            SampleError: naming the list and both lengths.
        """
        if not 0 <= self.response_length <= len(self.tokens):
            raise SampleError(f"response_length {self.response_length} does not fit {len(self.tokens)} tokens")
        if self.response_length and self.response_length == len(self.tokens):
            raise SampleError(f"all {len(self.tokens)} tokens are response: it needs a prompt token before it")
        for name in (
            "loss_mask",
            "rollout_log_probs",
            "teacher_log_probs",
            "teacher_topk_log_probs",
            "teacher_topk_indices",
            "rollout_topk_log_probs",
        ):
            values = getattr(self, name)
            if values is not None and len(values) != self.response_length:
                raise SampleError(f"{name} has {len(values)} entries for {self.response_length} response tokens")
        for name in ("rollout_log_probs", "teacher_log_probs"):
            values = getattr(self, name)
            if values is not None and not all(math.isfinite(value) for value in values):
                raise SampleError(f"{name} has a value that is not finite")

    def update_from_meta_info(self, args: Arguments, meta_info: dict) -> None:
        """Take over counters, weight versions (of each span, if the weights changed meanwhile) and status from ``meta_info``."""
        if args.sglang_speculative_algorithm:
            self.spec_info.add(meta_info)
        self.prefix_cache_info.add(meta_info)
        if meta_info.get("weight_versions"):
            self.weight_versions += [str(span["version"]) for span in meta_info["weight_versions"]]
        elif "weight_version" in meta_info:
            self.weight_versions.append(str(meta_info["weight_version"]))
        kinds = {"length": SampleStatus.TRUNCATED, "abort": SampleStatus.ABORTED, "stop": SampleStatus.COMPLETED}
        finish = (meta_info.get("finish_reason") or {}).get("type")
        if finish in kinds:
            self.status = kinds[finish]
