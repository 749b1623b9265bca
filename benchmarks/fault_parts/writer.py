"""A process that writes judged conversations into the ledger beside the gateway, as an import does, and notes each commit.

`python -m benchmarks.fault_parts.writer --ledger FILE --journal FILE --name NAME`. A line in the journal is a turn whose reply
and next state were committed before the line was written.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import time
import uuid
from pathlib import Path

from groundwork.process import watch_lifeline
from lab.testkit.ledger_records import USER_NEXT, make_turn
from openclaw.ledger.store import Ledger


def main() -> int:
    """Write until killed."""
    watch_lifeline()
    parser = argparse.ArgumentParser()
    parser.add_argument("--ledger", type=Path, required=True)
    parser.add_argument("--journal", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=0.3, help="between turns")
    arguments = parser.parse_args()
    ledger = Ledger(arguments.ledger)
    name = f"writer-{uuid.uuid4().hex[:8]}"
    journal = os.open(arguments.journal, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    print("ready", flush=True)
    for number in itertools.count():
        turn_id, now = f"{name}-{number}", time.time()
        ledger.turns.record(make_turn(turn_id, session_id=name, index=number, created_at=now, finished_at=now))
        ledger.turns.record_next_state(turn_id, USER_NEXT, now)
        os.write(journal, f"{turn_id}\n".encode())
        time.sleep(arguments.seconds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
