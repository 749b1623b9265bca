"""Readers of a model's output format: text in, as it is generated; reasoning, content and tool-call deltas out."""
