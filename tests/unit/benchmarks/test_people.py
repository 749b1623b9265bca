"""The benchmark of adapters per owner: the simulated box, the figures of owners, and the check of whose adapter answered."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from benchmarks import people
from benchmarks.people_parts import crowd, opposite
from benchmarks.people_parts.opposite import Done, of_owner, verdict
from benchmarks.people_parts.simulation import Costs, Traffic, simulated
from groundwork.people import mark_of
from openclaw.launch.adapters import KEPT, room_of
from openclaw.training.pace import LATE_SECONDS

COSTS = Costs.read(people.COSTS)
FEW = Traffic(owners=20, hours=2.0)
WAIT, TURN = "seconds from a verdict to its update", "seconds of a batch that is due until its turn"


def test_the_same_seed_gives_the_same_box() -> None:
    assert simulated(FEW, COSTS, 4) == simulated(FEW, COSTS, 4)
    assert simulated(FEW, COSTS, 4) != simulated(replace(FEW, seed=1), COSTS, 4)


def test_a_box_with_one_owner_never_waits_for_a_turn_and_loads_each_version_once() -> None:
    found = simulated(replace(FEW, owners=1, spread=0.0, sessions=100.0, complaints=0.0), COSTS, 4)
    assert found[TURN]["max"] < found["bound on that in seconds"]
    assert 0 < found["loads"] <= found["steps"]
    assert found["let in"] == {"new": 1}
    assert found["tokens trained of those offered, least owner"] == 1.0


def test_a_flood_hardly_delays_others_on_a_busy_box() -> None:
    """And the bound of ten minutes and a step of each other owner is kept."""
    busy = replace(FEW, sessions=400.0, spread=0.0)
    slow = replace(COSTS, tokens_per_second=4000.0)
    calm, flooded = (simulated(replace(busy, floods=floods), slow, 4) for floods in (0.0, 20.0))
    assert calm["trainer busy"] > 0.5
    assert flooded["largest owner's share of tokens"] > 2 * calm["largest owner's share of tokens"]
    assert flooded[WAIT]["p95"] < 2 * calm[WAIT]["p95"]
    for found in (calm, flooded):
        assert found["batches beyond the bound"] == 0
        assert found["bound on that in seconds"] > LATE_SECONDS
        assert found["tokens trained of those offered, least owner"] == 1.0


def test_memory_and_disk_stay_within_what_a_dry_run_plans() -> None:
    found = simulated(replace(FEW, owners=200, sessions=60.0, spread=0.1, hours=4.0), COSTS, 8)
    room = room_of(COSTS.parameters, COSTS.element, 8)
    assert found["adapters held by the engine"] == {"most": 128, "plan": 128}
    assert found["GiB of them"]["most"] == found["GiB of them"]["plan"] == round(room.of_held / 2**30, 3)
    assert found["people in the trainer's memory"] == {"most": 8, "plan": 8}
    assert found["GiB of them in the trainer"]["plan"] == round(room.of_trained / 2**30, 3)
    assert found["owners with a version"] <= 200
    assert found["versions on disk"] <= KEPT * found["owners with a version"]
    assert 0 < found["GiB on disk"]["most"] <= found["GiB on disk"]["plan"] == round(200 * room.of_person / 2**30, 3)


@pytest.mark.parametrize(
    ("changes", "says"), [({"load": 0.0}, "load must be above 0"), ({"speed": 1.0}, "speed"), ({"load": None}, "load")]
)
def test_a_file_of_costs_that_lacks_a_figure_is_refused(changes: dict[str, Any], says: str, tmp_path: Path) -> None:
    costs = json.loads(people.COSTS.read_text()) | changes
    file = tmp_path / "costs.json"
    file.write_text(json.dumps({name: value for name, value in costs.items() if value is not None}))
    with pytest.raises(ValueError, match=says):
        Costs.read(file)


def test_the_part_that_simulates_writes_its_record(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert people.main(["simulate", "--quick", "--json", str(tmp_path / "r.json")]) == 0
    assert len(json.loads((tmp_path / "r.json").read_text())["simulated"]) == 4
    assert "batches beyond the bound" in capsys.readouterr().out


def score(liked: int, updates: int, in_all: int, replies: str = "abcd") -> dict[str, Any]:
    own = {"updates": updates, "in_all": in_all, "version": str(updates), "problems": 4}
    return own | {"liked": liked, "right": 4, "degenerate": 0, "replies": list(replies)}


def test_the_goal_is_reached_once_and_twice_in_a_row() -> None:
    scores = [score(1, 0, 0), score(4, 4, 9), score(3, 8, 20), score(4, 12, 30), score(4, 16, 41)]
    done = Done(scores={"anna": scores, "bert": scores[:4]})
    assert (done.is_done("anna"), done.is_done("bert"), done.is_done("carl")) == (True, False, False)
    anna, bert = of_owner(done, "anna", {"anna": 16}), of_owner(done, "bert", {})
    assert (anna["reached_after"], anna["twice_in_a_row_after"]) == (4, 12)
    assert (bert["reached_after"], bert["twice_in_a_row_after"]) == (4, None)


def test_what_others_changed_is_told_apart_from_ones_own_updates() -> None:
    part = {
        "others": 6,
        "before": {"anna": score(4, 8, 20), "bert": score(4, 8, 20)},
        "after": {"anna": score(4, 8, 26), "bert": score(2, 8, 26, "abzz")},
    }
    rounds = [score(3, 8, 14, "abcz"), score(4, 8, 20)]
    record = {
        "owners": {name: of_owner(Done(scores={name: rounds}, silent=[part]), name, {}) for name in part["before"]}
    }
    assert record["owners"]["anna"]["silent"][0]["same_replies"] == 4
    assert record["owners"]["bert"]["silent"][0]["liked"] == [1.0, 0.5]
    assert record["owners"]["anna"]["between_rounds"][0]["others"] == 6
    found = verdict(record)
    assert (found["largest_drift"], found["replies_that_changed"], found["replies_compared"]) == (0.5, 2, 8)
    assert (found["reached"], found["reached_twice_in_a_row"], found["not_reached"]) == (["anna", "bert"], [], {})


def test_a_reply_by_another_owners_adapter_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = {"lora_alpha": 8, "lora_rank": 4, "rollout_temperature": 0.6}
    (tmp_path / crowd.ARGUMENTS_NAME).write_text(json.dumps(arguments))
    judge = crowd.Judge(tmp_path)
    for seed, person in enumerate(("anna", "bert")):
        torch.manual_seed(seed)
        adapter = {}
        for name, module in judge._model.named_modules():
            if name.endswith("q_proj"):
                adapter[f"base_model.model.{name}.lora_A.weight"] = torch.randn(4, module.in_features) * 0.1
                adapter[f"base_model.model.{name}.lora_B.weight"] = torch.randn(module.out_features, 4) * 0.1
        file = tmp_path / crowd.KEPT / mark_of(person) / "1.safetensors"
        file.parent.mkdir(parents=True)
        save_file(adapter, file)
    prompt, ids = [3, 4, 5, 6], [7, 8, 9]

    def reply(by: str, version: str, says: str) -> crowd.Reply:
        assert judge.wear(by, version)
        with torch.no_grad():
            logits = judge._model(torch.tensor([prompt + ids])).logits[0, 3:-1] / 0.6
        log_probs = logits.log_softmax(-1).gather(-1, torch.tensor(ids)[:, None])[:, 0]
        return crowd.Reply(says, version, prompt, ids, log_probs)

    def replies(_: Path) -> Iterator[crowd.Reply]:
        return itertools.chain(true, false)

    true = [reply(person, version, person) for person in ("anna", "bert") for version in ("0", "1")]
    false = [reply("bert", "1", "anna")]
    monkeypatch.setattr(crowd, "replies_of", replies)
    found = crowd.checked(tmp_path, lambda _: None)
    assert (found["replies"], found["by a foreign adapter"], found["examples"][0][:2]) == (5, 1, ["anna", "1"])
    assert (
        found["error under another owner's adapter"]["seen"] == found["error under another owner's adapter"]["replies"]
    )
    false.clear()
    assert crowd.checked(tmp_path, lambda _: None)["by a foreign adapter"] == 0


def test_owners_of_the_benchmark_have_wishes() -> None:
    assert len({user.wish for user in opposite.find_users(list(opposite.OWNERS))}) == 8
