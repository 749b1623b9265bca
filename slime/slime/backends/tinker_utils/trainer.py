"""The trainer of ``--train-backend tinker``: the calls of `slime.ray.trainer.Trainer` on a training client of a service.

A checkpoint is a state that the service keeps, with weights, moments and, in its metadata, the last rollout that it contains. The
folder below ``--save`` holds its path, so that ledger and weights go on from one place: after a crash of either side no turn is lost
or trained twice. The state that refused steps go back to is the service's, too, for a day.

Guarantees: an accepted version answers the very next request, and replies that began go on with theirs. A step is taken whole or
counts as not taken. Nobody else's models or keys are looked at.
"""

from __future__ import annotations

import itertools
import json
import logging
import math
import secrets
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import ray
import torch

from groundwork.checkpoint_names import AT_SERVICE, META
from groundwork.exceptions import ConfigError
from groundwork.process import Stopped, StopRequested
from groundwork.processors import load_tokenizer
from slime.args import READ, Arguments, required
from slime.backends.tinker_utils.bridge import HOST, Bridge
from slime.backends.tinker_utils.datums import (
    Metrics,
    StepData,
    loss_config,
    rollout_metrics,
    step_data,
    step_metrics,
    with_advantages,
)
from slime.backends.tinker_utils.service import USED_NAME, AnySampler
from slime.backends.trainer.micro_batch import RolloutShard
from slime.backends.trainer.schedule import Schedule
from slime.checkpoints import checkpoint_folder
from slime.checkpoints.versions import superseded
from slime.exceptions import CheckpointError, RankLostError, SlimeError, TrainerError
from slime.observability.metric_utils import STEPS
from slime.utils.fuses import OF_THE_LOSS, blown
from slime.utils.metric_names import HELD
from slime.utils.probes import Answer, Probe
from slime.utils.run_logs import say
from slime.weight_sync import Sent
from slime.weight_sync.pushes import Versions

if TYPE_CHECKING:
    from tinker import TrainingClient

    from slime.backends.fireworks_utils.service import FireworksService
    from slime.backends.tinker_utils.service import Service
    from slime.weight_sync.remote_engine import RemoteEngine

logger = logging.getLogger(__name__)

POLL_SECONDS = 1.0
STOP_SECONDS = 60.0
"""How long a run that is told to stop waits for a step or a checkpoint."""
DAY, FRESH_SECONDS = 86_400, 3_600.0
"""How long the service keeps a state that only a refusal needs, and how old it may be when steps begin."""
T = TypeVar("T")
CURSOR = "rollout_id"


class StepRefusedError(TrainerError):
    """The service refuses what was sent, and would again."""


class Rented:
    """Owns what stands for engines: the service's connection, and the addresses at which it answers as the policy and as the judge."""

    def __init__(self, args: Arguments, service: Service | FireworksService) -> None:
        self._args = args
        self._resources = ExitStack()
        self.service = service

    def __enter__(self) -> Rented:
        """Connect, answer, and say what leaves this machine.

        Raises:
            ConfigError: as `Service`; or what the run may ask does not fit the model.
        """
        args, service = self._args, self.service
        with ExitStack() as started:
            started.enter_context(service)
            wanted = args.rollout_max_context_len
            if service.context is not None and wanted and wanted > service.context:
                raise ConfigError(
                    f"{service.model} has a context of {service.context} tokens at {service.address}; set CONTEXT_LENGTH={service.context}"
                )
            base = service.base(service.model)
            self.policy = started.enter_context(Bridge(load_tokenizer(str(args.hf_checkpoint)), base))
            judge = base if args.tinker_judge_model in (None, service.model) else service.base(args.tinker_judge_model)
            self._judge = started.enter_context(
                Bridge(load_tokenizer(str(args.prm_model_path or args.hf_checkpoint)), judge)
            )
            self._resources = started.pop_all()
        say(
            f"sends    prompts, replies, judge's questions and training data, as token ids, to {service.address}, which keeps "
            "the adapter; the ledger, keys and texts stay here"
        )
        return self

    def __exit__(self, *_: object) -> None:
        """Answer no more, close the connection, and say what was used."""
        self._resources.close()
        self.service.meter.keep()
        say(f"used     {self.service.meter.line()}")

    def trainer(self, args: Arguments, stop: StopRequested | None = None) -> TinkerTrainer:
        """Return a trainer, whose start is `TinkerTrainer.init`."""
        return TinkerTrainer(args, self, stop)

    def arguments(self, args: Arguments) -> Arguments:
        """Return the arguments of a run with the addresses of its engines."""
        policy = {"sglang_router_ip": HOST, "sglang_router_port": self.policy.port}
        judge = {"prm_router_ip": HOST, "prm_router_port": self._judge.port} if args.prm_enable else {}
        return args.changed(**policy, **judge)


