"""Archives of agents: nothing leads out of the folder that one is unpacked in, and forged ones are refused without a cost."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import subprocess
import tarfile
import tempfile
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.exceptions import InfraError
from agentrl.sandbox.interface import ExecResult
from agentrl.tasks.shell import check, snapshot
from agentrl.tasks.shell.snapshot import PACK, UNPACK, UnusableError, clean, put

PARTS = st.sampled_from(["a", "b", "c", "..", "."])
PATHS = st.builds(
    lambda root, parts: root + "/".join(parts), st.sampled_from(["", "", "/"]), st.lists(PARTS, min_size=1, max_size=4)
)
KINDS = st.sampled_from(
    [tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE]
)


def packed(members: list[tuple[str, bytes, str]]) -> bytes:
    """Return an archive of (name, type, link target)."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, kind, target in members:
            member = tarfile.TarInfo(name)
            member.type, member.linkname, member.mode = kind, target, 0o6755
            member.size = 3 if kind == tarfile.REGTYPE else 0
            tar.addfile(member, io.BytesIO(b"abc"))
    return out.getvalue()


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(PATHS, KINDS, PATHS), max_size=10))
def test_nothing_leads_out(members: list[tuple[str, bytes, str]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder).resolve() / "deep" / "er" / "work"
        home.mkdir(parents=True)
        try:
            cleaned = clean(packed(members))
        except UnusableError:
            return  # two members that no folder holds
        done = subprocess.run([*UNPACK], input=cleaned, cwd=home, check=False, capture_output=True)
        assert done.returncode == 0, done.stderr
        for root, folders, files in os.walk(folder):
            for path in (Path(root, name) for name in (*folders, *files)):
                assert path.is_relative_to(home) or home.is_relative_to(path)
                assert path.is_symlink() or path.is_file() or path.is_dir()
                assert not path.lstat().st_mode & 0o6000
                with suppress(RuntimeError):  # a link to itself leads nowhere
                    assert path.resolve().is_relative_to(home) or home.is_relative_to(path)


def test_what_is_kept() -> None:
    members = [("./a", tarfile.DIRTYPE, ""), ("./a/f", tarfile.REGTYPE, ""), ("./l", tarfile.SYMTYPE, "a/f")]
    dropped = [("./h", tarfile.LNKTYPE, "a/f"), ("./p", tarfile.FIFOTYPE, ""), ("./u", tarfile.SYMTYPE, "a/../a")]
    with tarfile.open(fileobj=io.BytesIO(clean(packed([*members, *dropped])))) as tar:
        assert [(each.name, each.linkname) for each in tar] == [("a", ""), ("a/f", ""), ("l", "a/f")]


@pytest.mark.parametrize("data", [b"", b"no archive" * 100, packed([("f", tarfile.REGTYPE, "")])[:514]])
def test_no_archive(data: bytes) -> None:
    with pytest.raises(UnusableError):
        clean(data)


def header(name: str, kind: bytes = tarfile.REGTYPE, size: int = 0, target: str = "") -> bytes:
    """Return the block of a member, which may lie about its size."""
    member = tarfile.TarInfo(name)
    member.type, member.size, member.linkname = kind, max(size, 0), target
    block = bytearray(member.tobuf(tarfile.GNU_FORMAT))
    if size < 0:
        block[124:136] = b"\xff" + size.to_bytes(11, "big", signed=True)
        block[148:156] = b"%06o\0 " % (sum(block[:148]) + 256 + sum(block[156:]))
    return bytes(block)


def block(data: bytes) -> bytes:
    return data + bytes(-len(data) % 512)


def extra(kind: bytes, data: bytes) -> bytes:
    """Return a header that says more of the next member."""
    return header("x", kind, len(data)) + block(data)


def pax(**records: str) -> bytes:
    return b"".join(_record(f"{name.replace('_', '.')}={value}\n".encode()) for name, value in records.items())


def _record(text: bytes) -> bytes:
    length = len(text) + 2
    while len(b"%d %s" % (length, text)) != length:
        length += 1
    return b"%d %s" % (length, text)


def sparse(size: int) -> bytes:
    """Return a member of GNU's old sparse format: so large, and nothing in it."""
    made = bytearray(header("huge", tarfile.GNUTYPE_SPARSE))
    made[386:410] = b"%011o\0" % size + b"%011o\0" % 0
    made[483:495] = b"%011o\0" % size
    made[148:156] = b"%06o\0 " % (sum(made[:148]) + 256 + sum(made[156:]))
    return bytes(made)


HUGE = 256 << 20
GLOBAL = extra(tarfile.XGLTYPE, pax(**{f"k{number}": "v" for number in range(4000)}))
FORGED = {
    "sparse": sparse(HUGE),
    "sparse, 10 TiB": sparse(10 << 33),
    "sparse by a header, version 0.0": extra(tarfile.XHDTYPE, pax(GNU_sparse_size=str(HUGE))) + header("f"),
    "sparse by a header, version 1.0": extra(tarfile.XHDTYPE, pax(GNU_sparse_realsize=str(HUGE), GNU_sparse_major="1"))
    + header("f"),
    "larger than what is left": header("f", size=HUGE),
    "larger by a header": extra(tarfile.XHDTYPE, pax(size=str(HUGE))) + header("f"),
    "a size that is not a number": extra(tarfile.XHDTYPE, pax(size="much")) + header("f"),
    "a size of many digits": extra(tarfile.XHDTYPE, pax(size="9" * 9000)) + header("f"),
    "negative": header("f", size=-512),
    "negative by a header": extra(tarfile.XHDTYPE, pax(size="-512")) + header("f"),
    "a long name that is not there": header("x", tarfile.GNUTYPE_LONGNAME, HUGE),
    "a negative long name": header("x", tarfile.GNUTYPE_LONGNAME, -512),
    "a header of a mebibyte": extra(tarfile.XHDTYPE, pax(comment="x" * (1 << 20))) + header("f"),
    "a global header of a mebibyte": extra(tarfile.XGLTYPE, pax(comment="x" * (1 << 20))) + header("f"),
    "a broken header": extra(tarfile.XHDTYPE, b"7 path=") + header("f"),
    "a header of no length": extra(tarfile.XHDTYPE, b"0 path=a\n") + header("f"),
    "a file and something below it": header("a") + header("a/b"),
    "something, and a file above it": header("a/b") + header("a"),
    "a link and something below it": header("a", tarfile.SYMTYPE, target="b") + header("a/c"),
    "something, and a link above it": header("a/b/c") + header("a", tarfile.SYMTYPE, target="b"),
    "the folder itself as a file": header("."),
    "the folder itself as a link": header("./", tarfile.SYMTYPE, target="a"),
    "a link to nothing": header("a", tarfile.SYMTYPE),
    "a path of 5,000 bytes": extra(tarfile.GNUTYPE_LONGNAME, b"/".join([b"d" * 99] * 50)) + header("f"),
    "a name of 256 bytes": extra(tarfile.XHDTYPE, pax(path="n" * 256)) + header("f"),
    "a target of 5,000 bytes": extra(tarfile.GNUTYPE_LONGLINK, b"/".join([b"d" * 99] * 50))
    + header("f", tarfile.SYMTYPE),
    "a name with a NUL": extra(tarfile.XHDTYPE, pax(path="a\0b")) + header("f"),
    "too many folders that are not there": b"".join(
        extra(tarfile.XHDTYPE, pax(path=f"{number}/" + "/".join("d" * 2040))) + header("f") for number in range(6)
    ),
    "a wrong checksum": header("f").replace(b"ustar", b"USTAR"),
}


@pytest.mark.parametrize("data", FORGED.values(), ids=FORGED)
def test_a_forged_archive_is_the_agents_error_and_takes_no_memory(data: bytes) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(UnusableError):
            clean(data)
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()


def test_the_number_of_names_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot, "MAX_NAMES", 20)
    assert clean(b"".join(header(f"a/{number}") for number in range(19)))
    for data in (header(f"a/{number}") for number in range(20)), (header(f"{number}/a") for number in range(20)):
        with pytest.raises(UnusableError, match="more than 20 names"):
            clean(b"".join(data))


