"""A judge for runs whose every verdict comes from feedback."""

from __future__ import annotations

from typing import Any


class NoJudge:
    """Has no opinion."""

    def score(self, prompt: list[dict[str, Any]], response: dict[str, Any], next_state: list[dict[str, Any]]) -> None:
        """Return no vote."""
        return None
