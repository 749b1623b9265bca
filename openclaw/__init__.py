"""The runtime for live traffic: gateway, sessions, ledger, judges, and the bridge to the trainer."""
