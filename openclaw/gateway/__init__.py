"""The gateway: an OpenAI-compatible HTTP server in front of the policy engine that records every turn exactly.

Guarantees: a client sees a reply's end only after its turn is in the ledger. Runs in the runtime process's event
loop. May import sessions, engine, ledger, config and messages; imports neither torch nor anything of slime.
"""
