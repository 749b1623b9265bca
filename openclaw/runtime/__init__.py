"""The runtime process: what runs in it (`serve`), and what starts and supervises it (`start`, `process`).

Guarantees: the process serves, or fails with a message that says what to change. It ends with its parent process. May
import every room on the request path: gateway, judge, sessions, ledger, engine and config.
"""
