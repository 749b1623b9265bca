"""The engines and training ranks behind models that programs train: started together, and asked one command after another.

Guarantees: whatever starts ends with the context. A folder that a command writes appears by rename, whole or not at all. After
:class:`~slime.exceptions.RankLostError` the ranks have no model; `ClientMachine.begin_again` starts new ones.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import ray
from ray import ObjectRef

from groundwork.exceptions import ConfigError
from groundwork.people import mark_of
from groundwork.private_files import private_folder, private_run_folder
from groundwork.process import StopRequested
from slime.args import Arguments, required
from slime.arguments.dry_run import missing_at_start
from slime.arguments.placement import describe_placement
from slime.checkpoints.checkpoint_folder import fresh_folder, replace_folder
from slime.clients.models import AdamSettings, Datum, ModelPlan, Passed
from slime.exceptions import CheckpointError, TrainerError
from slime.ray.cluster import ray_cluster
from slime.ray.engine_group import engine_groups
from slime.ray.engine_pool import EnginePool
from slime.ray.placement import ReservedPlacement, create_placement, release_placement
from slime.ray.save_lock import own_folder
from slime.ray.trainer import RemoteRank, TrainGroup
from slime.utils.run_logs import begin_logs
from slime.weight_sync import maker
from slime.weight_sync.adapter import PUSHES
from slime.weight_sync.people import adapter_name, folder_of, people_folder

CLASS = "slime.clients.rank.ClientRank"


@dataclass(frozen=True)
class RemoteClientRank(RemoteRank):
    """Handle of a rank of programs' models (`slime.clients.rank.ClientRank`)."""

    def create(self, model: str, plan: ModelPlan) -> ObjectRef[None]:
        return self.actor.create.remote(model, plan)

    def drop(self, model: str) -> ObjectRef[None]:
        return self.actor.drop.remote(model)

    def forward_backward(
        self, model: str, data: ObjectRef[list[Datum]], loss: str, forward_only: bool
    ) -> ObjectRef[Passed]:
        return self.actor.forward_backward.remote(model, data, loss, forward_only)

    def optimizer_step(self, model: str, adam: AdamSettings) -> ObjectRef[float]:
        return self.actor.optimizer_step.remote(model, adam)

    def drop_gradient(self, model: str) -> ObjectRef[None]:
        return self.actor.drop_gradient.remote(model)

    def write(self, model: str, folder: str) -> ObjectRef[None]:
        return self.actor.write.remote(model, folder)

    def read(self, model: str, folder: str, what: str) -> ObjectRef[ModelPlan]:
        return self.actor.read.remote(model, folder, what)

    def export(self, model: str, folder: str) -> ObjectRef[None]:
        return self.actor.export.remote(model, folder)


