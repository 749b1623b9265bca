"""The verifier's last program of a terminal-bench task: ``python3 -I tbench_reward.py LOG STATUS REWARD``.

Writes the share of pytest's tests that passed, by the last summary of the log. Guarantees: 1 needs a test that passed, none that
did not, and status 0 of the test script, so printed lines alone never give it. Standard library only.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

HEADER = re.compile(r"^=* ?short test summary info ?=*$", re.MULTILINE)
LINE = re.compile(r"^(PASSED|FAILED|ERROR|XPASS|XFAIL) (.+?)(?: - .*)?$", re.MULTILINE)
"""Whole lines: a message of a failed test, which shows what the agent wrote, has neither."""
COLOR = re.compile(r"\x1b\[[0-9;]*m")


def share(log: str, status: int) -> float:
    """Return the share of passed tests; 0 if a summary without failures contradicts the status."""
    plain = COLOR.sub("", log)
    headers = list(HEADER.finditer(plain))
    results = {test: word for word, test in LINE.findall(plain, headers[-1].end())} if headers else {}
    passed = sum(word in ("PASSED", "XPASS") for word in results.values())
    if not results or (status != 0 and passed == len(results)):
        return 0.0
    return passed / len(results)


if __name__ == "__main__":
    log = Path(sys.argv[1]).read_text(errors="replace")
    print(log[-2000:])
    Path(sys.argv[3]).write_text(f"{share(log, int(sys.argv[2])):.6f}\n")
