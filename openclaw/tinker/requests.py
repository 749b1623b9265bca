"""Bodies of the Tinker interface, as far as this server reads them; fields that it does not know are left alone."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from openclaw.tinker.wire import UserError

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")]
"""Of weights."""
Id = Annotated[str, Field(min_length=1, max_length=256)]
Number = Annotated[int, Field(ge=0, le=2**62)]
Seconds = Annotated[int, Field(gt=0, le=10**9)]


def _small(value: Any) -> Any:
    """Return what a program notes about its own things, if it is short and JSON can hold it."""
    try:
        text = json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError("it is no JSON") from error
    if len(text) > METADATA_CHARACTERS:
        raise ValueError(f"it has {len(text)} characters; at most {METADATA_CHARACTERS}")
    return value


METADATA_CHARACTERS = 16_384
Metadata = Annotated[dict[str, Any] | None, AfterValidator(_small)]


class Body(BaseModel):
    """A body."""

    model_config = ConfigDict(extra="ignore", protected_namespaces=())


class LoraConfig(Body):
    """The adapter of a new model."""

    rank: Annotated[int, Field(ge=1)]
    seed: int | None = None
    train_unembed: bool = True
    train_mlp: bool = True
    train_attn: bool = True


class OptimizerConfig(Body):
    """The optimizer of a new model."""

    type: str = "adamw"


class CreateSession(Body):
    """A program begins."""

    sdk_version: str = ""
    display_name: Annotated[str, Field(max_length=256)] | None = None


class CreateModel(Body):
    """A new model begins as the base."""

    session_id: Id
    model_seq_id: Number
    base_model: str
    lora_config: LoraConfig | None = None
    optimizer_config: OptimizerConfig = OptimizerConfig()
    user_metadata: Metadata = None


class LoadWeights(Body):
    """A new model begins as saved weights, or one that has only been created does."""

    path: str
    optimizer: bool
    model_id: Id | None = None
    seq_id: Number | None = None
    session_id: Id | None = None
    model_seq_id: Number | None = None
    base_model: str | None = None
    optimizer_config: OptimizerConfig | None = None
    user_metadata: Metadata = None
    weights_access_token: str | None = None


class Numbered(Body):
    """A command of a model, whatever else it says: what is wrong with the rest is its result, so that its number is not missing."""

    model_id: Id
    seq_id: Number


class AdamParams(Body):
    """Settings of a step."""

    learning_rate: Annotated[float, Field(ge=0, le=1e3)] = 1e-4
    beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    beta2: Annotated[float, Field(ge=0, lt=1)] = 0.95
    eps: Annotated[float, Field(ge=1e-30, le=1.0)] = 1e-12
    weight_decay: Annotated[float, Field(ge=0, le=1e3)] = 0.0
    grad_clip_norm: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0


class OptimStep(Body):
    """A step with the gradient so far."""

    model_id: Id
    seq_id: Number
    adam_params: AdamParams | None = None
    optimizer_params: dict[str, Any] | None = None


class SaveWeights(Body):
    """Keep what belongs to a model under a name."""

    model_id: Id
    seq_id: Number
    path: Name | None = None
    ttl_seconds: Seconds | None = None
    overwrite: bool = False
    user_metadata: Metadata = None


class SaveForSampler(SaveWeights):
    """Let engines answer with a model's adapter, under a name or as a sampling session."""

    sampling_session_seq_id: Number | None = None
    kind: Literal["snapshot", "inflight"] = "snapshot"


class OfModel(Body):
    """A request about a model."""

    model_id: Id


class OfWeights(Body):
    """A request about weights."""

    tinker_path: str


class TimeToLive(Body):
    """When weights expire; None: never."""

    ttl_seconds: Seconds | None = None


class Heartbeat(Body):
    """A program goes on."""

    session_id: Id


class CreateSampler(Body):
    """A new sampling session, of the base or of saved weights."""

    session_id: Id
    sampling_session_seq_id: Number
    base_model: str | None = None
    model_path: str | None = None


class SamplingParams(Body):
    """How to sample."""

    max_tokens: Annotated[int, Field(ge=0)] | None = None
    seed: int | None = None
    stop: str | list[str] | list[int] | None = None
    temperature: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1.0
    top_k: int = -1
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0


class Chunk(Body):
    """A part of a prompt."""

    type: str = "encoded_text"
    tokens: list[int] | None = None


class Prompt(Body):
    """A prompt as chunks."""

    chunks: list[Chunk]


class Sample(Body):
    """Samples, or scores of a prompt."""

    prompt: Prompt
    sampling_params: SamplingParams
    num_samples: Annotated[int, Field(ge=1, le=1024)] = 1
    sampling_session_id: Id | None = None
    seq_id: Number | None = None
    base_model: str | None = None
    model_path: str | None = None
    prompt_logprobs: bool | None = None
    topk_prompt_logprobs: Annotated[int, Field(ge=0, le=100)] = 0
    topk_sample_logprobs: Annotated[int, Field(ge=0, le=100)] = 0
    target_prompt_logprobs: Any = None
    prompt_alt_tokens_k: int = 0
    prompt_logprobs_last_n: Annotated[int, Field(ge=1)] | None = None
    record_stability_info: bool | None = None


class Retrieve(Body):
    """The result of a request."""

    request_id: Id
    allow_metadata_only: bool = False


Parsed = TypeVar("Parsed", bound=Body)


def parse(kind: type[Parsed], body: bytes) -> Parsed:
    """Return a body.

    Raises:
        UserError: it is not one of this kind; names the field.
    """
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the body"
        raise UserError(f"{where}: {first['msg']}") from error
