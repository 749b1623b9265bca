"""Twenty thousand sessions talk to a memory of one thousand: bounded, and no next state is missed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.conversations import World, talk_past_memory


@pytest.mark.long
async def test_twenty_thousand_sessions(tmp_path: Path) -> None:
    world = World(tmp_path / "ledger.sqlite")
    try:
        await talk_past_memory(world, sessions=20_000, memory=1_000)
    finally:
        await world.close()
