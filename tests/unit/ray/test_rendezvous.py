"""Ranks meet at a port that rank 0 holds already when the others hear of it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from slime.args import Arguments
from slime.backends.trainer.rank import TrainRank
from slime.backends.trainer.snapshot import Changing
from slime.exceptions import RankLostError
from slime.ray.actor_group import TrainGroup
from slime.utils.forwarded_environment import of_node


class Bare(TrainRank):
    """A rank without a model."""

    def _read(self, folder: Path) -> dict[str, Any]:
        return {}

    def _save_folder(self) -> Path:
        raise NotImplementedError

    def _changing(self) -> Changing:
        raise NotImplementedError

    def _device_tensors(self) -> tuple[Iterator[torch.Tensor], Iterator[torch.Tensor]]:
        return iter(()), iter(())


class Actor:
    """A stand-in for a rank's actor: calls answer at once."""

    def __init__(self, rank: int, log: list[str]) -> None:
        self.rank, self.log = rank, log

    def __getattr__(self, method: str) -> Any:
        def call(*arguments: Any) -> Any:
            self.log.append(" ".join([str(self.rank), method, *map(str, arguments)]))
            return 4000 if method == "open_rendezvous" else method

        return SimpleNamespace(remote=call)


def test_a_rank_uses_the_interface_of_its_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "eth0")  # the head's
    for name, value in of_node({"NCCL_SOCKET_IFNAME": "ib1"}).items():
        if name != "NCCL_SOCKET_IFNAME":
            monkeypatch.setenv(name, value)
    Bare(2, 0, "127.0.0.1")
    assert os.environ["NCCL_SOCKET_IFNAME"] == "ib1"


def test_every_rank_hears_of_the_port_before_it_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[str] = []
    group = TrainGroup.__new__(TrainGroup)
    group._args, group._ranks = Arguments(), [Actor(rank, log) for rank in range(3)]
    monkeypatch.setattr(group, "gather", lambda method, references: references)
    assert group.send_init() == ["init"] * 3
    assert log[:3] == ["0 open_rendezvous", "1 meet_at 4000", "2 meet_at 4000"]
    assert [line.split()[:2] for line in log[3:]] == [[str(rank), "init"] for rank in range(3)]


def test_the_death_of_rank_0_before_it_listens_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    group = TrainGroup.__new__(TrainGroup)
    group._ranks = [Actor(rank, []) for rank in range(2)]

    def dies(method: str, references: list[Any]) -> Any:
        raise RankLostError(f"training rank 0 died in {method}", method)

    monkeypatch.setattr(group, "gather", dies)
    with pytest.raises(RankLostError, match="died in open_rendezvous"):
        group.send_init()


def test_two_ranks_find_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = Bare(2, 0, "127.0.0.1"), Bare(2, 1, "127.0.0.1")
    met: dict[int, Any] = {}
    monkeypatch.setattr(dist, "init_process_group", lambda *_, store, rank, **__: met.update({rank: store}))
    monkeypatch.setattr(torch, "set_num_threads", lambda count: None)
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.setenv(name, "")
    port = first.open_rendezvous()
    second.meet_at(port)
    assert (os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"]) == ("127.0.0.1", str(port))
    for rank in (first, second):
        rank.args = Arguments(device="cpu", distributed_timeout_minutes=1)
    first._join()
    second._join()
    met[0].set("who", "rank 0")
    assert met[1].get("who") == b"rank 0"
    assert met[1].port == port
