"""Conversations as training data: the rollout function and data source that slime loads, and what methods build on.

Guarantees: a judged turn becomes a sample with exactly its own ids and log-probabilities, and a batch is leased in
the ledger before the trainer gets it. Importing the package itself loads nothing: a method imports `samples` in the
runtime process. `rollout` and `evaluation` run beside the trainer and may import slime, the judge, the ledger and the
runtime's start.
"""
