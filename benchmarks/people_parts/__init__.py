"""Parts of `benchmarks.people`: many owners on one live run, a run's batches once more, and a simulated box."""

import sys

from benchmarks.machine import REPOSITORY

sys.path.append(str(REPOSITORY / "openclaw-test"))  # simulated users and their measure
