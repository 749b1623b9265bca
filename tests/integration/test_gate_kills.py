"""Kill -9 of every process of a launched run during probe, push, undoing and rollback, and the gate's commands on it.

One run, told once. Every moment is held by a file, or by an engine that stands still; every kill hits in the middle of it.
Each push is compared with the trainer's weights bit for bit; here the engine's answers are compared with the exported weights.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.gated_run import BATCH, SECONDS, GatedRun

pytestmark = pytest.mark.timeout(1200)


@pytest.fixture
def gated(repository: Path, tmp_path: Path, tiny_random_model: Path) -> Iterator[GatedRun]:
    gated = GatedRun(repository, tmp_path / "run", tiny_random_model)
    yield gated
    if gated.run.process.poll() is None:
        gated.run.process.kill()
        gated.run.process.wait()


def test_kills_in_every_moment(gated: GatedRun) -> None:
    gated.run.wait_ready()
    gated.feed()
    gated.wait_live("1")
    gated.wait_saved(0)
    kill_in_a_probe(gated)
    kill_in_a_push(gated)
    kill_in_an_undoing(gated)
    kill_in_a_rollback(gated)
    gated.stop()
    states = gated.states()
    assert set(states) == set(gated.replies), "every rated reply has its sample"
    assert {state for state, _, _ in states.values()} == {"trained", "dropped"}


def batch_of(gated: GatedRun, rollout_id: int) -> list[tuple[str, str | None]]:
    """Return state and reason of a batch's samples; it has exactly those that the trainer was given."""
    found = [(state, reason) for state, reason, batch in gated.states().values() if batch == rollout_id]
    assert len(found) == len(gated.given(rollout_id)) == BATCH
    return found


def kill_in_a_probe(gated: GatedRun) -> None:
    """Batch 1 is asked about again and again; version 1 serves meanwhile."""
    gated.hold("probe")
    gated.feed()
    gated.wait_held("probe")
    for victim in ("engine", "runtime"):  # the question stays open, and people get answers
        gone = gated.member(victim)
        gone.kill()
        gated.replaced(victim, gone)
        gated.ask()  # for batch 2
        gated.wait_live("1")
        assert gated.serves_weights_of(0)
    for victim in ("rank", "manager", "driver"):
        kill_and_hold_again(gated, victim, "probe")
        gated.wait_live("1")
        assert gated.serves_weights_of(0)
        assert batch_of(gated, 1) == [("leased", None)] * BATCH
    gated.hold("probe")
    gated.wait_live("2")
    gated.wait_saved(1)
    assert gated.serves_weights_of(1)
    assert not gated.serves_weights_of(0)
    assert gated.optimizer_steps(1) == 2


def kill_and_hold_again(gated: GatedRun, victim: str, moment: str) -> None:
    """Kill who works at a moment that comes again, and wait for it."""
    if victim == "driver":
        gated.kill_driver()
        gated.hold(moment)
        gated.resume()
    else:
        gated.member(victim).kill()
        gated.hold(moment)
    gated.wait_held(moment)


def kill_in_a_push(gated: GatedRun) -> None:
    """Batch 2 is accepted; no engine serves its weights before the push is whole."""
    for victim in ("rank", "manager", "driver", "engine"):
        gated.wait_held("probe")
        engine = gated.stopped_engine()
        gated.go_on("probe") if victim == "engine" else gated.hold("probe")
        gated.wait_in_push()
        if victim == "driver":
            gated.kill_driver(engine)
            gated.resume()
        else:
            gated.member(victim).kill()
        if victim in ("rank", "manager"):
            engine.resume()
        if victim != "engine":
            gated.wait_held("probe")
            gated.wait_live("2")
            assert gated.serves_weights_of(1)
            assert batch_of(gated, 2) == [("leased", None)] * BATCH
    gated.wait_live("3")
    gated.wait_saved(2)
    assert gated.serves_weights_of(2)
    assert gated.optimizer_steps(2) == 3


def kill_in_an_undoing(gated: GatedRun) -> None:
    """Batch 3 is refused; a person accepts it before the checkpoint without it is written, and the rank dies."""
    gated.refuse(True)
    gated.hold("undone")
    gated.feed()
    gated.wait_held("undone")
    for victim in ("manager", "driver"):
        kill_and_hold_again(gated, victim, "undone")
        assert batch_of(gated, 3) == [("dropped", "quarantine")] * BATCH
    gated.wait_live("3")
    assert gated.serves_weights_of(2)
    refused = gated.given(3)
    for victim in ("engine", "runtime"):
        gated.member(victim).kill()
    gated.refuse(False)
    assert f"{BATCH} samples are ready again" in gated.told("accept")
    gated.member("rank").kill()
    gated.go_on("undone")
    gated.wait_live("4")
    gated.wait_saved(4)
    assert gated.serves_weights_of(4)
    assert gated.given(4) == refused
    assert [gated.optimizer_steps(rollout_id) for rollout_id in (2, 3, 4)] == [3, 3, 4], "trained once"
    assert batch_of(gated, 4) == [("trained", None)] * BATCH
    listed = json.loads(gated.told("versions", "--json"))["versions"]
    assert [(each["version"], each["decision"]) for each in listed if each["step"] >= 2] == [
        ("3", "accepted"), ("4", "refused"), ("", "change accepted"), ("4", "accepted"),
    ]  # fmt: skip
    assert [each["version"] for each in listed if each["serves"]] == ["4"]


def kill_in_a_rollback(gated: GatedRun) -> None:
    """Back to version 2, further to 1, forward to 3; then training goes on."""
    engine = gated.stopped_engine()
    command = gated.command("rollback", "--to", "2")
    gated.wait_in_push()
    gated.member("rank").kill()
    engine.resume()
    assert "version 5 serves now: back to version 2; 4 samples are unlearned" in command.communicate(timeout=SECONDS)[0]
    gated.wait_live("5")
    assert gated.serves_weights_of(1)
    assert batch_of(gated, 2) == batch_of(gated, 4) == [("dropped", "rollback")] * BATCH

    gated.hold("restored")
    command = gated.command("rollback", "--to", "1")
    gated.wait_held("restored")
    kill_and_hold_again(gated, "manager", "restored")
    gated.kill_driver()
    gated.go_on("restored")
    assert "it goes back when it is resumed" in command.communicate(timeout=SECONDS)[0]
    gated.resume()
    gated.wait_live("6")
    assert gated.serves_weights_of(0)
    assert batch_of(gated, 1) == [("dropped", "rollback")] * BATCH

    gated.stopped_engine()
    command = gated.command("rollback", "--to", "3")
    gated.wait_in_push()
    gated.member("engine").kill()
    assert "version 7 serves now: back to version 3" in command.communicate(timeout=SECONDS)[0]
    gated.wait_live("7")
    assert gated.serves_weights_of(2)
    assert batch_of(gated, 1) == batch_of(gated, 2) == [("trained", None)] * BATCH
    assert batch_of(gated, 4) == [("dropped", "rollback")] * BATCH
    back = [each.weight_version for each in gated.ledger(lambda it: it.decisions("AND kind = 'rollback'"))]
    assert back == ["5", "6", "7"]

    gated.feed()
    gated.wait_live("8")
    gated.wait_saved(5)
    assert gated.serves_weights_of(5)
    assert gated.optimizer_steps(5) == 4
