"""Snapshots: nothing in one leads out of the folder that it is unpacked in, and odd archives are refused."""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.tasks.shell.snapshot import UNPACK, UnusableError, clean

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
        subprocess.run([*UNPACK], input=clean(packed(members)), cwd=home, check=False, capture_output=True)
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
