"""The ledger: the one durable record of turns, verdicts, samples and training steps.

Guarantees: every method of `store.Ledger` commits before it returns, and the database refuses a state change that
`states` does not list. Secrets are replaced before they reach the file. Of slime it imports samples and their
streams only (`slime.utils.types`, `slime.utils.streams`); of openclaw, config and messages.
"""
