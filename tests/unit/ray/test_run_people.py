"""The driver with an adapter for each person: whose is trained, whose version is told, and going back of one person."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from groundwork.paused import paused, paused_people
from groundwork.people import mark_of
from slime.exceptions import PluginError, RankLostError
from slime.observability.metric_utils import STEPS
from slime.ray import run as run_module
from slime.ray.run import Run
from slime.rollout.foreign_data_source import with_optional_methods
from slime.updates.rollback import NAME, ask_rollback, asked_rollback, asked_rollbacks
from slime.utils.metric_names import RECENT_ENTROPY, STEPS_OF_ENTROPY
from slime.weight_sync.people import WEIGHTS, adapter_name, folder_of, people_folder, publish
from tests.unit.ray import test_run_restart
from tests.unit.ray.test_run_restart import Remote, World, loop, world

__all__ = ["world"]  # a fixture

PEOPLE = ["ann", "ben", "ann", ""]
"""Whose batch each rollout has; the last one is of the person without a name."""


class Trainer(test_run_restart.Trainer):
    """Has a version for each person."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.mark = ""
        self.numbers: dict[str, int] = {}

    def let_in(self, mark: str) -> str:
        self._do(f"let in {mark}")
        self.mark = mark
        return str(self.numbers.get(mark, 0))

    def restore_person(self, mark: str, name: str | None) -> None:
        self.mark = mark
        self._do(f"restore {mark} to {name}")
        self.numbers[mark] += 1

    def train(self, rollout_id: int, shards: list[Any], critic_shards: list[Any], passes: int = 1) -> dict[str, Any]:
        self.numbers[self.mark] = self.numbers.get(self.mark, 0) + 1
        return super().train(rollout_id, shards, critic_shards, passes)

    def update_weights(self) -> str:
        self._do(f"publish of {self.mark}")
        return str(self.numbers.get(self.mark, 0))


def make_run(world: World, monkeypatch: pytest.MonkeyPatch, **values: Any) -> Run:
    monkeypatch.setattr(run_module, "POLL_SECONDS", 0.001)
    monkeypatch.setattr(world, "trainer", lambda args, *_: make_trainer(world, args))
    monkeypatch.setattr(run_module, "Trainer", world.trainer)
    run = test_run_restart.make_run(world, interval=1, adapter_per_person=True, **values)
    manager: Any = run.processes.manager._actor
    monkeypatch.setattr(manager, "generate", Remote(batch))
    words = Remote(lambda *of: world.log.append(" ".join(["went back", *of])))
    monkeypatch.setattr(manager, "on_person_restored", words, raising=False)
    return run


def make_trainer(world: World, args: Any) -> Trainer:
    world.made["trainer"] += 1
    return Trainer(world, args, f"trainer {world.made['trainer']}")


def batch(rollout_id: int) -> dict[str, Any]:
    person = PEOPLE[rollout_id]
    return {"shards": [f"batch {rollout_id}"], "critic_shards": [], "metrics": {}, "person": person}


def version(run_dir: Path, number: int, person: str) -> str:
    """Publish a version of a person and return its name."""
    name = adapter_name(number, "0123abcd", 100 + number, mark_of(person))
    folder = folder_of(people_folder(run_dir), name)
    folder.mkdir(parents=True)
    (folder / WEIGHTS).write_bytes(b"weights")
    publish(run_dir, name)
    return name


