"""The wait for GPUs: what cannot be is refused at once, what others hold is waited for aloud, and a signal ends it."""

from __future__ import annotations

from typing import Any

import pytest

from groundwork.exceptions import ConfigError
from groundwork.process import Stopped, StopRequested
from slime.arguments.placement import Placement
from slime.exceptions import NodeError
from slime.ray import nodes as module
from slime.ray.nodes import reserve, usable_gpus
from slime.ray.placement import ReservedPlacement, with_replacements


class Cluster:
    """Two machines of two GPUs; their reservation is there at the ``ready``-th look."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, ready: int) -> None:
        self.looks, self.ready = 0, ready
        self.removed: list[Any] = []
        self.stop = StopRequested()
        monkeypatch.setattr(module, "placement_group", lambda bundles, strategy: self)
        monkeypatch.setattr(module, "remove_placement_group", self.removed.append)
        monkeypatch.setattr(module, "placement_group_table", lambda group: group.table())
        monkeypatch.setattr(module, "live_nodes", lambda: {"n1": "10.0.0.1", "n2": "10.0.0.2"})
        monkeypatch.setattr(module, "_POLL_SECONDS", 0.0)
        monkeypatch.setattr(module.ray, "nodes", lambda: [node("10.0.0.1", 2), node("10.0.0.2", 2)])
        monkeypatch.setattr(module.ray, "available_resources", lambda: {"GPU": 1.0, "CPU": 7.0})
        monkeypatch.setattr(module.ray, "cluster_resources", lambda: {"GPU": 4.0, "CPU": 8.0})

    def table(self) -> dict[str, Any]:
        self.looks += 1
        if self.looks == 4:
            self.stop._handle(15, None)
        there = self.looks == self.ready
        return {"state": "CREATED" if there else "PENDING", "bundles_to_node_id": {0: "n1", 1: "n2"} if there else {}}


def node(address: str, gpus: int, cpus: int = 8, *, alive: bool = True) -> dict[str, Any]:
    return {"NodeManagerAddress": address, "Alive": alive, "Resources": {"GPU": gpus, "CPU": cpus}}


def test_only_gpus_with_a_core_on_a_machine_that_is_up_can_be_used() -> None:
    machines = [
        node("a", 8, 4),
        node("b", 2),
        node("b", 2),
        node("c", 8, alive=False),
        {**node("d", 0), "Resources": {}},
    ]
    assert usable_gpus(machines) == {"a": 4, "b": 4, "d": 0}


def test_what_the_cluster_does_not_have_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(monkeypatch, ready=1)
    says = r"needs 5 GPUs \(actor 3 \+ rollout 2\), .* the cluster has 4 \(10.0.0.1 has 2, 10.0.0.2 has 2\); start"
    with pytest.raises(ConfigError, match=says):
        reserve(5, "actor 3 + rollout 2", 60.0)
    assert cluster.looks == 0


def test_the_wait_for_others_is_said(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    cluster = Cluster(monkeypatch, ready=3)
    monkeypatch.setattr(module, "SAY_SECONDS", 0.0)
    group: Any = reserve(4, "actor 4", 60.0)
    assert group is cluster
    said = capsys.readouterr().out.splitlines()
    line = "waiting for 4 GPUs (actor 4), each with a CPU core; free are 1 of 4 GPUs, 7 of 8 CPUs (0 s)"
    assert said == [line, line]
    assert cluster.removed == []


def test_a_signal_ends_the_wait_and_nothing_stays_reserved(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(monkeypatch, ready=0)
    with pytest.raises(Stopped):
        reserve(4, "actor 4", 60.0, cluster.stop)
    assert cluster.looks == 4
    assert cluster.removed == [cluster]


def test_gpus_that_stay_taken_end_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(monkeypatch, ready=0)
    with pytest.raises(
        NodeError, match=r"4 GPUs .* not become free within 0 s; free are 1 of 4 GPUs, .*--node-timeout"
    ):
        reserve(4, "actor 4", 0.0)
    assert cluster.removed == [cluster]


def test_a_reservation_is_whole_when_its_machines_are_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "live_nodes", lambda: {"n1": "10.0.0.1", "n3": "10.0.0.3"})
    table: dict[str, Any] = {"state": "CREATED", "bundles_to_node_id": {0: "n1", 1: "n2"}}
    monkeypatch.setattr(module, "placement_group_table", lambda group: table)
    group: Any = object()
    assert not module.is_whole(group)
    table["state"] = "RESCHEDULING"
    assert not module.is_whole(group)
    table.update(state="CREATED", bundles_to_node_id={0: "n1", 1: "n3"})
    assert module.is_whole(group)


def test_a_machine_that_nobody_replaces_ends_the_run_with_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster: Any = Cluster(monkeypatch, ready=0)
    reserved = ReservedPlacement(Placement((0,), (), ()), cluster, ())
    with pytest.raises(
        NodeError, match=r"^node 10.0.0.2 left the cluster, and no machine replaced it within 0 s .*--resume$"
    ):
        with_replacements(reserved, "node 10.0.0.2 left the cluster", 0.0)
