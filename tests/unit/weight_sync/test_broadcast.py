"""A broadcast over a communicator that connects in its first call and blocks: no fault of an engine leaves rank 0 waiting."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from slime.weight_sync import broadcast, engine_sync, group, remote_engine
from slime.weight_sync.broadcast import Broadcaster, BroadcastWeightSync
from slime.weight_sync.remote_engine import EngineCalls, RemoteEngine
from tests.helpers.lazy_communicator import FAIL_SECONDS, LazyEngine, LazyNetwork
from tests.helpers.weight_receivers import CPU, SPEC, sync_args, weights

DETECTION_SECONDS = 30.0


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 0 of a group like NCCL's, that looks at silent engines soon."""
    monkeypatch.setattr(engine_sync.dist, "get_rank", lambda: 0)
    monkeypatch.setattr(remote_engine, "LOOK_SECONDS", 0.02)


def remote(engines: list[LazyEngine]) -> list[RemoteEngine]:
    return [RemoteEngine(engine) for engine in engines]


def connected(folder: Path, engines: list[LazyEngine], **changes: Any) -> BroadcastWeightSync:
    sync = BroadcastWeightSync(sync_args(folder, **changes), device=CPU, address="127.0.0.1")
    sync._backend = "nccl"  # what is different without gloo: nothing frees rank 0 but an abort
    sync.connect(remote(engines))
    return sync


def whole(engine: LazyEngine, expected: dict[str, Tensor]) -> bool:
    return set(engine.weights) == set(expected) and all(torch.equal(engine.weights[n], v) for n, v in expected.items())


@pytest.mark.parametrize("fault", ["refuse", "die", "vanish", "hang"])
@pytest.mark.parametrize("bucket", [0, 2])
def test_a_fault_is_noticed_and_the_others_get_whole_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str, bucket: int
) -> None:
    network = LazyNetwork(monkeypatch)
    engines = [LazyEngine(network, 0, **{f"n{bucket}": fault}), LazyEngine(network, 1)]
    hangs = fault == "hang"
    if hangs:
        monkeypatch.setattr(broadcast, "RELEASE_SECONDS", 0.5)
    sync = connected(tmp_path, engines)
    sync._patience = 2.0 if hangs else FAIL_SECONDS
    gathered: list[str] = []

    def gather() -> Iterator[tuple[str, Tensor]]:
        for name, value in weights(1).items():
            gathered.append(name)
            yield name, value

    started = time.monotonic()
    with pytest.raises((RuntimeError, OSError)) as failure:
        sync.push(gather(), "1")
    assert time.monotonic() - started < DETECTION_SECONDS
    assert "Aborted" not in failure.type.__name__, "the engine's failure is told, not what followed from it"
    assert not engines[0].alive
    assert gathered == list(SPEC), "the other trainer ranks take part in this"
    assert (network.made[0].aborts, network.made[0].destroys) == (1, 0)
    if hangs and not engines[1].alive:  # over minutes nobody can tell who of the silent ones hangs
        engines[1] = LazyEngine(network, 1)
    else:
        assert "hold_after_failed_update" in engines[1].asked
        assert "continue_generation" not in engines[1].asked
    with pytest.raises(RuntimeError, match="connect first"):
        sync.push(iter(weights(2).items()), "2")

    engines[0] = LazyEngine(network, 0)
    sync._patience = FAIL_SECONDS
    sync.connect(remote(engines))
    sync.push(iter(weights(3).items()), "3")
    assert all(whole(engine, weights(3)) for engine in engines)
    assert all(engine.asked[-1] == "continue_generation" for engine in engines)
    sync.close()
    assert [(made.aborts, made.destroys) for made in network.made] == [(1, 0), (1, 0)]


def test_an_engine_that_no_abort_frees_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """NCCL cannot abort a communicator that has yet to connect: its members stay in the call until they end."""
    monkeypatch.setattr(broadcast, "RELEASE_SECONDS", 0.5)
    monkeypatch.setattr(group, "LEAVE_SECONDS", 0.5)
    network = LazyNetwork(monkeypatch, frees=False)
    engines = [LazyEngine(network, 0, n0="refuse"), LazyEngine(network, 1)]
    sync = connected(tmp_path, engines)
    with pytest.raises(RuntimeError, match="the bucket is refused"):
        sync.push(iter(weights(1).items()), "1")
    assert [engine.alive for engine in engines] == [False, False]
    assert "hold_after_failed_update" not in engines[1].asked
    engines = [LazyEngine(network, 0), LazyEngine(network, 1)]
    sync.connect(remote(engines))
    sync.push(iter(weights(2).items()), "2")
    assert all(whole(engine, weights(2)) for engine in engines), "a thread left behind in the old group disturbs nobody"
    sync.close()


