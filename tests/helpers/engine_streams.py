"""Streamed requests to an engine, and their log probabilities beside those of a forward pass, on any device."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import httpx
import torch
from torch import Tensor

from benchmarks.figures import record_figure
from benchmarks.parity_parts.errors import FACTOR, TEMPERATURE, Errors, exact_products, in_float32
from lab.testkit.event_lines import EventLines
from lab.testkit.waiting import wait_until
from slime.weight_sync import BASE
from tests.helpers.tolerance import MODEL, tolerance

WAIT_SECONDS = 120.0


@dataclass(frozen=True)
class Tolerance:
    """How far an engine's log probabilities may be from a forward pass, in nats: of the worst token, and on average."""

    worst: float
    mean: float


FLOAT32 = Tolerance(tolerance(10.0, roundings=MODEL), tolerance(10.0, roundings=MODEL))


@dataclass
class Stream:
    """What a streamed request delivered."""

    prompt: list[int]
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    last: dict[str, Any] = field(default_factory=dict)
    some: threading.Event = field(default_factory=threading.Event)

    @property
    def spans(self) -> list[dict[str, Any]]:
        """The weight version of each stretch of tokens: ``version``, ``start``, ``end``."""
        return self.last["meta_info"]["weight_versions"]


def stream(
    url: str, prompt: list[int], new_tokens: int, result: Stream | None = None, rid: str = "", adapter: str = ""
) -> Stream:
    """Ask for ``new_tokens`` after ``prompt``, with the adapter of a name; ``result`` fills while they come."""
    result = result or Stream(prompt)
    body: dict[str, Any] = {
        "input_ids": prompt,
        "sampling_params": {"temperature": TEMPERATURE, "max_new_tokens": new_tokens, "ignore_eos": True},
        "return_logprob": True,
        "stream": True,
    }
    if rid:
        body["rid"] = rid
    if adapter:
        body["lora_path"] = adapter
    with httpx.stream("POST", f"{url}/generate", json=body, timeout=WAIT_SECONDS, trust_env=False) as response:
        assert response.status_code == 200, response.read()
        lines = EventLines()
        for line in (line for part in response.iter_raw() for line in lines.of(part)):
            if line.startswith("data: {"):
                result.last = json.loads(line.removeprefix("data: "))
                result.ids += result.last["output_ids"]
                result.logprobs += [entry[0] for entry in result.last["meta_info"]["output_token_logprobs"]]
                if len(result.ids) >= 20:
                    result.some.set()
    return result


def model_of(version: str, models: Sequence[Any]) -> Any:
    """Return which of two models sampled a token: an engine starts with the first, updates alternate."""
    return models[0 if version in ("default", BASE) else int(version) % len(models)]


def scores(result: Stream, models: Sequence[Any]) -> Tensor:
    """Return per token the log probability by the model whose version it says it was sampled with.

    ``models`` are those of the even and of the odd versions, on any device.
    """
    found = []
    for span in result.spans:
        model = model_of(span["version"], models)
        with torch.no_grad(), exact_products():
            ids = torch.tensor([result.prompt + result.ids], device=model.device)
            logits = model(ids).logits[0].float() / TEMPERATURE
        first = len(result.prompt) + span["start"]
        table = logits[first - 1 : first - 1 + span["end"] - span["start"]].log_softmax(-1)
        chosen = ids[0, first : first + len(table), None]
        found.append(table.gather(-1, chosen)[:, 0].cpu())
    return torch.cat(found)


def worst_error(result: Stream, references: Sequence[Any]) -> float:
    """Return the largest distance of a log probability from :func:`scores`."""
    return float((scores(result, references) - Tensor(result.logprobs)).abs().max())


def checked(
    results: Sequence[Stream],
    models: Sequence[Any],
    tolerance: Tolerance | None,
    what: str,
    exact: Sequence[Any] | None = None,
) -> Tensor:
    """Return per token how far ``results`` are from `scores`, in nats, and hold that to ``tolerance``.

    None: the models are in bfloat16 as the engine is. Then ``exact``, by default copies in float32, are the reference, and the engine's
    errors must be rounding beside those of ``models`` (`benchmarks.parity_parts.errors`).
    """
    sampled = torch.cat([Tensor(result.logprobs) for result in results])
    if tolerance is not None:
        found = (torch.cat([scores(result, models) for result in results]) - sampled).abs()
        assert within(found, tolerance), f"{what}: {Errors.of(found)}"
        return found
    exact = exact or [in_float32(model) for model in models]
    truth = torch.cat([scores(result, exact) for result in results])
    rounded = torch.cat([scores(result, models) for result in results])
    return held_to_rounding(sampled - truth, rounded - truth, what)


def held_to_rounding(differences: Tensor, own: Tensor, what: str) -> Tensor:
    """Return the sizes of ``differences`` from the float32 reference; they must be rounding beside those of the trainer, ``own``."""
    engine, trainer = Errors.of(differences), Errors.of(own)
    for name in ("mean", "high"):
        limit = FACTOR * getattr(trainer, name)
        record_figure(f"engine/{what}/from float32, {name}", getattr(engine, name), "nats", limit=limit)
    assert engine.within(trainer), f"{what}: the engine is {engine} from float32, the trainer {trainer}"
    return differences.abs()


def within(found: Tensor, tolerance: Tolerance) -> bool:
    """Whether the errors ``found`` are within ``tolerance``."""
    return float(found.max()) < tolerance.worst and float(found.mean()) < tolerance.mean


def wait_for_some(result: Stream, running: Future[Stream]) -> None:
    """Return when some more tokens have come, or all have."""

    def there() -> bool:
        if running.done():
            running.result()
        return running.done() or result.some.is_set()

    wait_until(there, lambda: f"{len(result.ids)} tokens came, then nothing", WAIT_SECONDS)


def prompts(count: int, length: int = 24) -> list[list[int]]:
    """Return ``count`` prompts of random ids, the same at each call."""
    source = random.Random(5)
    return [[source.randrange(300) for _ in range(length)] for _ in range(count)]
