"""Lessons: short standing wishes of a person, which the gateway puts into that person's next requests.

The rules alone: no file, no request. `openclaw.ledger.lessons` stores lessons, `openclaw.gateway.lessons` serves them. May import messages and owners.
"""
