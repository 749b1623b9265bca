"""Ranks meet at a port that rank 0 holds already when the others hear of it."""

from __future__ import annotations

import importlib
import os
import socket
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch
import torch.distributed as dist

from slime.args import Arguments
from slime.backends.trainer.process import RankProcess
from slime.exceptions import RankLostError
from slime.ray.trainer import Asked, RemoteRank, TrainGroup
from slime.utils import tcp_store
from slime.utils.forwarded_environment import of_node
from slime.utils.tcp_store import GLOO_INTERFACE, hosted_store
from slime.weight_sync.group import HostedGroup


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
    RankProcess(2, 0, "127.0.0.1")
    assert os.environ["NCCL_SOCKET_IFNAME"] == "ib1"


def test_every_rank_hears_of_the_port_before_it_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[str] = []
    group = TrainGroup.__new__(TrainGroup)
    group._args, group._ranks = Arguments(), [RemoteRank(Actor(rank, log)) for rank in range(3)]
    monkeypatch.setattr(group, "gather", lambda asked: asked.references)
    assert group.send_init().references == ["init"] * 3
    assert log[:3] == ["0 open_rendezvous", "1 meet_at 4000", "2 meet_at 4000"]
    assert [line.split()[:2] for line in log[3:]] == [[str(rank), "init"] for rank in range(3)]


def test_the_death_of_rank_0_before_it_listens_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    group = TrainGroup.__new__(TrainGroup)
    group._ranks = [RemoteRank(Actor(rank, [])) for rank in range(2)]

    def dies(asked: Asked[Any]) -> Any:
        raise RankLostError(f"training rank 0 died in {asked.method}", asked.method)

    monkeypatch.setattr(group, "gather", dies)
    with pytest.raises(RankLostError, match="died in open_rendezvous"):
        group.send_init()


def test_two_ranks_find_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = RankProcess(2, 0, "127.0.0.1"), RankProcess(2, 1, "127.0.0.1")
    met: dict[int, Any] = {}
    monkeypatch.setattr(dist, "init_process_group", lambda *_, store, rank, **__: met.update({rank: store}))
    monkeypatch.setattr(torch, "set_num_threads", lambda count: None)
    for name in ("MASTER_ADDR", "MASTER_PORT", GLOO_INTERFACE):
        monkeypatch.setenv(name, "")
    port = first.open_rendezvous()
    second.meet_at(port)
    assert (os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"]) == ("127.0.0.1", str(port))
    args = Arguments(device="cpu", distributed_timeout_minutes=1)
    for rank in (first, second):
        rank.join(args)
    met[0].set("who", "rank 0")
    assert met[1].get("who") == b"rank 0"
    assert met[1].port == port


def listeners(port: int) -> list[str]:
    """Addresses at which this process listens on ``port``."""
    found = psutil.Process().net_connections("inet")
    return [each.laddr.ip for each in found if each.status == psutil.CONN_LISTEN and each.laddr.port == port]


def of_rank(address: str) -> Any:
    rank = RankProcess(1, 0, address)
    rank.open_rendezvous()
    return rank._store


def of_group(address: str) -> Any:
    return HostedGroup(address=address, world_size=2, name="push", backend="gloo", timeout=timedelta(seconds=9))._server


def of_url(address: str) -> Any:
    """The store of the first rank of an engine."""
    with socket.socket() as probe:
        probe.bind((address, 0))
        port = probe.getsockname()[1]
    return next(dist.rendezvous(f"tcp://{address}:{port}", 0, 1, timeout=timedelta(seconds=9)))[0]  # type: ignore[attr-defined]


@pytest.mark.parametrize("make", [hosted_store, of_rank, of_group, of_url])
@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.0.2"])
def test_a_store_listens_on_its_address_alone(make: Any, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """127.0.0.2 stands for the address of one machine of several."""
    for name in ("MASTER_ADDR", "MASTER_PORT", GLOO_INTERFACE):
        monkeypatch.setenv(name, "")
    module = importlib.import_module("torch.distributed.rendezvous")
    monkeypatch.setattr(module, "TCPStore", module.TCPStore)  # restored afterwards
    tcp_store.host_rendezvous_at_their_address()
    store = make(address)
    assert listeners(store.port) == [address]
    store.set("who", "rank 0")
    other = dist.TCPStore(address, store.port, None, False, timedelta(seconds=9))  # pyright: ignore[reportPrivateImportUsage]
    assert other.get("who") == b"rank 0"
    other.set("bytes", "x")
    assert store.get("bytes") == b"x"


def test_a_translated_address_is_listened_to_on_all_interfaces(caplog: pytest.LogCaptureFixture) -> None:
    store = tcp_store._listener("203.0.113.7", 0)
    with store:
        assert listeners(store.getsockname()[1]) == ["0.0.0.0"]
    assert "203.0.113.7 is not an address of this machine" in caplog.text


@pytest.mark.parametrize(("address", "given", "then"), [
    ("127.0.0.1", None, "lo"), ("::1", None, "lo"), ("localhost", None, "lo"), ("127.0.0.1", "eth3", "eth3"),
    ("10.0.0.1", None, None), ("node-7", None, None),
])  # fmt: skip
def test_gloo_listens_where_the_rendezvous_is(
    monkeypatch: pytest.MonkeyPatch, address: str, given: str | None, then: str | None
) -> None:
    monkeypatch.setenv(GLOO_INTERFACE, given or "")
    if given is None:
        monkeypatch.delenv(GLOO_INTERFACE)
    tcp_store.meet_on_loopback(address)
    assert os.environ.get(GLOO_INTERFACE) == then