class ClientMachine:
    """Owns engines and ranks; entering starts them. The methods are called one at a time.

    Attributes:
        vocabulary: number of token ids that the model has.
        context: most tokens of a sequence.
        architecture: of the model.
        engines: URL at which engines answer.
    """

    vocabulary: int
    context: int
    architecture: str
    engines: str
    _ranks: TrainGroup[RemoteClientRank]
    _reserved: ReservedPlacement

    def __init__(self, args: Arguments, stop: StopRequested) -> None:
        """``stop``: a signal that ends waits."""
        self._args, self._stop = args, stop
        self._resources = contextlib.ExitStack()

    def __enter__(self) -> ClientMachine:
        """Start the cluster, engines and ranks."""
        args = self._args
        if missing := missing_at_start(args):
            raise ConfigError("; ".join(missing))
        config = json.loads((Path(str(args.hf_checkpoint)) / "config.json").read_text())
        self.architecture = str((config.get("architectures") or ["unknown"])[0])
        longest = int(config.get("text_config", config).get("max_position_embeddings", args.max_tokens_per_gpu))
        self.context = min(longest, required("--max-tokens-per-gpu", args.max_tokens_per_gpu) - 1)
        if args.sglang_context_length:
            self.context = min(self.context, int(args.sglang_context_length))
        try:
            private_run_folder(Path(args.run_dir))
            self._resources.enter_context(own_folder("--run-dir", Path(args.run_dir), args))
            begin_logs(Path(args.run_dir), resumes=True)
            self._start()
        except BaseException:
            self._resources.close()
            raise
        return self

    def _start(self) -> None:
        args, resources = self._args, self._resources
        private_folder(people_folder(args.run_dir))
        num_gpus = args.num_gpus or describe_placement(args).total
        resources.enter_context(ray_cluster(args, num_gpus=num_gpus, stop=self._stop))
        self._stop.install()  # again, because Ray replaced the handlers
        self._reserved = create_placement(args, self._stop)
        resources.callback(release_placement, self._reserved)
        pool = EnginePool(args, engine_groups(args, self._reserved))
        resources.callback(pool.stop)
        resources.callback(pool.close)
        pool.start(self._reserved.placement)
        pool.watch()
        self.engines = pool.addresses()["policy"]
        self._start_ranks()
        resources.callback(self._end_ranks)

    def _start_ranks(self) -> None:
        self._ranks = TrainGroup(self._args, self._reserved, RemoteClientRank, CLASS, self._stop)
        self.vocabulary = self._ranks.init()

    def _end_ranks(self) -> None:
        self._ranks.shutdown()

    def begin_again(self) -> None:
        """End what is left of the ranks, and start new ones without models."""
        self._ranks.kill()
        self._start_ranks()

    def __exit__(self, kind: type | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        """End everything."""
        self._resources.close()

    # Models, see `slime.clients.rank`

    def create(self, model: str, plan: ModelPlan) -> None:
        """Begin a model as exactly the base."""
        self._ranks.call(RemoteClientRank.create, model, plan)

    def drop(self, model: str) -> None:
        """Forget a model; a no-op if there is none."""
        self._ranks.call(RemoteClientRank.drop, model)

    def forward_backward(self, model: str, data: Sequence[Datum], loss: str, forward_only: bool) -> Passed:
        """Add the gradient of a loss on ``data`` (`slime.clients.models.complete`), unless ``forward_only``."""
        there = ray.put(list(data))
        return self._ranks.call(RemoteClientRank.forward_backward, model, there, loss, forward_only)[0]

    def optimizer_step(self, model: str, adam: AdamSettings) -> float:
        """Take a step; return the gradient's norm, which is not finite if none was taken."""
        return self._ranks.call(RemoteClientRank.optimizer_step, model, adam)[0]

    def drop_gradient(self, model: str) -> None:
        """Forget the gradient so far."""
        self._ranks.call(RemoteClientRank.drop_gradient, model)

    def write(self, model: str, folder: Path) -> None:
        """Write all that belongs to a model to ``folder``, in place of an earlier one."""
        temporary = fresh_folder(folder)
        with _own_errors():
            self._ranks.call(RemoteClientRank.write, model, str(temporary))
        for file in temporary.iterdir():  # the log counts on it, also after a power cut
            with file.open("rb") as written:
                os.fsync(written.fileno())
        replace_folder(temporary, folder)

    def read(self, model: str, folder: Path, what: str = "everything") -> ModelPlan:
        """Begin a model as a folder says; see `slime.clients.rank.ClientRank.read`."""
        with _own_errors():
            return self._ranks.call(RemoteClientRank.read, model, str(folder), what)[0]

    def export(self, model: str, version: int) -> str:
        """Write a model's adapter to where engines read it, and return its name for requests."""
        name = adapter_name(version, maker(self._args), next(PUSHES), mark_of(model))
        folder = self.place_of(name)
        temporary = fresh_folder(folder)
        self._ranks.call(RemoteClientRank.export, model, str(temporary))
        replace_folder(temporary, folder)
        return name

    def adapters(self) -> list[str]:
        """Return the names of the adapters that engines may read."""
        folders = people_folder(self._args.run_dir).glob("*/*-*")
        parts = [(each.parent.name, *each.name.partition("-")[::2]) for each in folders if each.suffix == ""]
        return [adapter_name(int(version), maker(self._args), int(push), mark) for mark, version, push in parts]

    def place_of(self, adapter: str) -> Path:
        """Return the folder of an adapter by its name."""
        return folder_of(people_folder(self._args.run_dir), adapter)


@contextlib.contextmanager
def _own_errors() -> Iterator[None]:
    """Raise what all ranks agree that a folder has, instead of the error that says which rank met it."""
    try:
        yield
    except TrainerError as error:
        cause = getattr(error.__cause__, "cause", None)
        if isinstance(cause, CheckpointError):
            raise cause from error
        raise
