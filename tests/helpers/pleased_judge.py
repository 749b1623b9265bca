"""A judge that likes every reply, for ``OPENCLAW_JUDGE_CLASS``."""

from __future__ import annotations

from typing import Any


class PleasedJudge:
    """Votes 1."""

    def score(self, prompt: list[Any], response: str, next_state: list[Any]) -> int:
        """Return the vote."""
        return 1
