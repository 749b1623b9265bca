"""``openclaw-rl doctor RUN``: what is wrong with a run, with its evidence and what to type.

Guarantees: read-only. A check says nothing without enough turns, so a young run is healthy. Only the newest turns count, so
what was mended is not reported.
"""
