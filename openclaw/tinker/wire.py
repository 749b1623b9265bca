"""What goes over the wire of the Tinker interface: bodies become our records, and results become its messages.

Token ids are read and written as they are. The messages are those of the package ``tinker``, so that client and server share one
definition.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError
from tinker.proto import tinker_public_pb2 as messages

from slime.clients.models import TARGETS, Datum, Passed

PROTOBUF = "application/x-protobuf"
_DTYPES = {
    messages.DTYPE_FLOAT32: np.dtype(np.float32),
    messages.DTYPE_INT64: np.dtype(np.int64),
    messages.DTYPE_INT32: np.dtype(np.int32),
}


class UserError(Exception):
    """What a program sent cannot be done; the message says what to send instead."""


@dataclass(frozen=True)
class Pass:
    """A request for a pass over data.

    Attributes:
        model: id of the model.
        number: of the command.
        loss: name.
        settings: of the loss.
        forward_only: whether no gradient is wanted.
        message: that has the data.
    """

    model: str
    number: int
    loss: str
    settings: Mapping[str, float | str]
    forward_only: bool
    message: Any

    def data(self) -> list[Datum]:
        """Return the sequences.

        Raises:
            UserError: one is no text, or its tensors do not fit.
        """
        return [_datum(number, each) for number, each in enumerate(self.message.data)]


def read_pass(body: bytes) -> Pass:
    """Return the request in a body.

    Raises:
        UserError: it is not one.
    """
    message = messages.ForwardBackwardRequest()
    try:
        message.ParseFromString(body)
    except DecodeError as error:
        raise UserError("the body is no ForwardBackwardRequest of protobuf") from error
    settings: dict[str, float | str] = dict(message.loss_fn_config)
    for name, value in message.loss_fn_config_v2.items():
        settings[name] = value.text if value.WhichOneof("value") == "text" else value.number
    return Pass(message.model_id, message.seq_id, message.loss_fn, settings, message.forward_only, message)


def pass_of_json(body: bytes) -> bytes:
    """Return the protobuf body of a request in JSON.

    Raises:
        UserError: it is not one.
    """
    try:
        value = json.loads(body)
        given = value["forward_backward_input"]
        message = messages.ForwardBackwardRequest(
            model_id=value["model_id"],
            seq_id=value["seq_id"],
            loss_fn=given["loss_fn"],
            loss_fn_config=given.get("loss_fn_config") or {},
            forward_only=bool(value.get("forward_only")),
        )
        for each in given["data"]:
            datum = message.data.add()
            for chunk in each["model_input"]["chunks"]:
                datum.model_input.add().encoded_text.tokens = np.asarray(chunk["tokens"], np.int32).tobytes()
            for name, tensor in each["loss_fn_inputs"].items():
                whole = tensor["dtype"] == "int64"
                values = np.asarray(tensor["data"], np.int64 if whole else np.float32)
                datum.loss_fn_inputs[name].dense = values.tobytes()
                datum.loss_fn_inputs[name].dtype = messages.DTYPE_INT64 if whole else messages.DTYPE_FLOAT32
                datum.loss_fn_inputs[name].shape.extend(tensor.get("shape") or [len(values)])
    except (ValueError, KeyError, TypeError, OverflowError, AttributeError, RecursionError) as error:
        raise UserError(f"the body is no ForwardBackwardRequest: {error!r}; send it as protobuf") from error
    return message.SerializeToString()


def ids_of(chunks: Iterable[Any], what: str) -> np.ndarray:
    """Return the token ids of chunks ``[L]`` int64.

    Raises:
        UserError: a chunk is no text.
    """
    parts = []
    for chunk in chunks:
        if chunk.WhichOneof("chunk") != "encoded_text":
            raise UserError(f"{what} has a {chunk.WhichOneof('chunk')}; this server trains on text alone")
        if len(chunk.encoded_text.tokens) % 4:
            raise UserError(f"{what} has ids that are not int32")
        parts.append(np.frombuffer(chunk.encoded_text.tokens, np.int32))
    return np.concatenate(parts).astype(np.int64) if parts else np.empty(0, np.int64)


def _datum(number: int, message: Any) -> Datum:
    tokens = ids_of(message.model_input, f"datum {number}")
    tensors = {name: _tensor(f"datum {number}: {name}", tensor) for name, tensor in message.loss_fn_inputs.items()}
    targets = tensors.pop(TARGETS, None)
    if targets is None:
        raise UserError(f"datum {number} has no {TARGETS}")
    for name, values in {TARGETS: targets, **tensors}.items():
        if values.shape != tokens.shape:
            raise UserError(
                f"datum {number}: {name} has shape {list(values.shape)}, but its input has {len(tokens)} tokens; this server "
                "takes one value per token"
            )
    if targets.dtype.kind != "i":
        raise UserError(f"datum {number}: {TARGETS} are no integers")
    return Datum(tokens, targets.astype(np.int64), {name: value.astype(np.float32) for name, value in tensors.items()})


def _tensor(what: str, tensor: Any) -> np.ndarray:
    if tensor.HasField("sparse_csr"):
        raise UserError(f"{what} is sparse; send it dense")
    if tensor.dtype not in _DTYPES:
        raise UserError(f"{what} has a type that this server does not read; send float32 or int64")
    dtype = _DTYPES[tensor.dtype]
    if len(tensor.dense) % dtype.itemsize:
        raise UserError(f"{what} has half a number")
    values = np.frombuffer(tensor.dense, dtype)
    shape = list(tensor.shape) or [len(values)]
    if any(size < 0 for size in shape) or int(np.prod(shape)) != len(values):
        raise UserError(f"{what} has {len(values)} values, but shape {shape}")
    return values.reshape(shape)


def pass_result(passed: Passed) -> bytes:
    """Return the message of a pass: each datum's log probabilities, and the loss."""
    message = messages.ForwardBackwardOutput(loss_fn_output_type="ArrayRecord", metrics={"loss:sum": passed.loss})
    values = np.concatenate(passed.log_probs) if passed.log_probs else np.empty(0)
    ends = np.cumsum([0, *(4 * len(each) for each in passed.log_probs)], dtype=np.int64)
    tensor = messages.BatchedTensor(
        data=values.astype(np.float32).tobytes(), offsets=ends.tobytes(), dtype=messages.DTYPE_FLOAT32
    )
    message.loss_fn_outputs.append(
        messages.ArrayRecord(type_tag="ArrayRecord", num_datums=len(passed.log_probs), fields={"logprobs": tensor})
    )
    return message.SerializeToString()


