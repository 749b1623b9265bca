"""Chat messages as plain data: their text, whose words they are, and digests that recognise them again.

Guarantees: pure functions of messages; nothing here reads a file, the environment or the ledger. Imports only the standard
library, so that every other room may import this one.
"""
