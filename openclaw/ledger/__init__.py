"""The ledger: the one durable record of turns, verdicts, samples and training steps.

Guarantees: every method of `store.Ledger` commits before it returns. The database refuses state changes that `states`
does not list. Secrets are replaced before they reach the file. Imports from slime only samples and their streams
(`slime.utils.types`, `slime.utils.streams`), and from openclaw only config and messages.
"""