def test_global_headers_are_not_copied_into_each_member() -> None:
    data = GLOBAL + b"".join(header(str(number)) for number in range(300))
    tracemalloc.start()
    try:
        kept = clean(data)
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()
    assert len(kept) < len(data)


@pytest.mark.parametrize("form", ["gnu", "posix", "ustar"])
def test_what_tar_packs_comes_out_as_it_was(form: str, tmp_path: Path) -> None:
    """Also with names that are long, or no UTF-8, and with hard links, holes and modes."""
    home, out = tmp_path / "home", tmp_path / "out"
    (home / ("d" * 90) / ("e" * 90)).mkdir(parents=True)
    out.mkdir()
    (home / ("d" * 90) / ("e" * 90) / "file").write_bytes(bytes(range(256)))
    (home / os.fsdecode(b"\xff\xfe name")).write_text("x")
    (home / "\u00fc").write_text("y" * 700)
    (home / "run").write_text("#!/bin/sh\n")
    (home / "run").chmod(0o750)
    os.link(home / "run", home / "same")
    with (home / "hole").open("wb") as file:
        file.truncate(100_000)
    (home / "link").symlink_to("d" * 90)
    words = [*PACK, f"--format={form}", "."]
    data = subprocess.run(words, cwd=home, check=True, capture_output=True).stdout
    subprocess.run([*UNPACK], input=clean(data), cwd=out, check=True)
    for path in (each.relative_to(home) for each in home.rglob("*")):
        assert (out / path).lstat().st_mode == (home / path).lstat().st_mode
        if not path.is_dir() and (home / path).is_file():
            assert (out / path).read_bytes() == (home / path).read_bytes()
    assert os.readlink(out / "link") == "d" * 90
    assert {each.relative_to(out) for each in out.rglob("*")} == {each.relative_to(home) for each in home.rglob("*")}


