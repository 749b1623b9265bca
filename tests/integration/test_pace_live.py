"""A live tiny run whose steps follow sessions: one person's feedback serves soon, and another's waits for its own step."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.pace_run import measure


@pytest.mark.long
def test_a_quiet_session_is_an_update_while_somebody_else_talks(repository: Path, tmp_path: Path) -> None:
    from lab.tiny_models.build import ensure_built

    learned = measure(repository, tmp_path, ensure_built(0), "session", batch_size=64)
    assert set(learned.batch) == {"alice"}
    assert learned.others_wait
    assert learned.seconds < 60.0
