"""Every way for weights to reach an engine, over real HTTP and between real processes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
import torch

from benchmarks.weight_receiver import ReceiverProcess
from lab.testkit.waiting import wait_until
from slime.exceptions import EngineError, WeightsDifferError
from slime.weight_sync.pushes import make_weight_sync
from slime.weight_sync.remote_engine import RemoteEngine
from slime.weight_sync.requests import Bucket
from slime.weight_sync.shared_memory import SharedMemoryWeightSync
from tests.helpers.push_checks import mapped_segments
from tests.helpers.weight_receivers import CPU, SPEC, TRANSPORTS, connected, holds, rank_zero, sync_args, weights

# Which transport, what the engine does, in which call, and how many of those go well before.
FAULTS = [
    ("broadcast", "die", "update_weights_from_distributed", 0),
    ("broadcast", "die", "update_weights_from_distributed", 1),
    ("broadcast", "refuse", "update_weights_from_distributed", 1),
    ("shared", "die", "update_weights_from_tensor", 0),
    ("shared", "die", "update_weights_from_tensor", 1),
    ("shared", "refuse", "update_weights_from_tensor", 1),
    ("delta", "die", "update_weights_from_tensor", 1),
    ("disk", "refuse", "update_weights_from_disk", 0),
]


@pytest.fixture(scope="module", autouse=True)
def default_group() -> Iterator[None]:
    with rank_zero():
        yield


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], ReceiverProcess]]:
    started: list[ReceiverProcess] = []

    def start_one() -> ReceiverProcess:
        folder = tmp_path_factory.mktemp("receiver")
        started.append(ReceiverProcess(sync_args(folder), SPEC, folder))
        return started[-1]

    yield start_one
    for receiver in started:
        receiver.stop()


@pytest.fixture(scope="module")
def pair(start: Callable[[], ReceiverProcess]) -> list[ReceiverProcess]:
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(lambda _: start(), range(2)))


def handles(receivers: list[ReceiverProcess]) -> list[RemoteEngine]:
    return [receiver.handle for receiver in receivers]


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_engines_hold_the_weights_bit_for_bit(tmp_path: Path, pair: list[ReceiverProcess], transport: str) -> None:
    args = sync_args(tmp_path, check_weight_update_equal=True, **TRANSPORTS[transport])
    with connected(args, handles(pair)) as sync:
        for number in range(3):
            exact = {
                name: value.double() for name, value in weights(number).items()
            }  # what a trainer has in more digits
            sync.push(iter(exact.items() if number == 2 else weights(number).items()), str(number))
            for receiver in pair:
                state = receiver.state()
                assert (state["version"], state["session"]) == (str(number), False)
                assert holds(receiver, weights(number))
                assert state["heard"][-1] == "continue_generation"


def test_the_segments_of_a_trainer_on_a_gpu(tmp_path: Path, pair: list[ReceiverProcess]) -> None:
    args = sync_args(tmp_path, update_weight_transport="shared", check_weight_update_equal=True)
    with connected(args, handles(pair), CPU, SharedMemoryWeightSync) as sync:
        for number in range(2):
            sync.push(iter(weights(number).items()), str(number))
            assert all(holds(receiver, weights(number)) for receiver in pair)


def test_what_differs_after_a_push_is_named_and_requests_are_held(
    tmp_path: Path, pair: list[ReceiverProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    args = sync_args(tmp_path, check_weight_update_equal=True)
    pack = Bucket.add

    def pack_wrongly(bucket: Bucket, name: str, tensor: torch.Tensor) -> None:
        if name == "layer.0":
            tensor = tensor.clone()
            tensor.view(torch.int32)[3, 3] ^= 1  # after its checksum, before it is sent
        pack(bucket, name, tensor)

    with connected(args, handles(pair)) as sync:
        with monkeypatch.context() as wrong:
            wrong.setattr(Bucket, "add", pack_wrongly)
            with pytest.raises(WeightsDifferError, match=r"layer\.0 on engine 0"):
                sync.push(iter(weights(5).items()), "5")
        for receiver in pair:
            assert receiver.state()["heard"][-3:-1] == ["pause_generation", "end_weight_update"]
            assert not receiver.state()["session"]
    with connected(args, handles(pair)) as sync:
        sync.push(iter(weights(6).items()), "6")
        assert all(holds(receiver, weights(6)) for receiver in pair)


@pytest.mark.parametrize(("transport", "kind", "route", "after"), FAULTS)
def test_an_engine_that_fails_in_the_middle_ends_the_push_and_the_next_one_makes_up_for_it(
    tmp_path: Path,
    start: Callable[[], ReceiverProcess],
    pair: list[ReceiverProcess],
    transport: str,
    kind: str,
    route: str,
    after: int,
) -> None:
    args = sync_args(tmp_path, **TRANSPORTS[transport])
    kept, victim = pair
    with connected(args, handles([victim, kept])) as sync:
        sync.push(iter(weights(1).items()), "1")
        victim.fault(kind, route, after)
        with pytest.raises(EngineError):
            sync.push(iter(weights(2).items()), "2")
        heard = kept.state()["heard"]
        assert not kept.state()["session"]
        assert len(heard) - 1 - heard[::-1].index("pause_generation") > max(
            position for position, route in enumerate(heard) if route == "continue_generation"
        )
        with pytest.raises(RuntimeError, match="connect first"):
            sync.push(iter(weights(2).items()), "2")
        if kind == "die":
            victim.process.wait(60)
            pair[1] = start()
        else:
            victim.fault("none", "")
        sync.connect(handles(pair))
        sync.push(iter(weights(2).items()), "2")
        assert all(holds(receiver, weights(2)) for receiver in pair)


@pytest.mark.parametrize("transport", [*TRANSPORTS, "slots"])
def test_a_trainer_that_is_killed_in_the_middle_leaves_one_version_and_no_files(
    tmp_path: Path, repository: Path, pair: list[ReceiverProcess], transport: str
) -> None:
    """The engine holds its requests rather than serve a mixture; the trainer that follows gives it the whole weights."""
    engine = pair[0]
    slots = transport == "slots"
    flags = {**TRANSPORTS["shared" if slots else transport], "update_weight_buffer_size": 64}
    if transport == "disk":
        flags["update_weight_disk_dir"] = str(tmp_path / "shared-folder")
    port = str(httpx.URL(engine.engine.url()).port)
    command = [sys.executable, "-m", "tests.helpers.dying_trainer", str(tmp_path), port, json.dumps(flags)]
    command += ["slots"] if slots else []
    trainer = subprocess.Popen(command, cwd=repository, stdout=subprocess.PIPE)
    assert trainer.stdout is not None
    assert trainer.stdout.readline() == b"middle\n"
    trainer.kill()
    trainer.communicate()

    state = engine.state()
    assert state["version"] == "1"
    paused = len(state["heard"]) - 1 - state["heard"][::-1].index("pause_generation")
    if "continue_generation" in state["heard"][paused:]:
        assert transport == "disk", "nothing is half new until the folder is whole"
        assert holds(engine, weights(1))
    else:  # its helper at the engine acts when it is gone, and must not meet the next trainer
        said = tmp_path / "logs" / "engine-policy-0.log"
        wait_until(lambda: said.exists() and "the run is gone" in said.read_text(), lambda: f"nobody released {port}")
    # Other tests have theirs there.
    assert not [name for name in os.listdir("/dev/shm") if str(trainer.pid) in re.findall(r"\d+", name)]
    make = SharedMemoryWeightSync if slots else make_weight_sync
    with connected(sync_args(tmp_path, **flags), handles([engine]), CPU, make) as sync:
        sync.push(iter(weights(2).items()), "2")
        if slots:
            assert mapped_segments(engine.process.pid) == 2, "the dead trainer's are gone"
        state = engine.state()
        assert (state["version"], state["session"], state["heard"][-1]) == ("2", False, "continue_generation")
        assert holds(engine, weights(2))
    assert not [path for path in tmp_path.rglob("weight_v*")]


def test_the_last_two_versions_stay_on_disk_while_the_run_lasts(tmp_path: Path, pair: list[ReceiverProcess]) -> None:
    folder = tmp_path / "shared-folder"
    args = sync_args(tmp_path, update_weight_transport="disk", update_weight_disk_dir=str(folder))
    with connected(args, handles(pair[:1])) as sync:
        for version in ("1", "2", "10"):
            sync.push(iter(weights(3).items()), version)
        assert sorted(path.name for path in folder.iterdir()) == ["weight_v10", "weight_v2"]
        assert (folder / "weight_v10" / "config.json").exists()
    assert not list(folder.iterdir())
    args.update_weight_disk_keep_files = True
    with connected(args, handles(pair[:1])) as sync:
        for version in ("1", "2", "3"):
            sync.push(iter(weights(3).items()), version)
    assert len(list(folder.iterdir())) == 3


def test_small_steps_move_few_bytes_and_stay_exact(tmp_path: Path, pair: list[ReceiverProcess]) -> None:
    args = sync_args(tmp_path, update_weight_mode="delta", check_weight_update_equal=True)
    values, generator = weights(7), torch.Generator().manual_seed(0)
    whole = sum(value.nbytes for value in values.values())
    with connected(args, handles(pair)) as sync:
        for version in range(6):
            sync.push(iter(values.items()), str(version))
            assert sync.moved_bytes == (whole if version == 0 else 3 * (4 + 4) * (version - 1))
            assert all(holds(receiver, values) for receiver in pair)
            for value in values.values() if version else ():  # nothing changes between the first two
                flat = value.view(-1)
                if flat.numel() > 24:
                    flat[torch.randperm(flat.numel(), generator=generator)[:version]] += 1
        sync.connect(handles(pair[1:]))
        sync.push(iter(values.items()), "6")
        assert sync.moved_bytes == whole, "who connects anew gets everything"
        assert holds(pair[1], values)
