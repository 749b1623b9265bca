"""Re-export `slime.utils.logging_utils` under the import path of newer plugins."""

from __future__ import annotations

from slime.utils.logging_utils import finish_tracking, init_tracking, log

__all__ = ["finish_tracking", "init_tracking", "log"]
