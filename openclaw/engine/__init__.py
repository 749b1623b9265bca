"""The gateway's client of the policy engine: exact tokens over HTTP.

Guarantees: every id arrives with its own log-probability, or the reply ends in an error from `openclaw.exceptions`.
May import `openclaw.ledger.records` for its types; imports neither torch nor SGLang.
"""
