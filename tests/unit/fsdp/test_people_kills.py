"""A process dies between any two writes of a person's update: book, ledger and checkpoint agree, and no step is lost or taken twice."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray
import torch.distributed as dist
from ray.exceptions import ActorDiedError

from groundwork.checkpoint_names import LATEST, PEOPLE
from groundwork.people import mark_of
from lab.testkit.ledger_records import judged_sample
from openclaw.ledger.samples import Samples
from openclaw.ledger.store import Ledger
from openclaw.owners import stored_id
from openclaw.training.rollout import LedgerDataSource
from slime.args import Arguments
from slime.backends.trainer import people as people_module
from slime.checkpoints import checkpoint_folder
from slime.exceptions import ManagerLostError, RankLostError
from slime.ray import run as run_module
from slime.ray.processes import RemoteManager
from slime.ray.reports import Reports
from slime.ray.run import Phase, Run
from slime.weight_sync.people import Book, Version, folder_of, people_folder
from tests.helpers.people_ranks import data_of, start, states
from tests.helpers.rollout_args import rollout_args
from tests.unit.ray.test_run_restart import NOWHERE, Remote, loop

pytestmark = pytest.mark.slow

PLAN = ["ann", "ben", "ann", "ben"]
"""Whose batch each rollout has."""
KILLED = 2
"""The rollout whose update a process does not survive: Ann's second, so an earlier version could come back."""
WRITES: dict[str, tuple[Any, str]] = {
    "the folder": (people_module, "keep"),
    "the checkpoint": (checkpoint_folder, "replace_folder"),
    "the ledger's samples": (Samples, "mark_trained"),
    "the newest checkpoint's number": (checkpoint_folder, "publish"),
    "the book": (people_module, "publish"),
    "the ledger's step": (Samples, "record_step"),
}
"""What an update writes, in this order."""
MOMENTS = ["the first write", *WRITES]
DURABLE = MOMENTS.index("the newest checkpoint's number")
BATCH = 2


class DriverKilledError(Exception):
    """Stands for SIGKILL of the driver, and so of everything."""


class Office:
    """A run of real parts in one process: a trainer's rank with everybody's adapters, and the ledger's data source."""

    def __init__(self, model: Path, folder: Path) -> None:
        self.model, self.folder = model, folder
        self.save = folder / "save"
        self.trained: list[int] = []
        self.manager_dead = False
        self.comes_to: Callable[[str], None] = lambda moment: None
        self.ledger = Ledger(self.save / "ledger.sqlite")

    def run(self, *, resume: bool) -> Run:
        """Return a run whose processes are up."""
        args = Arguments(
            **{"save": str(self.save), "save_interval": 1, "num_rollout": len(PLAN), "update_weights_interval": 1},
            **{"run_dir": str(self.folder), "adapter_per_person": True, "max_trainer_restarts": 2},
            **{"resume": resume, "load": str(self.save) if resume else None, "debug_train_only": False},
        )
        run = Run(args)
        run.processes.reserved = NOWHERE
        run.restarts.allow(args.save, args.max_trainer_restarts)
        run.life.to(Phase.STARTING)
        run._bring_up(args)
        run.life.to(Phase.UP)
        return run

    def manager(self, args: Arguments, reserved: Any) -> RemoteManager:
        self.manager_dead = False
        own = {"adapter_per_person": True, "save": str(self.save)}
        source = LedgerDataSource(rollout_args(self.folder, **own))

        def generate(rollout_id: int) -> dict[str, Any]:
            person = PLAN[rollout_id]
            assert len(source.ledger.samples.claim(rollout_id, BATCH, person=person)) == BATCH
            return {"shards": [rollout_id], "critic_shards": [], "metrics": {}, "person": person}

        return RemoteManager(
            SimpleNamespace(
                addresses=Remote(lambda: ActorDiedError() if self.manager_dead else {}),
                load=Remote(source.load),
                save=Remote(source.save),
                on_weights_live=Remote(source.weights_live),
                generate=Remote(generate),
                before_rollouts=Remote(lambda: None),
                recover_engines=Remote(lambda: 0),
                engine_handles=Remote(lambda: []),
                weights_arrived=Remote(lambda: None),
            )
        )

    def trainer(self, args: Arguments, reserved: Any, stop: Any = None) -> Any:
        return Trainer(self, args)

    # What is told, serves, and is on disk

    def told(self) -> dict[str, int]:
        """The version of each person in the ledger."""
        return {each: int(self.ledger.samples.live_weight_version(each) or 0) for each in PLAN}

    def served(self) -> dict[str, int]:
        """The version of each person in the book."""
        return {each: _number(Book(people_folder(self.folder)).serving(mark_of(each))) for each in PLAN}

    def durable(self) -> dict[str, int]:
        """The version of each person in the newest checkpoint."""
        newest = checkpoint_folder.find(self.save)
        named = json.loads((newest / "meta.json").read_text())[PEOPLE] if newest else {}
        return {each: _number(Version(named[mark], "") if (mark := mark_of(each)) in named else None) for each in PLAN}

    def steps(self) -> list[tuple[Any, ...]]:
        """The ledger's steps, those that were taken back, too: rollout, person, version, and when it was taken back."""
        rows = self.ledger.database.rows(
            "SELECT rollout_id, person, weight_version, undone_at FROM steps ORDER BY number"
        )
        return [tuple(row) for row in rows]

    def samples(self) -> list[tuple[Any, ...]]:
        """State, rollout and person of samples, with their number."""
        rows = self.ledger.database.rows(
            "SELECT state, rollout_id, person, COUNT(*) FROM samples GROUP BY state, rollout_id, person"
        )
        return [tuple(row) for row in rows]

    def check(self) -> None:
        """What the ledger has been told of serves, and what serves survives every process."""
        told, served, durable = self.told(), self.served(), self.durable()
        assert all(told[each] <= served[each] <= durable[each] for each in PLAN), (told, served, durable)


