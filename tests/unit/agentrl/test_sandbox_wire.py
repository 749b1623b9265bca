"""Frames between host and sandbox survive any cut, and the cap on output keeps head and tail exactly."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.sandbox.inside.wire import CHUNK, LENGTHS, MAX_BODY, MAX_HEADER, Capped, Frames, frame

HEADERS = st.dictionaries(st.text(max_size=8), st.one_of(st.integers(), st.text(max_size=20), st.none()), max_size=4)
MESSAGES = st.lists(st.tuples(HEADERS, st.binary(max_size=200)), max_size=6)


def cut(data: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[start:end] for start, end in itertools.pairwise(edges)]


@given(MESSAGES, st.lists(st.integers(0, 10_000), max_size=12))
def test_frames_arrive_whole_however_the_stream_is_cut(
    messages: list[tuple[dict[str, object], bytes]], places: list[int]
) -> None:
    frames = Frames()
    pieces = cut(b"".join(frame(fields, body) for fields, body in messages), places)
    assert [each for piece in pieces for each in frames.feed(piece)] == messages


@pytest.mark.parametrize(("header", "body"), [(MAX_HEADER + 1, 0), (2, MAX_BODY + 1), (2**32 - 1, 2**32 - 1)])
def test_a_frame_beyond_the_limits_is_refused_before_it_is_read(header: int, body: int) -> None:
    with pytest.raises(ValueError, match="too large"):
        Frames().feed(LENGTHS.pack(header, body))


@pytest.mark.parametrize("header", [b"[]", b"1", b"{", b"\xff\xff"])
def test_a_header_that_is_no_object_is_refused(header: bytes) -> None:
    with pytest.raises(ValueError):
        Frames().feed(LENGTHS.pack(len(header), 0) + header)


@given(st.binary(max_size=400), st.integers(0, 300), st.lists(st.integers(0, 10_000), max_size=8))
def test_the_cap_keeps_head_and_tail(data: bytes, most: int, places: list[int]) -> None:
    capped = Capped(most)
    for piece in cut(data, places):
        capped.add(piece)
    kept, missing = capped.result()
    assert len(kept) == min(len(data), most)
    assert missing == len(data) - len(kept)
    head = most - most // 2 if missing else len(kept)
    assert kept == data[:head] + data[len(data) - (len(kept) - head) :]


def test_the_cap_holds_little_more_than_it_keeps() -> None:
    capped = Capped(1000)
    for _ in range(100):
        capped.add(b"x" * CHUNK)
        assert len(capped._head) + len(capped._tail) <= 1000 + CHUNK