class TinkerTrainer:
    """Owns a training client; the driver's main thread calls it. See `slime.ray.trainer.Trainer` for what the calls mean."""

    def __init__(self, args: Arguments, rented: Rented, stop: StopRequested | None = None) -> None:
        """``stop``: a signal, after which waits are bounded."""
        self._args, self._rented, self._service, self._stop = args, rented, rented.service, stop
        self._service.meter.keep_in(Path(args.run_dir, USED_NAME), goes_on=args.resume)
        self._client: TrainingClient | None = None
        self._schedule = Schedule.of_run(args)
        self._versions = Versions()
        self._serving: AnySampler | None = None
        self._candidate: AnySampler | None = None
        self._state: str | None = None
        """Path of a state with the current weights and moments; None if steps followed."""
        self._lapses: float | None = None
        """When this state is too old to begin steps on, in monotonic seconds; None if the service keeps it."""
        self._replaced: list[str] = []
        """Paths of states that no checkpoint names any more."""
        self._before: tuple[str, int, AnySampler | None] | None = None
        """The state to go back to, the steps that it has, and its sampler."""
        self._base: AnySampler | None = None
        self._torn = False
        self._names = map("{}-{}".format, itertools.repeat(secrets.token_hex(4)), itertools.count())

    # Start and end

    def init(self) -> int:
        """Create the adapter, or restore it with ``--resume`` or ``--load``; return the first rollout to train on."""
        args = self._args
        root = args.save if args.resume else args.load
        folder = checkpoint_folder.find(Path(root)) if root else None
        if folder is None:
            if root:
                raise CheckpointError(f"no checkpoint in {root}: start without --resume and --load")
            if args.tinker_start:
                self._go_to(args.tinker_start)
                return args.start_rollout_id or 0
            service: Any = self._service.client
            self._client = self._value(
                "create the adapter",
                lambda: service.create_lora_training_client(
                    self._service.model, rank=args.lora_rank, seed=args.seed, train_unembed=False
                ).result(),
            )
            return args.start_rollout_id or 0
        meta = self._load(folder)
        self._versions.load(meta)
        return int(meta[CURSOR]) + 1

    def _load(self, folder: Path) -> dict[str, Any]:
        meta = checkpoint_folder.read_meta(folder)
        if AT_SERVICE not in meta:
            raise CheckpointError(f"{folder} holds no state of a service; start in another folder, with --save")
        self._go_to(str(meta[AT_SERVICE]))
        self._schedule.load_state_dict(meta["schedule"], everything=self._args.use_checkpoint_lr_scheduler)
        self._serving = None
        return meta

    def _go_to(self, path: str, *, gradient: bool = True) -> None:
        """Train on from a state of the service.

        The model of before gets it, unless the service cannot do that or the model may hold a ``gradient``, which a new one has not.
        """
        self._torn = True
        load = None if gradient else getattr(self._client, "load_state_with_optimizer", None)
        if load is not None:
            self._value(f"restore {path}", lambda: load(path).result())
        else:
            create: Any = self._service.client.create_training_client_from_state_with_optimizer
            self._client = self._value(f"restore {path}", lambda: create(path).result())
        self._candidate, self._state, self._torn = None, path, False

    def shutdown(self) -> None:
        """Let go of the training client; what it saved stays."""
        self._client = None

    kill = shutdown

    # Steps

    def train(self, rollout_id: int, shards: list[Any], critic_shards: list[Any], passes: int = 1) -> dict[str, Any]:
        """Take the optimizer steps of a rollout, ``passes`` times ``--tinker-epochs``, and return the metrics."""
        began = time.monotonic()
        assert not critic_shards, "checked with the flags"
        [shard] = shards
        data = RolloutShard(ray.get(shard) if isinstance(shard, ray.ObjectRef) else shard)
        with_advantages(self._args, data, self._base_log_probs(data))
        own = self._before is None
        if own:
            self.take_snapshot()
        steps: list[Metrics] = []
        for number in [*range(len(data.micro_batches))] * passes * self._args.tinker_epochs:
            steps.append(self._step(step_data(self._args, data, number), data))
            if steps[-1]["skipped_steps"]:
                break
        if own:
            self.keep_steps()
        self._service.meter.keep()
        named = [{f"train/{name}": value for name, value in step.items()} for step in steps]
        names = dict.fromkeys(name for step in named for name in step)
        means = {name: statistics.fmean(step[name] for step in named if name in step) for name in names}
        seconds = {"perf/actor_train_time": time.monotonic() - began}
        return {STEPS: named, **means, **rollout_metrics(data), **self._service.meter.metrics(), **seconds}

    def _step(self, step: StepData, data: RolloutShard) -> Metrics:
        rate = self._schedule.lr()
        if not step.datums:
            return {"loss": 0.0, "lr-pg_0": rate, "skipped_steps": 0.0}
        self._torn, self._candidate, self._state = True, None, None
        loss = loss_config(self._args)
        self._service.train_tokens(step.tokens)

        def passed() -> Metrics:
            result = self._now.forward_backward(step.datums, self._args.tinker_loss, loss).result()
            of_tokens = step_metrics(self._args, data, step, result.loss_fn_outputs)
            return {"loss": float(result.metrics["loss:sum"]), **of_tokens}

        try:
            metrics = self._value("compute the gradient", passed)
            if not all(map(math.isfinite, metrics.values())):
                raise StepRefusedError("the service found a loss or a log probability that is not a finite number")
        except StepRefusedError as error:
            return self._without(error, rate)
        if self._args.fuses:
            if blown(self._args.fuses, {f"{OF_THE_LOSS}{name}": value for name, value in metrics.items()}) is not None:
                self._back()  # the gradient goes with it
                return {**metrics, "lr-pg_0": rate, "skipped_steps": 1.0, HELD: 1.0}
            metrics[HELD] = 0.0
        try:
            taken = self._value("take the step", lambda: self._now.optim_step(self._adam(rate)).result())
        except StepRefusedError as error:
            return self._without(error, rate)
        self._schedule.steps += 1
        self._versions.changed()
        self._torn = False
        norms = [value for name, value in (taken.metrics or {}).items() if name.partition(":")[0] == "grad_norm"]
        return {**metrics, **({"grad_norm": norms[0]} if norms else {}), "lr-pg_0": rate, "skipped_steps": 0.0}

    def _without(self, error: StepRefusedError, rate: float) -> Metrics:
        """Go back to before a batch that the service cannot take, as ranks skip a gradient that is not finite."""
        logger.error("the step is skipped: %s", error)
        say(f"warning: a step is skipped: {error}")
        self._back()
        return {"lr-pg_0": rate, "skipped_steps": 1.0}

    def _adam(self, rate: float) -> Any:
        from tinker import AdamParams

        args = self._args
        return AdamParams(
            learning_rate=rate,
            beta1=args.adam_beta1,
            beta2=args.adam_beta2,
            eps=args.adam_eps,
            weight_decay=args.weight_decay,
            grad_clip_norm=args.clip_grad or 0.0,
        )

    def _base_log_probs(self, data: RolloutShard) -> list[torch.Tensor] | None:
        """Return ``[R_i]`` of the model as it was, if the loss wants the policy to stay near it."""
        if not self._args.use_kl_loss or not self._args.kl_loss_coef:
            return None
        if self._base is None:
            self._base = self._value("show the base model", lambda: self._service.base(self._service.model))
        lengths = data.fields["response_lengths"]
        probes = [
            Probe(ids[: len(ids) - length], ids[len(ids) - length :])
            for ids, length in zip(data.tokens, lengths, strict=True)
        ]
        answers = self._asked("score with the base model", self._base, probes)
        return [torch.tensor(answer.log_probs) for answer in answers]

    @property
    def _now(self) -> TrainingClient:
        assert self._client is not None, "call init first"
        return self._client

    # Undoing steps

    def take_snapshot(self) -> None:
        """Have the service keep the state that a refusal goes back to."""
        if self._state is None or (self._lapses is not None and time.monotonic() > self._lapses):
            self._state = self._save_state(f"before-{next(self._names)}", ttl_seconds=DAY)
            self._lapses = time.monotonic() + FRESH_SECONDS
        self._before = (self._state, self._schedule.steps, self._candidate)
        self._versions.snapshot()

    def keep_steps(self) -> None:
        """Keep what was trained since `take_snapshot`."""
        self._before = None

    def undo_steps(self) -> None:
        """Go back to the state at `take_snapshot`; a no-op without one that is open."""
        if self._before is not None:
            if self._state != self._before[0]:  # else a fuse went back already
                self._back(gradient=False)
            self._before = None

    def _back(self, *, gradient: bool = True) -> None:
        assert self._before is not None
        path, self._schedule.steps, sampler = self._before
        self._go_to(path, gradient=gradient)
        self._candidate = sampler
        self._versions.undo()

    # Versions

    def versions(self) -> tuple[str, str]:
        """Return the version that serves, and the one that the current weights get."""
        return str(self._versions.live), str(self._versions.next())

    def ask(self, served: bool, probes: Sequence[Probe]) -> list[Answer]:
        """Return one answer per probe, with the weights that serve or with the trainer's."""
        sampler = self._serving if served and self._before is not None else self._current()
        assert sampler is not None, "weights serve before anybody asks"
        return self._asked("answer the gate's questions", sampler, probes)

    def _asked(self, what: str, sampler: AnySampler, probes: Sequence[Probe]) -> list[Answer]:
        return self._value(what, lambda: sampler.answers(probes))

    def _current(self) -> AnySampler:
        """Return the sampler of the trainer's weights."""
        if self._candidate is None:
            version = str(self._versions.next())
            client = self._value(
                "publish the weights", lambda: self._now.save_weights_and_get_sampling_client().result()
            )
            self._candidate = self._service.sampler(client, version)
        return self._candidate

    def connect_rollout_engines(self, engines: list[RemoteEngine]) -> None:
        """No-op: the bridge is there from the start."""

    def update_weights(self) -> str:
        """Let the current weights answer from now on, and return their version; while steps are undecided, those that serve stay."""
        if self._before is not None:
            return str(self._versions.live)
        sampler, version = self._current(), self._versions.next()
        self._value("let the weights serve", lambda: self._rented.policy.serve(sampler))
        self._serving = sampler
        self._versions.pushed(version)
        return str(version)

    def let_in(self, mark: str) -> str:
        """Refuse: there is one adapter."""
        raise TrainerError("a service trains one adapter for everybody; remove --adapter-per-person")

    def restore_person(self, mark: str, name: str | None) -> None:
        """Refuse: there is one adapter."""
        self.let_in(mark)

    def push_candidate(self) -> None:
        """Refuse: the service has no engine that could be first."""
        raise TrainerError("a service has no engine to try first; remove --canary-engine")

    def offer_candidate(self) -> Sent:
        """Refuse: the service has no engines that could be asked one by one."""
        raise TrainerError("a service has no engines of this run")

    def take_candidate_back(self) -> None:
        """Refuse: nobody has a candidate."""
        raise TrainerError("a service has no engines of this run")

    def options_read(self) -> frozenset[str]:
        """Return the names of the arguments that this process has read."""
        return frozenset(READ)

    def onload(self) -> None:
        """No-op: this machine holds no weights."""

    offload = onload

    # Checkpoints

    def save(self, rollout_id: int) -> str:
        """Have the service keep the state after ``rollout_id``, write where it is, and return the folder."""
        if self._torn or self._before is not None:
            raise CheckpointError(
                "a step was interrupted, or nobody decided about it, so there is nothing to save; the last checkpoint counts"
            )
        root, iteration = Path(required("--save", self._args.save)), rollout_id + 1
        steps = {"weight_version": str(self._versions.next()), CURSOR: str(rollout_id)}
        self._state = self._save_state(f"rollout-{iteration:07d}-{next(self._names)}", user_metadata=steps)
        self._lapses = None
        meta = {
            "role": "policy",
            CURSOR: rollout_id,
            AT_SERVICE: self._state,
            "schedule": self._schedule.state_dict(),
            "model": self._service.model,
            "address": self._service.address,
            "hf_checkpoint": str(self._args.hf_checkpoint),
            "lora": True,
            **self._versions.state(),
        }
        folder = checkpoint_folder.folder_of(root, iteration)
        if (folder / META).is_file():
            self._replaced.append(str(checkpoint_folder.read_meta(folder).get(AT_SERVICE, "")))
        temporary = checkpoint_folder.fresh_folder(folder)
        (temporary / "meta.json").write_text(json.dumps(meta, indent=2))
        checkpoint_folder.replace_folder(temporary, folder)
        return str(folder)

    def publish(self, rollout_id: int) -> None:
        """Mark the checkpoint of ``rollout_id`` as the latest and delete those beyond ``--save-keep``, at the service, too."""
        root, iteration = Path(required("--save", self._args.save)), rollout_id + 1
        old = superseded(root, iteration, self._args.save_keep)
        paths = [str(checkpoint_folder.read_meta(folder).get(AT_SERVICE, "")) for folder in old]
        checkpoint_folder.publish(root, iteration, old)
        paths, self._replaced = [*paths, *self._replaced], []
        for path in filter(None, paths):
            self._service.forget(path)

    def restore(self, iteration: int) -> None:
        """Go back to the run's checkpoint after ``iteration`` rollouts; a push gives its weights a new version."""
        self._load(checkpoint_folder.folder_of(Path(required("--save", self._args.save)), iteration))
        self._versions.changed()

    def _save_state(self, name: str, **keywords: Any) -> str:
        return self._value("save the state", lambda: self._now.save_state(name, **keywords).result()).path

    # Waiting

    def _value(self, what: str, ask: Callable[[], T]) -> T:
        """Return what ``ask`` returns, which waits for the service in a thread of its own.

        Raises:
            StepRefusedError: the service refuses what was sent, and would again.
            RankLostError: it fails in any other way, so that the run goes on from its last checkpoint.
            Stopped: a signal arrived, and no answer followed in `STOP_SECONDS`.
        """
        answer: Future[T] = Future()

        def work() -> None:
            try:
                answer.set_result(ask())
            except BaseException as error:  # noqa: BLE001 - the main thread raises it
                answer.set_exception(error)

        threading.Thread(target=work, name="service", daemon=True).start()
        told: float | None = None
        while not wait([answer], timeout=POLL_SECONDS).done:
            if self._stop:
                told = time.monotonic() if told is None else told
                if time.monotonic() - told >= STOP_SECONDS:
                    raise Stopped
        error = answer.exception()
        if error is None:
            return answer.result()
        if isinstance(error, SlimeError | ConfigError):
            raise error
        words = f"the service at {self._service.address} could not {what}: {type(error).__name__}: {error}."
        if is_refusal(error):
            raise StepRefusedError(words) from error
        raise RankLostError(words, what) from error


def is_refusal(error: BaseException) -> bool:
    """Return whether the service says that the request itself is at fault."""
    import tinker

    if isinstance(error, tinker.RequestFailedError):
        return str(getattr(error, "category", "")).lower().endswith("user")
    return isinstance(error, tinker.BadRequestError | tinker.UnprocessableEntityError)
