"""Reads a run's folder for people: why turns were not trained, metrics, whether it is learning, and one turn's whole story.

Guarantees: read-only, and it works while the run writes.
"""
