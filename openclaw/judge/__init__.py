"""The judges: their prompts, votes, hints and teacher log-probabilities, and the worker that asks them.

Guarantees: a verdict is exactly what the judge said; a failure of the machinery is never a score, its turn stays
pending. May import the ledger, `openclaw.method`, config and messages. Knows no method by name.
"""
