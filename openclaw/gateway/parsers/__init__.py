"""Parsers of a model's output: streamed text in; reasoning, content and tool-call deltas out."""
