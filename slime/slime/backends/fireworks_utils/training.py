"""The Tinker interface as trainer jobs of Fireworks speak it: JSON in and out, with the key in a header.

The package tinker itself cannot be used there: since 0.38 it sends passes and reads their results as protobuf only, creates a model by
loading a state, and takes no key without ``tml-``; Fireworks' own package (1.2.30) has a client for JSON, and refuses protobuf. So
this is the small part of the interface that `TinkerTrainer` calls, with the package's types and errors.

Guarantees: commands are numbered, so one that is sent again is done once. Answers are waited for in a thread, so a caller can give up.
"""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import httpx
import tinker
import torch

from groundwork.process import Stopped
from slime.backends.fireworks_utils.http import Connection, body_of, words_of

logger = logging.getLogger(__name__)

PROTOCOL = "0.23.0"
"""Version of the interface that Fireworks' package names itself by when it asks for a session."""
BEAT_SECONDS = 10.0
AGAIN, LOST = frozenset({408}), frozenset({410})
MOST_DATUMS, MOST_TOKENS = 1024, 250_000
"""Of one request; a larger step is several passes, whose gradients add up."""
FLOAT, WHOLE = "float32", "int64"


@dataclass(frozen=True)
class PassResult:
    """What a forward and backward pass gave.

    Attributes:
        metrics: sums and means, as the interface names them.
        loss_fn_outputs: per datum, in order, tensors by name.
    """

    metrics: dict[str, float]
    loss_fn_outputs: list[dict[str, torch.Tensor]]


@dataclass(frozen=True)
class Saved:
    """Where Fireworks keeps a state: ``fireworks://JOB/PATH``, with the path that it gave."""

    path: str


@dataclass(frozen=True)
class Stepped:
    """The metrics of an optimizer step."""

    metrics: dict[str, float]


