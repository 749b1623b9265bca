"""The ledger: the one durable record of turns, verdicts, samples and training steps."""
