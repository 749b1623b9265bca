"""What the window's process loads before its first page."""

from __future__ import annotations

import subprocess
import sys


def test_the_process_does_not_load_the_gateways_framework() -> None:
    program = "import sys, openclaw.window.__main__; print(*sorted({'fastapi', 'torch', 'ray'} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "", "a third of the first page's time"
