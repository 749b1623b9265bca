"""Adapters per person in a real run whose trainer dies by SIGKILL between a version's checkpoint and the book that lets it serve.

The version serves nevertheless, its batch is not trained again, and the run ends with the bytes of one that loses nothing. No folder
is left that neither the book nor a checkpoint names.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from groundwork.checkpoint_names import PEOPLE
from groundwork.people import mark_of
from lab.testkit.processes import title_of
from slime.checkpoints.checkpoint_folder import find
from slime.weight_sync.people import Book, folder_of, people_folder
from tests.helpers.driver import Driver
from tests.helpers.people_ranks import states
from tests.helpers.steady_rollout import PEOPLE as NAMES
from tests.helpers.steady_rollout import book_file, hold_file

FLAGS = (
    *("--debug-train-only", "--rollout-function-path", "tests.helpers.steady_rollout.generate_of_people"),
    *("--rollout-num-gpus", "0", "--num-rollout", "5", "--save-interval", "1"),
    *("--rollout-data-postprocess-path", "tests.helpers.steady_rollout.hold_the_book"),
    *("--use-lora", "--adapter-per-person", "--people-in-memory", "0", "--update-weight-mode", "adapter"),
)
P, Q = map(mark_of, NAMES)
HELD = 2
"""The second batch of P."""


def folders(run_dir: Path) -> set[Path]:
    return {
        folder for mark in (P, Q) for folder in (people_folder(run_dir) / mark).glob("*-*") if folder.suffix != ".tmp"
    }


def in_book(run_dir: Path) -> set[Path]:
    """The folders that the book names."""
    people = people_folder(run_dir)
    return {folder_of(people, version.name) for versions in Book(people).lines().values() for version in versions}


def in_newest_checkpoint(run_dir: Path) -> set[Path]:
    """The folders that the newest checkpoint names."""
    newest = find(run_dir / "checkpoints")
    names = json.loads((newest / "meta.json").read_text())[PEOPLE].values() if newest else ()
    return {folder_of(people_folder(run_dir), name) for name in names}


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_kill_between_checkpoint_and_book_loses_nothing(
    repository: Path, tmp_path: Path, tiny_random_model: Path
) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    driver = Driver(repository, whole, tiny_random_model, *FLAGS, script="train.py")
    assert driver.wait_end() == 0, driver.text()
    assert [line.split()[1:4] + line.split()[-2:] for line in driver.steps()] == [
        [str(step), "of", NAMES[step % 2], "weights", str(step // 2 + 1)] for step in range(5)
    ]

    killed.mkdir()
    hold_file(killed, HELD).touch()
    driver = Driver(repository, killed, tiny_random_model, *FLAGS, script="train.py")
    driver.wait_for("step 1 of quentin")
    book_file(killed).touch()
    hold_file(killed, HELD).unlink()
    driver.wait_until(lambda: bool(in_newest_checkpoint(killed) - in_book(killed)), "a checkpoint before the book")
    (saved,) = in_newest_checkpoint(killed) - in_book(killed)
    assert saved.parent.name == P
    rank = next(one for one in driver.family() if title_of(one).startswith("ray::FSDPTrainActor"))
    rank.kill()
    rank.wait(60)
    book_file(killed).unlink()
    driver.wait_for("continuing at rollout 3")
    assert driver.wait_end() == 0, driver.text()
    assert states(killed) == states(whole)
    assert folders(killed) == in_book(killed) >= {saved}
