"""Runs the commands of all models, one at a time, in each model's order and fairly between models.

Guarantees: a command's result is in the log before anybody is told. After a kill of this process, or of a rank, each model is brought
to where its log is: its newest snapshot, and the commands after it once more, with the same data. A command that fails leaves
its model as it was; a step whose gradient is not whole because a pass failed is refused, and its gradient dropped. Saved weights
appear whole. A pass of an owner who has used up a quota fails before it computes anything; a repeated one was paid for. Owned by one
thread.
"""

from __future__ import annotations

import json
import logging
import math
import shutil
import threading
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from groundwork.people import mark_of
from groundwork.private_files import private_folder
from groundwork.process import Stopped
from openclaw.ledger.exceptions import UnknownRecordError
from openclaw.ledger.records import Tokens
from openclaw.tinker.log import NO_TOKENS, ClientModel, Command, CommandLog, Gradient, KeptWeights
from openclaw.tinker.requests import AdamParams, CreateModel, LoadWeights, OptimStep, SaveForSampler, SaveWeights, parse
from openclaw.tinker.wire import UserError, pass_result, read_pass
from slime.clients.models import (
    ATTENTION,
    HEAD,
    AdamSettings,
    DataError,
    Datum,
    ModelPlan,
    Passed,
    complete,
    tokens_with_loss,
)
from slime.exceptions import CheckpointError, LostError, TrainerError

logger = logging.getLogger(__name__)

CREATE, LOAD_MODEL, LOAD, PASS, STEP, SAVE, SAVE_FOR_SAMPLER, SAVE_ELSEWHERE = (
    "create_model",
    "load_model",
    "load_weights",
    "forward_backward",
    "optim_step",
    "save_weights",
    "save_weights_for_sampler",
    "save_weights_external",
)
CHANGING = (CREATE, LOAD_MODEL, LOAD, PASS, STEP)
"""Commands that change their model, and are repeated after its snapshot."""
USER, SERVER = "user", "server"
"""Whose fault a failure is."""
STREAK = 8
"""Commands of one model in a row while others wait."""
TRIES = 3
"""Of a command under which ranks died."""
IDLE_SECONDS = 0.5
SNAPSHOT_BYTES = 256 << 20
"""Of bodies after which a model's state is written, whatever its steps."""
KEPT_ADAPTERS = 16
"""Adapters without a name that can be sampled from, for each model."""


class Machine(Protocol):
    """What computes (`slime.ray.clients.ClientMachine`)."""

    vocabulary: int

    def create(self, model: str, plan: ModelPlan) -> None:
        """Begin a model as exactly the base."""
        ...

    def drop(self, model: str) -> None:
        """Forget a model; a no-op if there is none."""
        ...

    def forward_backward(self, model: str, data: Sequence[Datum], loss: str, forward_only: bool) -> Passed:
        """Add the gradient of a loss on ``data``, unless ``forward_only``."""
        ...

    def optimizer_step(self, model: str, adam: AdamSettings) -> float:
        """Take a step; return the gradient's norm, which is not finite if none was taken."""
        ...

    def drop_gradient(self, model: str) -> None:
        """Forget the gradient so far."""
        ...

    def write(self, model: str, folder: Path) -> None:
        """Write all that belongs to a model to ``folder``."""
        ...

    def read(self, model: str, folder: Path, what: str = "everything") -> ModelPlan:
        """Begin a model as a folder says."""
        ...

    def export(self, model: str, version: int) -> str:
        """Write a model's adapter to where engines read it, and return its name."""
        ...

    def adapters(self) -> Sequence[str]:
        """Return the names of the adapters that engines may read."""
        ...

    def place_of(self, adapter: str) -> Path:
        """Return the folder of an adapter."""
        ...

    def begin_again(self) -> None:
        """Start new ranks without models."""
        ...


@dataclass(frozen=True)
class Offer:
    """What the server offers.

    Attributes:
        name: of the base model.
        tokenizer: by which clients load its tokenizer.
        architecture: of the model.
        context: most tokens of a sequence.
        rank: highest rank of an adapter.
        modules: linear layers that have one.
        folder: of the server's files.
        snapshot_steps: steps after which a model's state is written.
        most_models: that are trained at a time.
    """

    name: str
    tokenizer: str
    architecture: str
    context: int
    rank: int
    modules: Sequence[str]
    folder: Path
    snapshot_steps: int = 8
    most_models: int = 64