def _number(version: Version | None) -> int:
    return 0 if version is None else version.number


class Trainer:
    """A real rank, as the driver sees it."""

    def __init__(self, office: Office, args: Arguments) -> None:
        self._office, self._args = office, args

    def init(self) -> int:
        resumes = {"resume": self._args.resume, "load": self._args.load, "save": str(self._office.save)}
        self._own, self._actor = start(self._office.model, self._office.folder, **resumes)
        self.let_in, self.update_weights = self._actor.let_in, self._actor.update_weights
        self.save, self.publish = self._actor.save, self._actor.publish
        self._office.check()
        return int((self._office.save / LATEST).read_text()) if self._args.resume else 0

    def train(self, rollout_id: int, shards: list[Any], critic_shards: list[Any], passes: int = 1) -> dict[str, Any]:
        self._office.trained.append(rollout_id)
        metrics = self._actor.train(rollout_id, data_of(self._own, rollout_id))
        self._office.comes_to("the first write")
        return metrics

    def connect_rollout_engines(self, engines: list[Any]) -> None:
        pass

    def kill(self) -> None:
        dist.destroy_process_group()


@pytest.fixture
def office(tiny_random_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Office]:
    office = Office(tiny_random_model, tmp_path)

    def get(reference: Any) -> Any:
        if isinstance(reference, Exception):
            raise reference
        return reference

    monkeypatch.delenv("OPENCLAW_LEDGER", raising=False)
    monkeypatch.setattr(ray, "get", get)
    monkeypatch.setattr(ray, "wait", lambda references, timeout: (references, []))
    monkeypatch.setattr(run_module, "create_rollout_manager", office.manager)
    monkeypatch.setattr(run_module, "Trainer", office.trainer)
    monkeypatch.setattr(run_module, "POLL_SECONDS", 0.001)
    monkeypatch.setattr(Reports, "update", lambda *_: None)
    for what, (place, name) in WRITES.items():
        monkeypatch.setattr(place, name, watched(office, what, getattr(place, name)))
    for rollout_id, person in enumerate(PLAN):
        for number in range(BATCH):
            judged_sample(office.ledger, f"{person}-{rollout_id}-{number}", session_id=stored_id(person, "s"))
    yield office
    office.ledger.close()
    if dist.is_initialized():
        dist.destroy_process_group()


def watched(office: Office, what: str, write: Callable[..., Any]) -> Callable[..., Any]:
    def writes(*arguments: Any, **keywords: Any) -> Any:
        office.check()
        office.comes_to(what)
        return write(*arguments, **keywords)

    return writes


@pytest.fixture(scope="module")
def whole(tiny_random_model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """Everybody's state after a run that loses nothing."""
    folder = tmp_path_factory.mktemp("whole")
    args, actor = start(tiny_random_model, folder)
    for rollout_id, person in enumerate(PLAN):
        actor.let_in(mark_of(person))
        actor.train(rollout_id, data_of(args, rollout_id))
        actor.update_weights()
    actor.shutdown()
    return states(folder)


@pytest.mark.parametrize("killed", ["rank", "manager", "driver"])
@pytest.mark.parametrize(
    "moment", range(len(MOMENTS) + 1), ids=[*(f"before {each}" for each in MOMENTS), "in the next"]
)
def test_an_update_is_lost_before_it_serves_or_never(
    office: Office, whole: dict[str, list[str]], moment: int, killed: str
) -> None:
    ends = {
        "rank": RankLostError("a rank was killed", "save"),
        "manager": ManagerLostError("the manager was killed"),
        "driver": DriverKilledError(),
    }
    dies_at = KILLED * len(MOMENTS) + moment
    passed: list[str] = []

    def pass_or_die(now: str) -> None:
        passed.append(now)
        if len(passed) == dies_at + 1:
            office.manager_dead = killed == "manager"
            raise ends[killed]

    office.comes_to = pass_or_die
    run = office.run(resume=False)
    try:
        run.repeat(loop)
    except DriverKilledError:
        dist.destroy_process_group()
        office.run(resume=True).repeat(loop)
    assert passed[dies_at] == MOMENTS[moment % len(MOMENTS)]
    again = [KILLED] if moment <= DURABLE else [KILLED + 1] if moment == len(MOMENTS) else []
    assert office.trained == sorted([*range(len(PLAN)), *again])
    assert states(office.folder) == whole, "bit for bit"
    assert office.told() == office.served() == office.durable() == {"ann": 2, "ben": 2}
    assert office.steps() == [(number, PLAN[number], version, None) for number, version in enumerate("1122")]
    assert office.samples() == [("trained", number, person, BATCH) for number, person in enumerate(PLAN)]
    people = people_folder(office.folder)
    named = {folder_of(people, version.name) for versions in Book(people).lines().values() for version in versions}
    assert {folder for person in PLAN for folder in (people / mark_of(person)).iterdir()} == named


def test_the_writes_of_an_update_come_in_this_order(office: Office) -> None:
    order: list[str] = []
    office.comes_to = order.append
    office.run(resume=False).repeat(loop)
    assert order == [*MOMENTS] * len(PLAN)
