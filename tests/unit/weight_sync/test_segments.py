"""Memory of one process that another maps: the same bytes, nothing by that name afterwards, no stale file taken for it."""

from __future__ import annotations

import errno
import mmap
import os
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from groundwork.machine import this_host
from slime.weight_sync import segments as segments_module
from slime.weight_sync.segments import HUGE_PAGE, DeviceSegment, Mappings, Segment


def test_both_sides_see_the_same_bytes() -> None:
    segment, mappings = Segment(1000), Mappings()
    assert segment.data.numel() == HUGE_PAGE, "whole large pages"
    source = segment.source(1000)
    seen = mappings.bytes_of(source)
    segment.data[:1000] = 7
    assert seen.numel() == 1000
    assert bool((seen == 7).all())
    assert mappings.bytes_of(source).data_ptr() == seen.data_ptr(), "mapped once"
    segment.close()
    assert bool((seen == 7).all()), "who has mapped it keeps it"
    with pytest.raises(OSError):
        Mappings().bytes_of(source)


def test_another_file_under_the_same_number_is_not_taken_for_it(tmp_path: Path) -> None:
    segment = Segment(10)
    source = segment.source(10)
    number = int(source["path"].rpartition("/")[2])
    with (tmp_path / "file").open("w+b") as other:
        os.dup2(other.fileno(), number)
        with pytest.raises(FileNotFoundError, match="another file by now"):
            Mappings().bytes_of(source)
    segment.close()


def test_the_least_used_mapping_goes() -> None:
    segments, mappings = [Segment(10) for _ in range(3)], Mappings(limit=2)
    sources = [segment.source(10) for segment in segments]
    for index in (0, 1, 0, 2):
        mappings.bytes_of(sources[index])
    assert [path for path in mappings._open] == [
        f"{source['path']} {source['inode']}" for source in (sources[0], sources[2])
    ]
    for segment in segments:
        segment.close()


def test_a_segment_that_was_made_anew_is_mapped_again() -> None:
    mappings = Mappings()
    for value in range(3):
        segment = Segment(10)
        segment.data[:10] = value
        assert mappings.bytes_of(segment.source(10)).tolist() == [value] * 10
        segment.close()
    assert (mappings.opened, len(mappings)) == (3, 2)


def test_what_the_trainer_before_left_goes_with_the_first_segment_of_another() -> None:
    segments, mappings = [Segment(10) for _ in range(3)], Mappings()
    for segment in segments[:2]:
        mappings.bytes_of(segment.source(10))
    mappings.bytes_of(segments[2].source(10) | {"owner": 1})
    assert len(mappings) == 1
    for segment in segments:
        segment.close()


PIN = segments_module.pin


def refused(status: int) -> None:
    raise RuntimeError("out of memory")


@pytest.fixture
def pins(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What CUDA is asked for, in a process that uses it."""
    asked: list[str] = []
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(segments_module, "pin", lambda data: asked.append(f"pin {data.numel() // HUGE_PAGE}"))
    monkeypatch.setattr(segments_module, "unpin", lambda data: asked.append(f"unpin {data.numel() // HUGE_PAGE}"))
    return asked


def test_memory_that_cannot_be_pinned_is_read_unpinned(
    pins: list[str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Through CUDA's own error, which the next kernel would report if nothing took it."""
    launched: list[Any] = []

    def kernel(size: int, *, device: str) -> None:
        launched.append(device)
        raise RuntimeError("CUDA error: out of memory")

    runtime = SimpleNamespace(cudaHostRegister=lambda place, size, flags: 2)
    monkeypatch.setattr(segments_module, "pin", PIN)
    monkeypatch.setattr(torch.cuda, "cudart", lambda: runtime)
    monkeypatch.setattr(torch.cuda, "check_error", refused)
    monkeypatch.setattr(torch, "ones", kernel)
    segment, mappings = Segment(HUGE_PAGE), Mappings()
    segment.data[:2] = 7
    for _ in range(2):
        assert mappings.bytes_of(segment.source(2)).tolist() == [7, 7]
    assert launched == ["cuda"], "asked once, and the error is taken"
    assert re.search(r"cannot pin 2 MiB of host memory \(out of memory\).*ulimit -l", caplog.text)
    mappings.close()
    assert pins == [], "what is not pinned is not unpinned"


def test_a_process_on_a_gpu_pins_what_it_maps_once(pins: list[str]) -> None:
    segments, mappings = [Segment(size * HUGE_PAGE) for size in (1, 2, 3)], Mappings()
    for index in (0, 1, 0, 1):
        mappings.bytes_of(segments[index].source(10))
    assert pins == ["pin 1", "pin 2"]
    mappings.bytes_of(segments[2].source(10))
    assert pins[2:] == ["pin 3", "unpin 1"]
    mappings.close()
    assert sorted(pins[4:]) == ["unpin 2", "unpin 3"]
    for segment in segments:
        segment.close()


def test_a_handle_is_opened_once_and_made_anew_for_the_next_process() -> None:
    """Torch lets a handle be used once; that of a CPU's memory is a descriptor, which is gone after it."""
    segment, mappings = DeviceSegment(10, torch.device("cpu")), Mappings()
    for value in range(3):
        segment.data[:] = value
        assert mappings.bytes_of(segment.source(7)).tolist() == [value] * 7
    assert mappings.opened == 1
    handle = segment.source(7)["handle"]
    segment.renew()
    assert segment.source(7)["handle"] != handle
    assert Mappings().bytes_of(segment.source(7)).tolist() == [2] * 7
    segment.close()
    assert segment.data.numel() == 0


def test_a_kernel_without_large_pages_will_do(monkeypatch: pytest.MonkeyPatch) -> None:
    class SmallPages(mmap.mmap):
        def madvise(self, *advice: int) -> None:
            raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(mmap, "mmap", SmallPages)
    segment = Segment(10)
    segment.data[:10] = 3
    assert Mappings().bytes_of(segment.source(10)).tolist() == [3] * 10
    segment.close()


def test_a_process_knows_its_host() -> None:
    assert this_host() == this_host()
    assert "pid:[" in this_host()