class Full:
    """A sandbox in which nothing can be unpacked."""

    async def execute(self, *_: object, **__: object) -> ExecResult:
        return ExecResult(2, b"tar: No space left on device", 0, False, 0.1)


async def test_what_is_not_unpacked_is_the_error_of_who_made_it() -> None:
    with pytest.raises(UnusableError, match="No space"):
        await put(Full(), b"", of_agent=True)  # type: ignore[arg-type]
    with pytest.raises(InfraError, match="No space"):
        await put(Full(), b"")  # type: ignore[arg-type]


@pytest.mark.parametrize("pack", [bytes, gzip.compress, bz2.compress, lzma.compress])
@pytest.mark.parametrize(
    "data",
    [
        packed([("a", tarfile.REGTYPE, "")]) + bytes(check.MAX_BYTES),
        sparse(HUGE).replace(b"huge", b"a\0\0\0"),
        header("a", size=HUGE),
        header("a", size=-512),
        b"".join(header(f"d{number}", tarfile.DIRTYPE) for number in range(99)) + packed([("a", tarfile.REGTYPE, "")]),
    ],
)
def test_the_verifier_calls_an_archive_that_expands_wrong(
    pack: Callable[[bytes], bytes], data: bytes, tmp_path: Path
) -> None:
    asked = {"kind": "archive", "path": "packed", "files": {"a": "abc"}}
    (tmp_path / "packed").write_bytes(pack(packed([("a", tarfile.REGTYPE, "")])))
    assert check.problem(tmp_path, asked) is None
    (tmp_path / "packed").write_bytes(pack(data))
    assert check.problem(tmp_path, asked) is not None
    (tmp_path / "packed").write_bytes(pack(packed([("a", tarfile.REGTYPE, "")]))[:-100])
    assert pack is bytes or check.problem(tmp_path, asked) is not None
