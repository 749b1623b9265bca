"""The terminal chat: a client of the gateway, like any other program that speaks its HTTP.

``server`` sends the requests, ``watch`` follows what becomes of replies, ``screen`` reads and writes the terminal, and
``talk`` is the conversation between them.
"""
