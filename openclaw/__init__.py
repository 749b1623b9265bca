"""The runtime for live traffic, in rooms; a room imports only rooms below it, which `lint-imports` checks.

    server, inspect       commands
    launch                a launch script becomes a plan
    training              the ledger becomes batches
    runtime               the process that serves and judges
    gateway, judge        requests; verdicts
    engine, sessions      the policy engine's stream; whose turn it is
    method                what a learning method implements
    ledger                the durable record
    config, messages      environment variables; chat messages as data
    exceptions            errors that a person can act on
"""