Ranked = Sequence[Sequence[tuple[int, float]]]
"""The most likely tokens at each position, with their log probabilities."""
EMPTY = -99999.0
"""The log probability of an empty cell of `Ranked`."""


@dataclass(frozen=True)
class Sequenced:
    """A sampled sequence.

    Attributes:
        tokens: ids.
        log_probs: of the ids.
        stopped: whether a stop ended it, and not the length.
        ranked: of its positions; None if not asked for.
    """

    tokens: Sequence[int]
    log_probs: Sequence[float]
    stopped: bool
    ranked: Ranked | None = None


@dataclass(frozen=True)
class Sampled:
    """What a request for samples gave.

    Attributes:
        sequences: as many as were asked for.
        prompt_log_probs: NaN where there is none; None if not asked for.
        prompt_ranked: of the prompt's positions; None if not asked for.
        cached: prompt tokens that were computed before.
    """

    sequences: Sequence[Sequenced]
    prompt_log_probs: Sequence[float] | None
    prompt_ranked: Ranked | None
    cached: int


def sample_result(sampled: Sampled) -> bytes:
    """Return the message of samples."""
    message = messages.SampleResponse(prompt_cache_hit_tokens=sampled.cached)
    for each in sampled.sequences:
        sequence = message.sequences.add(
            stop_reason=messages.STOP_REASON_STOP if each.stopped else messages.STOP_REASON_LENGTH,
            tokens=np.asarray(each.tokens, np.int32).tobytes(),
            logprobs=np.asarray(each.log_probs, np.float32).tobytes(),
        )
        if each.ranked is not None:
            sequence.topk_sampled_logprobs.CopyFrom(_ranked(each.ranked))
    if sampled.prompt_log_probs is not None:
        message.prompt_logprobs = np.asarray(sampled.prompt_log_probs, np.float32).tobytes()
    if sampled.prompt_ranked is not None:
        message.topk_prompt_logprobs.CopyFrom(_ranked(sampled.prompt_ranked))
    return message.SerializeToString()


def _ranked(rows: Ranked) -> Any:
    width = max(map(len, rows), default=0)
    ids = np.zeros((len(rows), width), np.int32)
    values = np.full((len(rows), width), EMPTY, np.float32)
    for place, row in enumerate(rows):
        for rank, (token, value) in enumerate(row):
            ids[place, rank], values[place, rank] = token, value
    return messages.TopkLogprobs(token_ids=ids.tobytes(), logprobs=values.tobytes(), k=width, length=len(rows))
