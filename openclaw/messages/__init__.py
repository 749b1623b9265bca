"""Chat messages as plain data: their text, their origin, and digests that identify them.

Guarantees: pure functions of messages, which read no file, environment or ledger. Imports no other room and nothing from
slime, so every room may import this one.
"""
