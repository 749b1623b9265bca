"""A stream of weights: the same bytes on the other side, in place or from whole tensors, and no one waits for the dead."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from groundwork.exceptions import ConfigError
from groundwork.machine import this_host
from slime.weight_sync import segments
from slime.weight_sync.engine_loader import TAKEN, load_stream
from slime.weight_sync.remote_engine import EngineCalls
from slime.weight_sync.segments import Mappings, StreamReader, StreamWriter, WriterGoneError, check_same_host

WAIT = 30.0


@pytest.fixture(autouse=True)
def small_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "SLOT_BYTES", 64)


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(3) as found:
        yield found


def never() -> None:
    """Nobody ends before the stream."""


def write(writer: StreamWriter, weights: dict[str, Tensor]) -> None:
    for name, value in weights.items():
        writer.send(name, value, never)
    writer.end(never)


def read(source: dict[str, Any]) -> dict[str, Tensor]:
    found = {}
    with StreamReader(source, Mappings()) as reader:
        for name, dtype, shape in reader.announced():
            nbytes = torch.Size(shape).numel() * dtype.itemsize
            data = torch.cat([piece.clone() for piece in reader.pieces(nbytes)])
            found[name] = data.view(dtype).view(shape)
    return found


def test_each_reader_gets_every_bit_in_order(pool: ThreadPoolExecutor) -> None:
    weights = {
        "large": torch.randn(41, 7),
        "half": torch.randn(50).to(torch.bfloat16),
        "one number": torch.tensor(3.5),
        "nothing": torch.empty(0, 4),
        "turned": torch.randn(6, 5).t(),
    }
    writer = StreamWriter(2)
    for _ in range(2):
        readers = [pool.submit(read, source) for source in writer.sources()]
        write(writer, weights)
        for reader in readers:
            found = reader.result(WAIT)
            assert list(found) == list(weights)
            assert all(torch.equal(found[name], value) for name, value in weights.items())
    writer.close()


def test_a_reader_is_told_that_its_writer_is_gone(pool: ThreadPoolExecutor) -> None:
    writer = StreamWriter(1)
    (source,) = writer.sources()
    reading = pool.submit(read, source)
    writer.send("first", torch.ones(100), never)
    writer.close()
    with pytest.raises((WriterGoneError, OSError)):
        reading.result(WAIT)
    with pytest.raises(OSError):
        read(source)


def test_another_pipe_under_the_same_number_is_not_read() -> None:
    writer = StreamWriter(1)
    (source,) = writer.sources()
    source["news"]["inode"] += 1
    with pytest.raises(FileNotFoundError, match="another pipe by now"):
        StreamReader(source, Mappings())
    writer.close()


def test_a_writer_does_not_wait_for_readers_that_ended() -> None:
    writer = StreamWriter(1)
    ended: Future[Any] = Future()
    reference: Any = SimpleNamespace(future=lambda: ended)
    calls = EngineCalls[None]("update", [], [reference])
    calls.check_none_ended()
    ended.set_result(None)
    with pytest.raises(RuntimeError, match="engine 0 ended update before it had everything"):
        writer.send("more than the slots", torch.ones(1000), calls.check_none_ended)
    writer.close()


def test_nothing_stays_open() -> None:
    before = set(os.listdir("/proc/self/fd"))
    writer = StreamWriter(3)
    writer.close()
    assert set(os.listdir("/proc/self/fd")) <= before, (
        "those that a collection of garbage closes meanwhile do not count"
    )


class Model:
    """Parameters by name; ``load`` is what its loader does with each tensor."""

    def __init__(self, shapes: dict[str, list[int]], load: Callable[[Tensor, Tensor], Any]) -> None:
        self.parameters = {name: torch.zeros(shape) for name, shape in shapes.items()}
        self.load = load

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        for name, value in weights:
            self.load(self.parameters[name], value)


class Collecting(Model):
    """Takes all tensors before it copies any."""

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        super().load_weights(list(weights))


def copy_lower_half(parameter: Tensor, value: Tensor) -> None:
    parameter.copy_(value.narrow(0, value.size(0) // 2, parameter.size(0)))


def copy_right_half(parameter: Tensor, value: Tensor) -> None:
    parameter.copy_(value.narrow(1, value.size(1) // 2, parameter.size(1)))


def copy_fused(parameter: Tensor, value: Tensor) -> None:
    parameter[8:].copy_(value[:4])
    parameter[:8].copy_(value[4:])


def copy_repeated(parameter: Tensor, value: Tensor) -> None:
    parameter.copy_(value[:1])


def copy_bits(parameter: Tensor, value: Tensor) -> None:
    parameter.copy_(value.view(torch.int16)[:, : parameter.size(1)])


class Deriving(Model):
    """Makes one parameter from another when it has them all."""

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        super().load_weights(weights)
        self.parameters["b"].copy_(2 * self.parameters["a"])


class Padding(Model):
    """Pads its parameters with zeros, as a vocabulary is padded."""

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        super().load_weights(weights)
        self.parameters["a"][8:].data.fill_(0)


def copy_first_rows(parameter: Tensor, value: Tensor) -> None:
    parameter[:8].data.copy_(value[:8])


def copy_negative(parameter: Tensor, value: Tensor) -> None:
    parameter.copy_(-value)


SHAPE = [12, 10]
LOADERS: list[tuple[Any, Any, list[int], bool]] = [
    (Model, Tensor.copy_, SHAPE, True),
    (Model, copy_lower_half, [6, 10], True),
    (Model, copy_right_half, [12, 5], True),
    (Model, copy_fused, SHAPE, True),
    (Model, copy_negative, SHAPE, False),
    (Model, copy_repeated, SHAPE, False),
    (Model, copy_bits, SHAPE, False),
    (Collecting, Tensor.copy_, SHAPE, False),
    (Deriving, Tensor.copy_, SHAPE, False),
    (Padding, copy_first_rows, SHAPE, True),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("kind", "load", "shape", "in_place"), LOADERS)
def test_a_model_holds_what_its_loader_would_have_loaded(
    pool: ThreadPoolExecutor, kind: Any, load: Any, shape: list[int], in_place: bool, dtype: torch.dtype
) -> None:
    names = ["a", "b"]
    model, expected = (kind(dict.fromkeys(names, shape), load) for _ in range(2))
    writer = StreamWriter(1)
    for _ in range(2):
        weights = {name: torch.randn(SHAPE).to(dtype) for name in names}
        loading = pool.submit(load_stream, model, {"sources": writer.sources()})
        write(writer, weights)
        loading.result(WAIT)
        expected.load_weights(weights.items())
        assert bool(TAKEN[model]) is in_place
        for name in names:
            assert torch.equal(model.parameters[name], expected.parameters[name])
    writer.close()


def test_a_number_is_filled_in(pool: ThreadPoolExecutor) -> None:
    model = Model({"a": [1]}, lambda parameter, value: parameter.fill_(value.item()))
    writer = StreamWriter(1)
    for number in (0.5, 2.5):
        loading = pool.submit(load_stream, model, {"sources": writer.sources()})
        write(writer, {"a": torch.tensor([number])})
        loading.result(WAIT)
        assert model.parameters["a"].item() == number
        assert TAKEN[model]
    writer.close()


@pytest.mark.parametrize(
    ("load", "kinds", "words"),
    [
        (copy_negative, {"a": (torch.float32, [4])}, "a is not copied as it is"),
        (Tensor.copy_, {"a": (torch.bfloat16, [4])}, "unlike in the first push"),
        (Tensor.copy_, {}, "unlike in the first push"),
    ],
)
def test_what_is_unlike_the_first_push_is_noticed(
    pool: ThreadPoolExecutor, load: Any, kinds: dict[str, Any], words: str
) -> None:
    model = Model({"a": [4]}, load)
    TAKEN[model] = kinds or {"b": (torch.float32, [4])}
    model.parameters["b"] = torch.zeros(4)
    writer = StreamWriter(1)
    loading = pool.submit(load_stream, model, {"sources": writer.sources()})
    writer.send("a", torch.ones(4), never)
    with pytest.raises((NotImplementedError, RuntimeError), match=words):
        loading.result(WAIT)
    writer.close()


def test_an_engine_outlives_its_trainer(pool: ThreadPoolExecutor, caplog: pytest.LogCaptureFixture) -> None:
    model = Model({"a": SHAPE}, Tensor.copy_)
    writer = StreamWriter(1)
    request = {"sources": writer.sources()}
    loading = pool.submit(load_stream, model, request)
    writer.send("a", torch.ones(SHAPE), never)
    writer.close()
    loading.result(WAIT)
    load_stream(model, request)
    assert caplog.text.count("the trainer ended during a push") == 2
    assert model not in TAKEN


def test_an_engine_of_another_machine_is_named() -> None:
    here = this_host()
    check_same_host([[here], [here, here]])
    for machines in (["elsewhere"], [here, "elsewhere"]):
        with pytest.raises(ConfigError, match="policy engine 1 is not on the machine"):
            check_same_host([[here], machines])