def test_slow_engines_are_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 0 blocks in the first broadcast while its peers are healthy: nothing is aborted."""
    network = LazyNetwork(monkeypatch)
    engines = [LazyEngine(network, 0, n0="wait"), LazyEngine(network, 1, n1="wait")]
    sync = connected(tmp_path, engines)
    with ThreadPoolExecutor(1) as pool:
        pushing = pool.submit(sync.push, iter(weights(1).items()), "1")
        for engine in engines:
            assert engine.waits.wait(FAIL_SECONDS)
            looks = engine.asked.count("has_ended")
            deadline = time.monotonic() + FAIL_SECONDS
            while engine.asked.count("has_ended") < looks + 3:
                assert time.monotonic() < deadline
                time.sleep(0.01)
            assert not pushing.done()
            engine.go.set()
        pushing.result(FAIL_SECONDS)
    assert all(whole(engine, weights(1)) for engine in engines)
    assert network.made[0].aborts == 0
    sync.close()


def test_an_engine_that_was_started_again_since_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two pushes: the old communicator has a dead peer, so it is aborted."""
    network = LazyNetwork(monkeypatch)
    engines = [LazyEngine(network, 0), LazyEngine(network, 1)]
    sync = connected(tmp_path, engines)
    sync.push(iter(weights(1).items()), "1")
    engines[0] = LazyEngine(network, 0)
    sync.connect(remote(engines))
    assert (network.made[0].aborts, network.made[0].destroys) == (1, 0)
    sync.push(iter(weights(2).items()), "2")
    assert all(whole(engine, weights(2)) for engine in engines)
    sync.close()


def test_the_next_bucket_is_gathered_while_one_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And no further: the buffer of the bucket under way is not written to."""
    network = LazyNetwork(monkeypatch)
    engine = LazyEngine(network, 0, n0="wait")
    sync = connected(tmp_path, [engine])
    gathered: list[str] = []
    second = threading.Event()

    def gather() -> Iterator[tuple[str, Tensor]]:
        for number in range(8):
            if number == 4:
                second.set()  # two weights fill a bucket: the first is sent, the second full
            gathered.append(str(number))
            yield str(number), torch.full((256,), float(number))

    with ThreadPoolExecutor(1) as pool:
        pushing = pool.submit(sync.push, gather(), "1")
        assert engine.waits.wait(FAIL_SECONDS)
        assert second.wait(FAIL_SECONDS), "the second bucket is gathered while the engine has yet to take the first"
        assert engine.asked.count("update_weights_from_distributed") == 1
        assert len(gathered) <= 5, "one weight beyond the two buffers"
        engine.go.set()
        pushing.result(FAIL_SECONDS)
    assert whole(engine, {str(number): torch.full((256,), float(number)) for number in range(8)})
    sync.close()


def test_a_push_waits_half_as_long_as_the_other_trainer_ranks(tmp_path: Path) -> None:
    sync = BroadcastWeightSync(sync_args(tmp_path, distributed_timeout_minutes=10), device=CPU, address="127.0.0.1")
    assert sync._patience == 300.0


def test_a_broadcast_that_failed_keeps_no_reference_to_its_group() -> None:
    """Members of a gloo group are let go with the last reference to it, and a traceback has one."""

    class Breaking:
        def broadcast(self, data: Tensor) -> None:
            raise RuntimeError("the peer is gone")

    broadcaster = Broadcaster(Breaking(), CPU)
    error = broadcaster.send(torch.zeros(1)).exception(FAIL_SECONDS)
    broadcaster.close()
    assert str(error) == "the peer is gone"
    assert error is not None
    assert error.__traceback__ is None


def test_a_broadcast_that_begins_after_the_group_was_left_reaches_nobody() -> None:
    """Torch would take the missing group for that of all trainer ranks."""
    left = object.__new__(group.HostedGroup)
    left.name, left._group = "slime-weights-7", None
    with pytest.raises(RuntimeError, match="slime-weights-7 was closed before"):
        left.broadcast(torch.zeros(1))


def test_an_engine_that_is_slow_in_another_call_is_not_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is in a broadcast before the first bucket: the engine that does not answer is asked to hold its requests."""
    network = LazyNetwork(monkeypatch)
    engines = [LazyEngine(network, 0), LazyEngine(network, 1)]
    sync = connected(tmp_path, engines)
    refused, slow = Future[None](), Future[None]()
    refused.set_exception(RuntimeError("refused"))
    references: list[Any] = [SimpleNamespace(future=lambda: refused), SimpleNamespace(future=lambda: slow)]
    calls = EngineCalls[None]("pause_generation", remote(engines), references)
    assert sync._abandon(calls, [0]) == []
    assert (network.made[0].aborts, network.made[0].destroys) == (1, 0)
