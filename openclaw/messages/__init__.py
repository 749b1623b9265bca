"""Chat messages as plain data: their text, whose words they are, and digests that recognise them again.

Guarantees: pure functions of messages; nothing here reads a file, the environment or the ledger. Imports no other
room and nothing of slime, so that every room may import this one.
"""
