"""How often Python's collector runs in the processes of a run.

Python's default, after every 700 new objects, is for small programs. Ours import some 700,000 objects that stay to the end, and
visiting them again and again takes a fifth of the time until they serve.
"""

from __future__ import annotations

import gc

MAX_NEW_OBJECTS = 200_000  # some 50 MB
OLDER_GENERATIONS = (5, 5)


def collect_rarely() -> None:
    """Let the collector run after `MAX_NEW_OBJECTS` unfreed new objects; call it before the large imports."""
    gc.set_threshold(MAX_NEW_OBJECTS, *OLDER_GENERATIONS)
