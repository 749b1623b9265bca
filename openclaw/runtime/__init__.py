"""The runtime process: gateway and judge loop.

`serve` runs in the process; `start` and `process` start and supervise it. Guarantees: the process serves, or fails with
a message that says what to change. It ends with its parent process. May import every room on the request path: gateway,
judge, sessions, ledger, engine and config.
"""
