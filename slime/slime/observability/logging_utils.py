"""`slime.utils.logging_utils` under the path that newer plugins import it from."""

from __future__ import annotations

from slime.utils.logging_utils import finish_tracking, init_tracking, log

__all__ = ["finish_tracking", "init_tracking", "log"]
