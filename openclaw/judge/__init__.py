"""The judges: their prompts, votes, hints and teacher log-probabilities, and the worker that asks them."""