class Session:
    """One session of a trainer job, which ends without a sign of life; owns the thread that gives it."""

    def __init__(self, connection: Connection, gateway: str) -> None:
        self._connection, self._gateway, self._over = connection, gateway, threading.Event()
        body = {"tags": [], "user_metadata": {}, "sdk_version": PROTOCOL, "type": "create_session"}
        self.id = str(body_of(self.post("create_session", body))["session_id"])
        self._beats = threading.Thread(target=self._beat, name="fireworks-session", daemon=True)
        self._beats.start()

    def end(self) -> None:
        """Give no more signs of life."""
        self._over.set()

    def post(self, route: str, body: Mapping[str, Any], also: frozenset[int] = frozenset()) -> httpx.Response:
        """Return the answer of a route; see `Connection.ask`."""
        return self._connection.ask("POST", f"{self._gateway}/api/v1/{route}", body, also=also)

    def done(self, route: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Send a command, and return its result once it is done.

        Raises:
            tinker.TinkerError: it failed, or was refused.
        """
        ticket = body_of(self.post(route, body))
        while True:
            asked = {"request_id": ticket["request_id"]}
            answer = self.post("retrieve_future", asked, also=AGAIN | LOST)
            if answer.status_code in LOST:
                ticket = body_of(self.post(route, body))
                continue
            result = body_of(answer) if answer.status_code not in AGAIN else {"type": "try_again"}
            if result.get("type") == "try_again":
                self._connection.pause(0.05)
                continue
            if "error" in result:
                raise tinker.TinkerError(f"{route} failed: {words_of(answer)}")
            return result

    def _beat(self) -> None:
        beat = {"session_id": self.id, "type": "session_heartbeat"}
        while not self._over.wait(BEAT_SECONDS):
            try:
                self.post("session_heartbeat", beat)
            except Stopped:
                return
            except tinker.TinkerError as error:
                logger.warning("no sign of life reached the trainer job: %s", error)


class TrainingClient:
    """One adapter of a trainer job, with the calls of ``tinker.TrainingClient`` that `TinkerTrainer` makes; each returns a future."""

    def __init__(
        self, session: Session, job: str, model: str, lora: Mapping[str, Any], worker: ThreadPoolExecutor
    ) -> None:
        self._session, self._job, self._worker, self._number = session, job, worker, 0
        request = {
            "session_id": session.id,
            "model_seq_id": 0,
            "base_model": model,
            "lora_config": dict(lora),
            "type": "create_model",
        }
        self._model = str(session.done("create_model", request)["model_id"])

    def forward_backward(
        self, data: Sequence[tinker.Datum], loss_fn: str, loss_fn_config: Mapping[str, float]
    ) -> Future[PassResult]:
        """Add a batch's gradient; the outputs hold ``logprobs`` ``[T_i]`` per datum."""

        def passes() -> PassResult:
            metrics, outputs = dict[str, float](), list[dict[str, torch.Tensor]]()
            for part in parts(data):
                asked = {"data": [json_of(datum) for datum in part], "loss_fn": loss_fn}
                if loss_fn_config:
                    asked["loss_fn_config"] = dict(loss_fn_config)
                result = self._done("forward_backward", {"forward_backward_input": asked})
                for name, value in (result.get("metrics") or {}).items():
                    if name.endswith(":sum"):
                        metrics[name] = metrics.get(name, 0.0) + float(value)
                outputs += [tensors_of(each) for each in result["loss_fn_outputs"]]
            return PassResult(metrics, outputs)

        return self._worker.submit(passes)

    def optim_step(self, adam: tinker.AdamParams) -> Future[Stepped]:
        """Take a step with the gradient that was added up."""
        names = ("learning_rate", "beta1", "beta2", "eps", "weight_decay", "grad_clip_norm")
        asked = {"adam_params": {name: getattr(adam, name) for name in names}}
        return self._worker.submit(lambda: Stepped(self._done("optim_step", asked).get("metrics") or {}))

    def save_state(self, name: str, ttl_seconds: int | None = None, user_metadata: object = None) -> Future[Saved]:
        """Have weights and moments kept under ``name``. Fireworks takes neither a term nor metadata with a state."""

        def saves() -> Saved:
            kept = str(self._done("save_weights", {"path": name})["path"])
            return Saved(f"{SCHEME}{self._job}/{kept}")

        return self._worker.submit(saves)

    def save_weights_and_get_sampling_client(self) -> Future[str]:
        """Have the weights kept for a deployment, and return the identity by which it loads them."""
        asked = {"path": f"served-{secrets.token_hex(6)}", "checkpoint_type": "base"}  # an adapter is always whole
        return self._worker.submit(lambda: str(self._done("save_weights_for_sampler", asked)["path"]))

    def load(self, path: str) -> None:
        """Go on from a state with weights and moments.

        Raises:
            tinker.TinkerError: there is no such state.
        """
        job, _, place = path.removeprefix(SCHEME).partition("/")
        if job != self._job:
            place = f"cross_job://{job}/{place.rpartition('/')[2]}"
        self._done("load_weights", {"path": place, "optimizer": True})

    def unload(self) -> None:
        """Let the trainer job forget the adapter with what was not saved of it."""
        self._session.done("unload_model", {"model_id": self._model, "type": "unload_model"})

    def _done(self, route: str, body: Mapping[str, Any]) -> dict[str, Any]:
        self._number += 1
        request = {**body, "model_id": self._model, "seq_id": self._number, "type": route}
        return self._session.done(route, request)


SCHEME = "fireworks://"


class Adapters:
    """Makes the training clients of a run, one after another; owns their session and the thread that waits."""

    def __init__(self, connection: Connection, revived: Callable[[], tuple[str, str]], model: str, rank: int) -> None:
        """``revived`` returns the trainer job and its gateway's path, once it answers; ``rank``: of the adapters of ``model``."""
        self._connection, self._revived, self._model, self._rank = connection, revived, model, rank
        self._worker = ThreadPoolExecutor(1, "fireworks-training")
        self._session: Session | None = None
        self._last: TrainingClient | None = None

    def close(self) -> None:
        """End the session."""
        self._end()
        self._worker.shutdown(wait=False, cancel_futures=True)

    def create_lora_training_client(
        self, model: str, rank: int, seed: int, train_unembed: bool
    ) -> Future[TrainingClient]:
        """Create an adapter of ``model`` in the place of the last one."""
        return self._worker.submit(self._new, model, rank, {"seed": seed, "train_unembed": train_unembed})

    def create_training_client_from_state_with_optimizer(self, path: str) -> Future[TrainingClient]:
        """Create an adapter with the weights and moments of a state.

        Raises:
            ValueError: ``path`` is no state of Fireworks.
        """
        if not path.startswith(SCHEME):
            raise ValueError(f"{path} is no state of Fireworks, such as {SCHEME}JOB/NAME")

        def restores() -> TrainingClient:
            client = self._new(self._model, self._rank, {"train_unembed": False})
            client.load(path)
            return client

        return self._worker.submit(restores)

    def _new(self, model: str, rank: int, more: Mapping[str, Any]) -> TrainingClient:
        if self._last is not None:
            try:
                self._last.unload()
            except tinker.TinkerError as error:
                logger.info("the last adapter went with its trainer: %s", error)
        self._end()
        job, gateway = self._revived()
        self._session = Session(self._connection, gateway)
        lora = {"rank": rank, "train_mlp": True, "train_attn": True, **more}
        self._last = TrainingClient(self._session, job, model, lora, self._worker)
        return self._last

    def _end(self) -> None:
        if self._session is not None:
            self._session.end()
        self._session = self._last = None


def parts(data: Sequence[tinker.Datum]) -> Iterator[list[tinker.Datum]]:
    """Yield a batch in requests that are small enough, in order."""
    part, tokens = list[tinker.Datum](), 0
    for datum in data:
        length = datum.model_input.length
        if part and (len(part) == MOST_DATUMS or tokens + length > MOST_TOKENS):
            yield part
            part, tokens = [], 0
        part.append(datum)
        tokens += length
    yield part


def json_of(datum: tinker.Datum) -> dict[str, Any]:
    """Return a datum in JSON: its tokens, and flat tensors with kind and shape."""
    inputs = {name: tensor.to_torch() for name, tensor in datum.loss_fn_inputs.items()}
    return {
        "model_input": {"chunks": [{"type": "encoded_text", "tokens": datum.model_input.to_ints()}]},
        "loss_fn_inputs": {
            name: {
                "data": tensor.flatten().tolist(),
                "dtype": FLOAT if tensor.is_floating_point() else WHOLE,
                "shape": list(tensor.shape),
            }
            for name, tensor in inputs.items()
        },
    }


def tensors_of(output: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Return a datum's outputs as tensors.

    Raises:
        ValueError: its log probabilities are missing, so nothing could be said about the step.
    """
    if "logprobs" not in output:
        raise ValueError(f"the trainer job gave no log probabilities, but {', '.join(sorted(output)) or 'nothing'}")
    kinds = {FLOAT: torch.float32, WHOLE: torch.int64}
    return {
        name: torch.tensor(each["data"], dtype=kinds[each.get("dtype", FLOAT)]).reshape(each.get("shape") or [-1])
        for name, each in output.items()
    }
