"""``versions``, ``accept`` and ``rollback`` with ``--person``: one person's adapter, and nobody else's."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from groundwork.people import mark_of
from groundwork.private_files import private_folder
from lab.testkit.ledger_records import judged_sample
from openclaw.gate import accept, rollback, versions
from openclaw.ledger.store import Ledger
from openclaw.owners import stored_id
from slime.updates.rollback import asked_rollback
from slime.weight_sync import people

ALICE, BOB = "alice", "bob"


def publish(run: Path, person: str, version: int) -> None:
    """Publish a version of a person's adapter."""
    name = people.adapter_name(version, "0123abcd", version, mark_of(person))
    folder = people.folder_of(people.people_folder(run), name)
    private_folder(folder)
    (folder / people.WEIGHTS).write_text(name)
    people.publish(run, name)


def batch(ledger: Ledger, rollout_id: int, person: str) -> None:
    """Lease a batch of a person."""
    judged_sample(ledger, f"{person}-{rollout_id}", session_id=stored_id(person, f"s{rollout_id}"))
    ledger.samples.claim(rollout_id, 1, person=person)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Alice has versions 1 and 2, and Bob has version 1 and three refusals."""
    with closing(Ledger(tmp_path / "ledger.sqlite")) as ledger:
        for rollout_id, person, version in ((0, ALICE, 1), (1, BOB, 1), (2, ALICE, 2)):
            batch(ledger, rollout_id, person)
            ledger.decisions.record(rollout_id, "step", str(version), "better", person=person)
            ledger.samples.record_step(rollout_id, str(version), 1.0, 2.0, person)
            publish(tmp_path, person, version)
        for rollout_id in (3, 4, 5):
            batch(ledger, rollout_id, BOB)
            ledger.decisions.record(rollout_id, "refused", "2", "worse", by_margin=True, person=BOB)
            ledger.decisions.quarantine(rollout_id)
    return tmp_path


def shown(run: Path, capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert versions.main([str(run), "--json", *words]) == 0
    return json.loads(capsys.readouterr().out)


def test_versions_are_a_persons(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = shown(run, capsys, "--person", ALICE)
    rows = [(each["person"], each["version"], each["checkpoint"], each["serves"]) for each in found["versions"]]
    assert rows == [(ALICE, "1", True, False), (ALICE, "2", True, True)]
    assert found["offer"] is None
    everybody = shown(run, capsys)
    assert [each["person"] for each in everybody["versions"]] == [ALICE, BOB, ALICE, BOB, BOB, BOB]
    assert [each["person"] for each in everybody["versions"] if each["serves"]] == [BOB, ALICE]
    assert f"openclaw-rl accept {run} --person bob" in everybody["offer"]
    assert versions.main([str(run), "--person", BOB]) == 0
    assert "bob" in capsys.readouterr().out


def test_a_person_accepts_alone(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert accept.main([str(run), "--person", ALICE]) == 2
    assert "0 of 3 refusals of a series" in capsys.readouterr().err
    assert accept.main([str(run)]) == 2
    assert f"accept {run} --person bob" in capsys.readouterr().err
    assert accept.main([str(run), "--person", BOB]) == 0
    assert "3 samples are ready again" in capsys.readouterr().out


def test_a_person_goes_back_to_a_version_on_disk(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for version, person, why in (
        ("2", ALICE, "version 2 serves alice already"),
        ("7", ALICE, "no version 7 of the adapter of alice is kept; there are 0, 1, 2"),
        ("1", "carol", "no version of the adapter of carol was accepted"),
    ):
        assert rollback.main([str(run), "--to", version, "--person", person]) == 2
        assert why in capsys.readouterr().err
    assert asked_rollback(run) is None
    assert rollback.main([str(run), "--to", "1", "--person", ALICE]) == 0
    assert "goes back to version 1 when it is resumed" in capsys.readouterr().out
    asked = asked_rollback(run, ALICE)
    assert asked is not None
    assert (asked.version, asked.person) == ("1", ALICE)
    assert rollback.main([str(run), "--to", "0", "--person", BOB]) == 0