def test_each_batch_trains_its_person_whose_version_is_told(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(world, monkeypatch)
    run.repeat(loop)
    marks = [mark_of(person) for person in PEOPLE]
    assert [line.rpartition(" ")[2] for line in world.log if "let in" in line][::2] == marks
    steps = [line for line in world.log if " train " in line or "publish of" in line or " live " in line]
    assert steps == [
        line
        for number, (mark, told) in enumerate(zip(marks, (1, 1, 2, 1), strict=True))
        for line in (
            f"trainer 1 train {number} on batch {number}",
            f"trainer 1 publish of {mark}",
            f"manager 1 live {number} {told}",
        )
    ]


def test_a_batch_of_several_people_ends_the_run(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(world, monkeypatch)
    monkeypatch.setattr(
        run.processes.manager._actor, "generate", Remote(lambda number: batch(number) | {"person": None})
    )
    with pytest.raises(PluginError, match="rollout 0 is of several people, but each has an adapter"):
        run.repeat(loop)


def test_a_process_that_ends_while_it_publishes_holds_no_engine(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines read whole folders, so none has a mix of weights; the checkpoint has the batch, which is not trained again."""
    dies = f"publish of {mark_of('ben')}"
    world.deaths = [(dies, RankLostError("a rank died", "update_weights"))]
    make_run(world, monkeypatch).repeat(loop)
    assert not any("hold_engines" in line for line in world.log)
    again = [line for line in world.log if line.startswith("trainer 2 train")]
    assert again == [f"trainer 2 train {number} on batch {number}" for number in (2, 3)]


def test_one_person_goes_back(
    world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run(world, monkeypatch)
    run.repeat(loop)
    first = version(world.save, 1, "ann")
    version(world.save, 2, "ann")
    begun = len(world.log)

    def ask(number: int | str, person: str | None) -> str:
        ask_rollback(world.save, number, person)
        (note,) = world.save.glob("rollback*.json")
        assert (note.name == NAME) == (person is None)
        assert json.loads(note.read_text()).get("person") == person
        run.updates.roll_back()
        assert asked_rollback(world.save, person) is None
        return capsys.readouterr().out

    assert "weights 1 serve ann again, as version 3" in ask(1, "ann")
    ann = mark_of("ann")
    assert world.log[begun : begun + 4] == [
        f"trainer 1 restore {ann} to {first}",
        f"trainer 1 publish of {ann}",
        "went back ann 1 3",
        "trainer 1 save 3",
    ]
    assert "weights 0 serve ann again, as version 4" in ask(0, "ann")
    assert f"trainer 1 restore {ann} to None" in world.log
    assert "weights 2 serve ann already" in ask(2, "ann")
    assert "no rollback of ann to weights 7: there are 0, 1, 2" in ask(7, "ann")
    assert "weights 0 serve local already" in ask(0, "")
    assert "each person has an adapter; name the person" in ask(1, None)


def test_one_persons_certain_policy_pauses_this_person_alone(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ann's steps have no entropy left, Ben's have; together they would blow nothing, or everybody's fuse."""
    run = make_run(world, monkeypatch, fuses=[f"{RECENT_ENTROPY}<0.01"])
    refused = Remote(lambda *of: world.log.append("refused {}: {}".format(*of)))
    monkeypatch.setattr(run.processes.manager._actor, "on_step_refused", refused, raising=False)
    for person, entropy in (("ann", 1e-5), ("ben", 5.0)):
        for _ in range(STEPS_OF_ENTROPY):
            run.updates.fuses.of_steps({STEPS: [{"train/entropy_loss": entropy}]}, {}, person)
    run.repeat(loop)
    assert [line for line in world.log if line.startswith("refused ")] == [
        f"refused 0: {RECENT_ENTROPY}<0.01 (it is 1e-05)"
    ]
    assert paused(world.save) is None
    assert list(paused_people(world.save)) == ["ann"]
    assert [line.split()[-2] for line in world.log if " live " in line] == ["1", "2", "3"], (
        "ann begins eight steps anew"
    )


def test_two_people_who_ask_at_the_same_time_both_go_back(
    world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run(world, monkeypatch)
    run.repeat(loop)
    for person in ("ann", "ben"):
        for number in (1, 2):
            version(world.save, number, person)
        ask_rollback(world.save, 1, person)
    for _ in range(2):
        run.updates.roll_back()
    said = capsys.readouterr().out
    assert said.index("weights 1 serve ann again") < said.index("weights 1 serve ben again")
    assert asked_rollbacks(world.save) == []


def test_nobody_goes_back_alone_where_all_share_a_policy(
    world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = test_run_restart.make_run(world)
    ask_rollback(world.save, 1, "ann")
    run.updates.roll_back()
    assert "no rollback of ann: all people share one policy" in capsys.readouterr().out


def test_a_foreign_data_source_may_learn_who_went_back() -> None:
    told: list[tuple[str, ...]] = []

    class Source:
        def person_restored(self, *of: str) -> None:
            told.append(of)

    with_optional_methods(Source()).person_restored("ann", "1", "3")
    with_optional_methods(object()).person_restored("ann", "1", "3")
    assert told == [("ann", "1", "3")]
