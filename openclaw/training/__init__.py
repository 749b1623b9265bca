"""Conversations as training data: the rollout function and data source that slime loads, and what methods build on.

Guarantees: a judged turn becomes a sample with exactly its own ids and log probabilities, and a batch is leased in the ledger
before the trainer gets it. Runs in the trainer's process, so it may import slime; of openclaw it may import the judge,
the ledger and whatever starts the runtime process.
"""
