"""Convert a local data set for a run; ``--help`` says how. See `agentrl.tasks.toolcall.convert.questions`."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [path for path in (str(ROOT), str(ROOT / "slime")) if path not in sys.path]

from agentrl.tasks.toolcall.convert import questions  # noqa: E402 - found by the lines above

if __name__ == "__main__":
    sys.exit(questions())
