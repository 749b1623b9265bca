"""Doors of programs in sandboxes, on the host's side."""

from __future__ import annotations

import socket
import tempfile
from pathlib import Path

import pytest

from agentrl.sandbox.streams import SandboxStream
from agentrl.sandbox.unix_socket import bound_at


async def test_a_door_opens_in_a_folder_with_a_long_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / ("x" * 120)
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    stream = SandboxStream(3, "pool")
    door = await stream.open()
    assert door.socket.is_relative_to(folder)
    assert door.socket.is_socket()
    await stream.close()
    assert not door.socket.exists()


def test_a_path_that_is_taken_is_an_error(tmp_path: Path) -> None:
    with bound_at(tmp_path / "a") as listening:
        assert listening.family == socket.AF_UNIX
        with pytest.raises(OSError, match="in use"):
            bound_at(tmp_path / "a")
