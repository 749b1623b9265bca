"""One run with simulated users: `python openclaw-test/personal_run.py --method combine --users student,captain --report r.json`."""

from __future__ import annotations

import sys

from lab.personal.run import main

if __name__ == "__main__":
    sys.exit(main())
