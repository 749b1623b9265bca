"""Finds secrets and personal data and replaces them before anything is stored.

`openclaw.privacy.redactor` replaces what `openclaw.privacy.secret_finder` and `openclaw.privacy.redactor` find.
Knows no records: the ledger decides what a redacted turn still trains.
"""
