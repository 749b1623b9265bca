"""The service behind ``--train-backend tinker``: its key, its clients, and what they use.

Guarantees: the key comes from the environment, and stays there. A service that is away, refuses the key or lacks the model is one
line that says what to do, before anything starts. Token ids are all that it gets of a conversation.
"""

from __future__ import annotations

import json
import logging
import os
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import httpx

from groundwork.exceptions import ConfigError
from groundwork.private_files import write_note
from slime.args import Arguments, required
from slime.arguments.tinker import ADDRESS, KEY, PREFILL, SAMPLE, TRAIN, read_prices
from slime.exceptions import LostError
from slime.utils.probes import Answer, Probe

if TYPE_CHECKING:
    from tinker import SampleResponse, SamplingClient, ServiceClient

logger = logging.getLogger(__name__)

USUAL_ADDRESS = "https://tinker.thinkingmachines.dev/services/tinker-prod"
LOOK_SECONDS, FORGET_SECONDS, KEEP_SECONDS = 20.0, 60.0, 5.0
MILLION = 1_000_000
USED_NAME = "used_tokens.json"
"""File of the run's folder with the tokens that the service was asked for, by kind."""


class Meter:
    """Tokens that the service prefilled, sampled and trained for a run, and their price. Thread-safe.

    Steps that a crash lost were paid for, too, so the count lies in the run's folder, not in a checkpoint.

    Example:
        >>> meter = Meter({"train": 2.0, "sample": 1.0})
        >>> meter.add("train", 500_000)
        >>> meter.metrics() == {"tinker/train_tokens": 500_000.0, "tinker/dollars": 1.0}
        True
    """

    def __init__(self, prices: Mapping[str, float]) -> None:
        """``prices``: dollars for a million tokens by kind; empty: no dollars are counted."""
        self._prices, self._lock = prices, threading.Lock()
        self._file: Path | None = None
        self._tokens, self._kept = Counter[str](), Counter[str]()

    def add(self, kind: str, tokens: int) -> None:
        """Count tokens of a kind."""
        with self._lock:
            self._tokens[kind] += tokens

    def keep_in(self, file: Path, *, goes_on: bool) -> None:
        """Write the count to ``file`` every few seconds from now on, and go on from what is there if the run ``goes_on``.

        The run's folder is this run's alone by now. A second call changes nothing.
        """
        with self._lock:
            if self._file is not None:
                return
            self._file = file
            if goes_on and file.is_file():
                self._tokens.update(json.loads(file.read_text()))
        threading.Thread(target=self._keep_on, name="meter", daemon=True).start()

    def _keep_on(self) -> None:
        pause = threading.Event()
        while not pause.wait(KEEP_SECONDS):
            try:
                self.keep()
            except OSError as error:
                logger.warning("%s cannot be written: %s", self._file, error)

    def metrics(self) -> dict[str, float]:
        """Return what was counted since the start, as metrics."""
        with self._lock:
            tokens = dict(self._tokens)
        found = {f"tinker/{kind}_tokens": float(count) for kind, count in tokens.items()}
        if self._prices:
            dollars = sum(count * self._prices.get(kind, 0.0) for kind, count in tokens.items()) / MILLION
            found["tinker/dollars"] = dollars
        return found

    def line(self) -> str:
        """Return what was counted, for a person."""
        found = self.metrics()
        dollars = found.pop("tinker/dollars", None)
        parts = [
            f"{count:,.0f} {name.removeprefix('tinker/').removesuffix('_tokens')}" for name, count in found.items()
        ]
        return f"{', '.join(parts) or 'no'} tokens" + ("" if dollars is None else f", {dollars:.2f} dollars")

    def keep(self) -> None:
        """Write what was counted, if it is news and the run has a folder."""
        with self._lock:
            file, tokens = self._file, Counter(self._tokens)
        if file is not None and tokens != self._kept and file.parent.is_dir():
            write_note(file, dict(tokens))
            self._kept = tokens


class RefusedError(Exception):
    """The service has no such request, or its answer cannot be used."""


class Sampled(NamedTuple):
    """An answer in the shape of ``tinker.SampleResponse``, and the weight version that gave it."""

    response: Any
    version: str


class AnySampler(Protocol):
    """What a service samples from and scores with: one version of the weights.

    Attributes:
        version: the weight version; `BASE` of the model as it is.
    """

    version: str

    def load(self) -> None:
        """Make it answer from now on, before it serves."""

    async def sample(self, ids: Sequence[int], parameters: Mapping[str, Any], topk: int = 0) -> Sampled:
        """Return one reply to ``ids``; ``parameters``: of ``tinker.SamplingParams``, ``topk``: likeliest tokens per position."""
        ...

    async def score(self, ids: Sequence[int], topk: int = 0) -> Sampled:
        """Return the log probabilities of ``ids`` at temperature 1; that of the first is None."""
        ...

    def answers(self, probes: Sequence[Probe]) -> list[Answer]:
        """Return one answer per probe, in order; see `slime.utils.probes`."""
        ...


