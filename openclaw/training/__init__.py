"""Conversations as training data: the rollout function, the data source, and helpers for methods.

Guarantees: a judged turn becomes a sample with exactly its own ids and log-probabilities. A batch is leased in the
ledger before the trainer gets it. Importing the package loads nothing, because methods import `samples` in the runtime
process. `rollout` and `evaluation` run in the rollout manager and may import slime, the judge, the ledger and the
runtime's start.
"""
