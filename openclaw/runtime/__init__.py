"""The runtime process: what runs in it (`serve`), and what starts and watches it (`start`, `process`).

Guarantees: the process serves or fails with a message that says what to change, and ends with the process that
started it. May import every room on the request path: gateway, judge, sessions, ledger, engine and config.
"""