class Sampler:
    """A version of the weights at a service of the Tinker interface; see `AnySampler`."""

    def __init__(self, client: SamplingClient, version: str, meter: Meter) -> None:
        self.version = version
        self._client, self._meter = client, meter

    def load(self) -> None:
        """No-op: every version of such a service answers."""

    async def sample(self, ids: Sequence[int], parameters: Mapping[str, Any], topk: int = 0) -> Sampled:
        """Return one reply."""
        response = await self._asked(ids, parameters, topk_sample_logprobs=topk)
        return Sampled(self._counted(ids, response, len(response.sequences[0].tokens)), self.version)

    async def score(self, ids: Sequence[int], topk: int = 0) -> Sampled:
        """Return the log probabilities of ``ids``."""
        response = await self._asked(ids, {"max_tokens": 1}, include_prompt_logprobs=True, topk_prompt_logprobs=topk)
        return Sampled(self._counted(ids, response, 1), self.version)

    def answers(self, probes: Sequence[Probe]) -> list[Answer]:
        """Return one answer per probe."""
        asked = [
            (
                self._asked([*probe.prompt_ids, *probe.reply_ids], {"max_tokens": 1}, include_prompt_logprobs=True)
                if probe.reply_ids
                else None,
                self._asked(probe.prompt_ids, {"max_tokens": probe.max_new_tokens, "temperature": 0.0})
                if probe.max_new_tokens
                else None,
            )
            for probe in probes
        ]
        return [self._answer(probe, *each) for probe, each in zip(probes, asked, strict=True)]

    def _answer(self, probe: Probe, scored: Any, greedy: Any) -> Answer:
        scores: list[float] = []
        if scored is not None:
            ids = [*probe.prompt_ids, *probe.reply_ids]
            response = self._counted(ids, scored.result(), 1)
            values = (response.prompt_logprobs or [])[len(probe.prompt_ids) :]
            scores = [value for value in values if value is not None]
            if len(scores) != len(probe.reply_ids):
                raise LostError(f"the service scored {len(scores)} of {len(probe.reply_ids)} tokens")
        if greedy is None:
            return Answer(scores, [], False)
        [reply] = self._counted(
            probe.prompt_ids, response := greedy.result(), len(response.sequences[0].tokens)
        ).sequences
        return Answer(scores, list(reply.tokens), reply.stop_reason == "stop")

    def _asked(self, ids: Sequence[int], parameters: Mapping[str, Any], **keywords: Any) -> Any:
        from tinker import ModelInput, SamplingParams

        return self._client.sample(ModelInput.from_ints(list(ids)), 1, SamplingParams(**parameters), **keywords)

    def _counted(self, ids: Sequence[int], response: SampleResponse, sampled: int) -> SampleResponse:
        cached = response.prompt_cache_hit_tokens
        self._meter.add(PREFILL, len(ids) - cached)
        self._meter.add("cached", cached)
        self._meter.add(SAMPLE, sampled)
        return response


BASE = "base"


class Service:
    """Owns the connection; entering it checks key, address and model.

    Attributes:
        address: where the service answers.
        context: most tokens of a prompt with its reply; None if the service does not say.
        meter: what was used.
    """

    context: int | None

    def __init__(self, args: Arguments) -> None:
        self._args = args
        self._resources = ExitStack()
        self.model = required("--tinker-model", args.tinker_model)
        self.address = os.environ.get(ADDRESS) or USUAL_ADDRESS
        self.meter = Meter(read_prices(args.tinker_prices))

    def __enter__(self) -> Service:
        """Connect.

        Raises:
            ConfigError: the key is missing or refused, the service is away, or it has no such model.
        """
        if not os.environ.get(KEY):
            raise ConfigError(f"--train-backend tinker needs a key of the service; type: export {KEY}=tml-...")
        self._look()
        import tinker

        try:
            self.client: ServiceClient = self._resources.enter_context(tinker.ServiceClient())
            capabilities = tinker.RestClient().get_server_capabilities().result()
            offered = {item.model_name: item for item in capabilities.supported_models}
        except (tinker.AuthenticationError, tinker.PermissionDeniedError) as error:
            self._resources.close()
            raise ConfigError(f"{self.address} refuses the key in {KEY}; export one of its own") from error
        except Exception as error:  # a payment that is due, a limit, a failure: nothing of the run has started
            self._resources.close()
            raise ConfigError(f"{self.address} does not let the run begin: {type(error).__name__}: {error}") from error
        for name in {self.model, self._args.tinker_judge_model or self.model}:
            if name not in offered:
                self._resources.close()
                known = ", ".join(sorted(str(each) for each in offered)) or "none"
                raise ConfigError(f"{self.address} has no model {name}; choose of: {known}")
        self.context = getattr(offered[self.model], "max_context_length", None)
        return self

    def _look(self) -> None:
        """Ask once whether somebody answers, because the package asks for minutes."""
        try:
            httpx.get(f"{self.address.rstrip('/')}/api/v1/healthz", timeout=LOOK_SECONDS)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise ConfigError(
                f"nobody answers at {self.address} ({type(error).__name__}); start the service, or export {ADDRESS}"
            ) from error

    def __exit__(self, *_: object) -> None:
        """Close the connection."""
        self._resources.close()

    def base(self, model: str) -> Sampler:
        """Return the sampler of a model as it is."""
        return Sampler(self.client.create_sampling_client(base_model=model).result(), BASE, self.meter)

    def sampler(self, client: SamplingClient, version: str) -> Sampler:
        """Return the sampler of a training client's sampling client."""
        return Sampler(client, version, self.meter)

    def forget(self, path: str) -> None:
        """Delete a state of ours; one that stays is only in the way, so a failure is a line in the log."""
        import tinker

        try:
            tinker.RestClient().delete_checkpoint_from_tinker_path(path).result(timeout=FORGET_SECONDS)
        except (tinker.TinkerError, TimeoutError) as error:
            logger.warning("%s could not be deleted: %s", path, error)

    def train_tokens(self, tokens: int) -> None:
        """Count tokens of a forward and backward pass."""
        self.meter.add(TRAIN, tokens)
