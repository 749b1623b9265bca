"""Memory of one process that another maps: the same bytes, nothing by that name afterwards, no stale file taken for it."""

from __future__ import annotations

import errno
import mmap
import os
from pathlib import Path

import pytest

from groundwork.machine import this_host
from slime.weight_sync.segments import HUGE_PAGE, Mappings, Segment


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
    assert [path for path, _ in mappings._open] == [sources[0]["path"], sources[2]["path"]]
    for segment in segments:
        segment.close()


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