@dataclass
class _Trained:
    """A model on the ranks.

    Attributes:
        broken: why its gradient is not whole.
        steps: since its snapshot.
        bytes: of the bodies since then.
        lost: why its state is.
    """

    broken: str | None = None
    steps: int = 0
    bytes: int = 0
    lost: str | None = None


@dataclass
class Outcome:
    """What a command gave: its result as it is sent, and what the log notes besides (`CommandLog.finish`)."""

    result: bytes
    facts: Mapping[str, Any] | None = None
    kept: KeptWeights | None = None
    snapshot: bool = False
    spent: Tokens = NO_TOKENS
    with_loss: int = 0
    gradient: Gradient | None = None


class Desk:
    """Owns the models on ``machine``. :meth:`run` is the thread's; :meth:`wake` and :meth:`stop` are everybody's.

    Attributes:
        offer: what the server offers.
        on_done: called in the thread with the id of each command that has a result.
    """

    def __init__(
        self,
        log: CommandLog,
        machine: Machine,
        offer: Offer,
        on_done: Callable[[str], None] = lambda identity: None,
        clock: Callable[[], float] = time.time,
        check_quota: Callable[[str], None] = lambda owner: None,
    ) -> None:
        """Run the commands of ``log`` on ``machine``; nothing runs before :meth:`run`.

        ``check_quota`` raises UserError if an owner has used up a quota.
        """
        self._log, self._machine, self.offer, self.on_done, self._clock = log, machine, offer, on_done, clock
        self._check_quota = check_quota
        self._models: dict[str, _Trained] = {}
        self._began = self._restored = False
        """Whether the ranks had models before, and have them as the log says."""
        self._awake, self._stopping, self._untidy = threading.Event(), threading.Event(), threading.Event()
        self._kinds: dict[str, Callable[[Command], Outcome]] = {
            CREATE: self._create,
            LOAD_MODEL: self._load_model,
            LOAD: self._load,
            PASS: self._pass,
            STEP: self._step,
            SAVE: self._save,
            SAVE_FOR_SAMPLER: self._save_for_sampler,
            SAVE_ELSEWHERE: self._save_elsewhere,
        }

    # The thread

    def run(self) -> None:
        """Run commands until :meth:`stop`, then write the state of every model."""
        last, streak = "", 0
        with suppress(Stopped):
            self._restore_all()
            while not self._stopping.is_set():
                self._awake.clear()
                self._let_go_of_ended()
                waiting = self._log.next_commands()
                if not waiting:
                    self._awake.wait(IDLE_SECONDS)
                    continue
                again = [command for command in waiting if command.model == last]
                others = [command for command in waiting if command.model != last]
                command = again[0] if again and (streak < STREAK or not others) else others[0]
                streak = streak + 1 if command.model == last else 1
                last = command.model
                self._run(self._log.whole(command))
        for name, model in self._models.items() if self._restored else ():
            if model.steps and model.broken is None and model.lost is None:
                self._snapshot(name)

    def wake(self) -> None:
        """Tell the thread that there is a command."""
        self._awake.set()

    def stop(self) -> None:
        """Let :meth:`run` end after its command."""
        self._stopping.set()
        self._awake.set()

    def tidy(self) -> None:
        """Let the thread forget models of ended sessions, and delete what nothing names any more."""
        self._untidy.set()
        self.wake()

    def _let_go_of_ended(self) -> None:
        """Forget models of ended sessions, and delete folders that the log does not name.

        Here, because the thread that makes folders is the one that deletes them.
        """
        if not self._untidy.is_set():
            return
        self._untidy.clear()
        live = {model.id for model in self._log.live_models()}
        try:
            for model in self._models.keys() - live:
                self._machine.drop(model)
                del self._models[model]
        except TrainerError:
            logger.exception("a training rank failed; all models are restored")
            self._restored = False
        kept, adapters = self._log.places()
        for adapter in set(self._machine.adapters()) - adapters:
            shutil.rmtree(self._machine.place_of(adapter), ignore_errors=True)
        marks = {mark_of(model) for model in live}
        snapshots = [each for each in _folders(self.offer.folder / "snapshots") if each.name not in marks]
        weights = [each for model in _folders(self.offer.folder / "weights") for each in _folders(model)]
        for folder in [*snapshots, *(each for each in weights if str(each) not in kept)]:
            shutil.rmtree(folder, ignore_errors=True)

    def _run(self, command: Command) -> None:
        """Run a command and record what it gave."""
        for attempt in range(1, TRIES + 1):
            self._restore_all()
            try:
                if command.kind == PASS:
                    self._check_quota(self._log.owner_of(command.model))
                outcome = self._kinds[command.kind](command)
                break
            except (UserError, DataError) as error:
                self._fail(command, USER, str(error))
                return
            except LostError as error:
                logger.exception("a training rank died (attempt %d)", attempt)
                self._restored = False
                if attempt == TRIES:
                    self._fail(command, SERVER, f"the training ranks died {TRIES} times under this request: {error}")
                    return
            except Stopped:
                raise
            except Exception as error:
                logger.exception("%s of %s failed", command.kind, command.model)
                self._restored = self._restored and not isinstance(error, TrainerError)  # ranks may be out of step
                self._fail(command, SERVER, f"{type(error).__name__}: {error}")
                return
        else:
            raise AssertionError("the last attempt returns")
        model = self._models[command.model]
        repeated = _changes(command)
        model.bytes += len(command.body or b"") if repeated else 0
        self._log.finish(
            command,
            outcome.result,
            facts=outcome.facts,
            kept=outcome.kept,
            repeated=repeated,
            spent=outcome.spent,
            with_loss=outcome.with_loss,
            gradient=outcome.gradient,
        )
        self.on_done(command.id)
        if outcome.snapshot or model.steps >= self.offer.snapshot_steps or model.bytes > SNAPSHOT_BYTES:
            self._snapshot(command.model, command.number)

    def _fail(self, command: Command, category: str, reason: str) -> None:
        """Record why a command failed; a failed pass or step leaves what :meth:`_failed_before` says."""
        body = json.dumps({"error": reason, "category": category}).encode()
        self._log.finish(command, body, failed=True, gradient="dropped" if command.kind == STEP else None)
        if self._restored and (model := self._models.get(command.model)) is not None:
            try:
                self._failed_before(command, model, reason)
            except TrainerError:
                logger.exception("a training rank failed; all models are restored")
                self._restored = False
        self.on_done(command.id)

    def _failed_before(self, command: Command, model: _Trained, reason: str) -> None:
        """Do to a model what a failed command leaves: no whole gradient after a pass, none after a step."""
        if command.kind == PASS and _changes(command):
            model.broken = reason
        elif command.kind == STEP:
            model.broken = None
            self._machine.drop_gradient(command.model)

    # State

    def _snapshots(self, model: str) -> Path:
        return self.offer.folder / "snapshots" / mark_of(model)

    def _snapshot(self, name: str, number: int | None = None) -> None:
        """Write a model's state after the command ``number``; None: the last one that ran."""
        if number is None:
            number = next(model.next for model in self._log.live_models() if model.id == name) - 1
        folder = self._snapshots(name)
        try:
            private_folder(folder)
            self._machine.write(name, folder / str(number))
        except (CheckpointError, OSError):
            logger.exception("the state of %s could not be written; its commands stay in the log", name)
            return
        except TrainerError:
            logger.exception("a training rank failed; all models are restored")
            self._restored = False
            return
        self._log.snapshot(name, number, str(folder / str(number)))
        self._models[name].steps = self._models[name].bytes = 0
        for old in folder.iterdir():
            if old.name != str(number):
                shutil.rmtree(old, ignore_errors=True)

    def _restore_all(self) -> None:
        """Bring every model to where its log is, unless they are there; on new ranks, again if these die meanwhile.

        Raises:
            LostError: ranks died `TRIES` times.
        """
        for attempt in range(1, TRIES + 1):
            if self._restored:
                return
            try:
                if self._began:
                    self._machine.begin_again()
                self._began = True
                self._models.clear()
                for model in self._log.live_models():
                    self._restore(model, last=attempt == TRIES)
                self._restored = True
            except TrainerError:
                logger.exception("a training rank failed while models were restored (attempt %d)", attempt)
                if attempt == TRIES:
                    raise

    def _restore(self, model: ClientModel, *, last: bool) -> None:
        """Bring a model to where its log is; ``last``: what fails once more makes it lost, so that the others go on."""
        self._models[model.id] = _Trained()
        try:
            if model.snapshot is not None:
                self._machine.read(model.id, Path(model.snapshot))
            for number in self._log.after_snapshot(model):
                command = self._log.whole(self._log.numbered(model.id, number))
                if command.body is None or not _changes(command):
                    continue
                if command.state == "done":
                    self._kinds[command.kind](command)
                else:
                    reason = json.loads(command.result or b"{}").get("error", "an earlier request failed")
                    self._failed_before(command, self._models[model.id], reason)
        except Exception as error:
            if isinstance(error, LostError | Stopped) or (isinstance(error, TrainerError) and not last):
                raise
            logger.exception("the state of %s is lost", model.id)
            lost = f"the server could not restore this model ({error}); create one from its saved weights"
            self._models[model.id].lost = lost

    def _trained(self, command: Command) -> _Trained:
        """Return a command's model.

        Raises:
            UserError: it is not there, or its state is lost.
        """
        model = self._models.get(command.model)
        if model is None:
            raise UserError("this model was never created, or its session has ended; create one from its saved weights")
        if model.lost is not None:
            raise UserError(model.lost)
        return model

    # Commands

    def _create(self, command: Command) -> Outcome:
        asked = parse(CreateModel, command.body or b"")
        self._check_base(asked.base_model)
        _check_optimizer(asked.optimizer_config.type)
        self._check_room(command.model)
        if asked.lora_config is None:
            raise UserError("this server trains adapters alone; send lora_config")
        lora = asked.lora_config
        if lora.rank > self.offer.rank:
            raise UserError(
                f"lora_config.rank {lora.rank}: this server has adapters up to rank {self.offer.rank}; ask for less, or start it "
                f"with --lora-rank {lora.rank}"
            )
        wanted = {
            module: lora.train_attn if module in ATTENTION else lora.train_unembed if module == HEAD else lora.train_mlp
            for module in self.offer.modules
        }
        modules = tuple(module for module, wants in wanted.items() if wants)
        if not modules:
            raise UserError(f"lora_config trains nothing that has an adapter here: {', '.join(self.offer.modules)}")
        seed = lora.seed if lora.seed is not None else zlib.crc32(command.model.encode())
        plan = ModelPlan(lora.rank, seed, modules)
        self._machine.create(command.model, plan)
        self._models[command.model] = _Trained()
        facts = self._facts(plan, asked.user_metadata)
        return Outcome(_json({"model_id": command.model, "type": CREATE}), facts)

    def _facts(self, plan: ModelPlan, metadata: Mapping[str, Any] | None) -> dict[str, Any]:
        return {"base_model": self.offer.name, "plan": plan.as_json(), "user_metadata": metadata or None}

    def _load_model(self, command: Command) -> Outcome:
        asked = parse(LoadWeights, command.body or b"")
        if asked.base_model is not None:
            self._check_base(asked.base_model)
        if asked.optimizer_config is not None:
            _check_optimizer(asked.optimizer_config.type)
        self._check_room(command.model)
        plan = self._read(command, asked)
        self._models[command.model] = _Trained()
        result = _json({"path": asked.path, "model_id": command.model, "type": LOAD})
        return Outcome(result, self._facts(plan, asked.user_metadata), snapshot=True)

    def _load(self, command: Command) -> Outcome:
        asked = parse(LoadWeights, command.body or b"")
        self._trained(command)
        plan = self._read(command, asked)
        self._models[command.model] = _Trained()
        result = _json({"path": asked.path, "model_id": command.model, "type": LOAD})
        return Outcome(result, self._facts(plan, None), snapshot=True, gradient="dropped")

    def _read(self, command: Command, asked: LoadWeights) -> ModelPlan:
        owner = self._log.owner_of(command.model)
        try:
            kept = self._log.weights(asked.path, owner)
        except UnknownRecordError as error:
            raise UserError(f"{error}; they may have expired, or be another user's") from error
        if kept.kind != "training":
            raise UserError(f"{asked.path} are weights for sampling; load what save_state saved")
        try:
            return self._machine.read(command.model, Path(kept.place), "training" if asked.optimizer else "weights")
        except CheckpointError as error:
            raise UserError(str(error)) from error

    def _check_base(self, name: str) -> None:
        if name != self.offer.name:
            raise UserError(f"base_model {name!r}: this server has {self.offer.name!r}")

    def _check_room(self, model: str) -> None:
        if model not in self._models and len(self._models) >= self.offer.most_models:
            raise UserError(
                f"{len(self._models)} models are trained here, the server's limit; end a session, or start the server with a "
                "higher --most-models"
            )

    def _pass(self, command: Command) -> Outcome:
        self._trained(command)
        asked = read_pass(command.body or b"")
        offer = self.offer
        data = complete(
            asked.data(), asked.loss, asked.settings, vocabulary=self._machine.vocabulary, context=offer.context
        )
        passed = self._machine.forward_backward(command.model, data, asked.loss, asked.forward_only)
        if asked.forward_only:
            return Outcome(pass_result(passed), spent=Tokens(prefill=sum(len(datum.tokens) for datum in data)))
        return Outcome(pass_result(passed), with_loss=tokens_with_loss(asked.loss, data))

    def _step(self, command: Command) -> Outcome:
        model = self._trained(command)
        asked = parse(OptimStep, command.body or b"")
        if asked.optimizer_params is not None:
            _check_optimizer(str(asked.optimizer_params.get("type")))
        adam = asked.adam_params or AdamParams()
        settings = AdamSettings(
            *(adam.learning_rate, adam.beta1, adam.beta2, adam.eps, adam.weight_decay, adam.grad_clip_norm)
        )
        if model.broken is not None:
            raise UserError(
                f"no step was taken, because a pass before it failed ({model.broken}); its gradient was dropped, so send the "
                "passes again"
            )
        norm = self._machine.optimizer_step(command.model, settings)
        if not math.isfinite(norm):
            raise UserError(
                f"no step was taken, because the gradient's norm is {norm}; look for infinite weights or advantages"
            )
        model.steps += 1
        return Outcome(_json({"metrics": {"grad_norm:mean": norm}}), gradient="used")

    def _save(self, command: Command) -> Outcome:
        self._trained(command)
        asked = parse(SaveWeights, command.body or b"")
        name = asked.path or f"{command.number:06d}"
        path = f"tinker://{command.model}/weights/{name}"
        self._check_new(path, command, asked.overwrite)
        folder = self.offer.folder / "weights" / mark_of(command.model)
        private_folder(folder)
        place = folder / f"{command.number:06d}"  # no name of a program's, which might end as our temporary folders do
        self._machine.write(command.model, place)
        kept = self._kept(path, command, "training", str(place), asked)
        return Outcome(_json({"path": path, "type": SAVE}), kept=kept)

    def _save_for_sampler(self, command: Command) -> Outcome:
        self._trained(command)
        asked = parse(SaveForSampler, command.body or b"")
        if asked.kind != "snapshot":
            raise UserError("kind 'inflight' is not offered here; use 'snapshot', the default")
        if asked.path is None and asked.sampling_session_seq_id is not None:
            adapter = self._machine.export(command.model, command.number)
            session = self._log.session_of(command.model)
            sampler = sampler_id(session, asked.sampling_session_seq_id)
            owner = self._log.owner_of(command.model)
            self._log.add_sampler(sampler, owner, session, None, adapter, model=command.model, most=KEPT_ADAPTERS)
            return Outcome(_json({"sampling_session_id": sampler, "type": SAVE_FOR_SAMPLER}))
        name = asked.path or f"{command.number:06d}"
        path = f"tinker://{command.model}/sampler_weights/{name}"
        self._check_new(path, command, True)
        adapter = self._machine.export(command.model, command.number)
        kept = self._kept(path, command, "sampler", adapter, asked)
        return Outcome(_json({"path": path, "type": SAVE_FOR_SAMPLER}), kept=kept)

    def _save_elsewhere(self, command: Command) -> Outcome:
        raise UserError("weights are not saved elsewhere by this server; use save_state or save_weights_for_sampler")

    def _check_new(self, path: str, command: Command, overwrite: bool) -> None:
        if not overwrite and any(each.path == path for each in self._log.all_weights(model=command.model)):
            raise UserError(f"{path} exists; choose another name, or send overwrite")

    def _kept(self, path: str, command: Command, kind: str, place: str, asked: SaveWeights) -> KeptWeights:
        now = self._clock()
        facts = {**self._log.facts_of(command.model), "user_metadata": asked.user_metadata}
        expires = None if asked.ttl_seconds is None else now + asked.ttl_seconds
        return KeptWeights(path, self._log.owner_of(command.model), command.model, kind, place, facts, now, expires)


def _folders(place: Path) -> list[Path]:
    return [each for each in place.iterdir() if each.is_dir()] if place.is_dir() else []


def _changes(command: Command) -> bool:
    """Return whether a command may change its model."""
    return command.kind in CHANGING and not (command.kind == PASS and read_pass(command.body or b"").forward_only)


def sampler_id(session: str, number: int) -> str:
    """Return the id of a session's sampling session."""
    return f"{session}:sample:{number}"


def model_id(session: str, number: int) -> str:
    """Return the id of a session's model, which clients compute, too."""
    return f"{session}:train:{number}"


def _check_optimizer(kind: str) -> None:
    if kind != "adamw":
        raise UserError(f"the optimizer {kind!r} is not offered here; use adamw, the default")


def _json(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value).encode()
