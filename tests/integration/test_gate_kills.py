"""Kill -9 of the processes of a launched run during a probe, a push, an undoing and a rollback, and the gate's commands on it.

Every moment is held by a file, or by an engine that stands still; every kill hits in the middle of it. Each push is compared with
the trainer's weights bit for bit; here the engine's answers are compared with the exported weights.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from slime.updates.rollback import asked_rollback
from tests.helpers.gated_run import BATCH, SECONDS, GatedRun

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]


@pytest.fixture
def gated(repository: Path, tmp_path: Path, tiny_random_model: Path) -> Iterator[GatedRun]:
    """A run whose first batch is trained; version 1 serves."""
    gated = GatedRun(repository, tmp_path / "run", tiny_random_model)
    try:
        gated.run.wait_ready()
        gated.feed()
        gated.wait_live("1")
        gated.wait_saved(0)
        yield gated
        gated.stop()
        states = gated.states()
        assert set(states) == set(gated.replies), "every rated reply has its sample"
        assert {state for state, _, _ in states.values()} <= {"trained", "dropped"}
    finally:
        if gated.run.process.poll() is None:
            gated.run.process.kill()
            gated.run.process.wait()


def batch_of(gated: GatedRun, rollout_id: int) -> list[tuple[str, str | None]]:
    """Return state and reason of a batch's samples; it has exactly those that the trainer was given."""
    found = [(state, reason) for state, reason, batch in gated.states().values() if batch == rollout_id]
    assert len(found) == len(gated.given(rollout_id)) == BATCH
    return found


def better_version_serves(gated: GatedRun, version: str, rollout_id: int) -> None:
    """Wait until the accepted update of a batch serves, trained once."""
    gated.wait_live(version)
    gated.wait_saved(rollout_id)
    assert gated.serves_weights_of(rollout_id)
    assert gated.optimizer_steps(rollout_id) == rollout_id + 1
    assert batch_of(gated, rollout_id) == [("trained", None)] * BATCH


def is_asked_again(gated: GatedRun) -> None:
    """Wait until batch 1 is asked about again; version 1 serves meanwhile."""
    gated.wait_held("probe")
    gated.wait_live("1")
    assert gated.serves_weights_of(0)
    assert batch_of(gated, 1) == [("leased", None)] * BATCH


@pytest.mark.parametrize(
    ("in_probe", "in_push"),
    [
        pytest.param(["rank"], ["driver"], id="one each"),
        pytest.param(["rank", "manager"], ["rank", "manager", "driver"], id="every"),
    ],
)
def test_probe_and_push(gated: GatedRun, in_probe: list[str], in_push: list[str]) -> None:
    """Batch 1 is asked about again and again, and accepted; no engine serves its weights before the push is whole."""
    gated.hold("probe")
    gated.feed()
    gated.wait_held("probe")
    for victim in in_probe:
        gated.member(victim).kill()
        gated.hold("probe")
        is_asked_again(gated)
    for victim in in_push:
        engine = gated.stopped_engine()
        gated.hold("probe")
        gated.wait_in_push()
        if victim == "driver":
            gated.kill_driver()
            gated.resume()
        else:
            gated.member(victim).kill()
            engine.resume()
        is_asked_again(gated)
    engine = gated.stopped_engine()
    gated.go_on("probe")
    gated.wait_in_push()
    gated.member("runtime").kill()
    engine.kill()
    better_version_serves(gated, "2", 1)
    assert not gated.serves_weights_of(0)


def test_undoing(gated: GatedRun) -> None:
    """Batch 1 is refused; a person accepts it before the checkpoint without it is written, and the rank dies."""
    gated.refuse(True)
    gated.hold("undone")
    gated.feed()
    gated.wait_held("undone")
    gated.member("manager").kill()
    gated.hold("undone")
    gated.wait_held("undone")
    assert batch_of(gated, 1) == [("dropped", "quarantine")] * BATCH
    gated.wait_live("1")
    assert gated.serves_weights_of(0)
    refused = gated.given(1)
    gated.refuse(False)
    assert f"{BATCH} samples are ready again" in gated.told("accept")
    gated.member("rank").kill()
    gated.go_on("undone")
    gated.wait_live("2")
    gated.wait_saved(2)
    assert gated.serves_weights_of(2)
    assert gated.given(2) == refused
    assert [gated.optimizer_steps(rollout_id) for rollout_id in range(3)] == [1, 1, 2], "trained once"
    assert batch_of(gated, 2) == [("trained", None)] * BATCH
    listed = json.loads(gated.told("versions", "--json"))["versions"]
    assert [(each["version"], each["decision"]) for each in listed if each["step"] >= 1] == [
        ("2", "refused"), ("", "change accepted"), ("2", "accepted"),
    ]  # fmt: skip
    assert [each["version"] for each in listed if each["serves"]] == ["2"]


def test_rollback(gated: GatedRun) -> None:
    """Back to version 1, where the driver dies, and forward to 2, where rank, runtime and engine die; training goes on."""
    for rollout_id in (1, 2):
        gated.feed()
        better_version_serves(gated, str(rollout_id + 1), rollout_id)
    gated.hold("restored")
    command = gated.command("rollback", "--to", "1")
    gated.wait_held("restored")
    gated.kill_driver()
    gated.go_on("restored")
    assert "it goes back when it is resumed" in command.communicate(timeout=SECONDS)[0]
    gated.resume()
    gated.until(lambda: asked_rollback(gated.folder) is None, "the rollback")
    gated.wait_live("4")
    assert gated.serves_weights_of(0)
    assert batch_of(gated, 1) == batch_of(gated, 2) == [("dropped", "rollback")] * BATCH

    gated.hold("restored")
    engine = gated.stopped_engine()
    command = gated.command("rollback", "--to", "2")
    gated.wait_in_push()
    for victim in ("rank", "runtime"):
        gated.member(victim).kill()
    engine.resume()
    gated.wait_held("restored")
    for victim in ("engine", "rank"):
        gated.member(victim).kill()
    gated.go_on("restored")
    assert "version 5 serves now: back to version 2" in command.communicate(timeout=SECONDS)[0]
    gated.wait_live("5")
    assert gated.serves_weights_of(1)
    assert batch_of(gated, 1) == [("trained", None)] * BATCH
    assert batch_of(gated, 2) == [("dropped", "rollback")] * BATCH
    back = [each.weight_version for each in gated.ledger(lambda it: it.decisions.all("AND kind = 'rollback'"))]
    assert back == ["4", "5"]

    gated.feed()
    gated.wait_live("6")
    gated.wait_saved(3)
    assert gated.serves_weights_of(3)
    assert gated.optimizer_steps(3) == 3
