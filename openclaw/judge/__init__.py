"""The judges: prompts, votes, hints and teacher log-probabilities, and the worker that runs them.

Guarantees: a verdict is exactly what the judge said. A technical failure is never a score; its turn stays pending. May
import the ledger, `openclaw.method`, config and messages. Knows no method by name.
"""
