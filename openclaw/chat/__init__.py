"""The terminal chat: a client of the gateway, like any other program that speaks its HTTP.

``server`` sends the requests. In ``__main__`` a `Watch` follows what becomes of replies, a `Screen` reads and writes the terminal,
and a `Talk` is the conversation between them.
"""
