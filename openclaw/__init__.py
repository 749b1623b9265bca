"""The runtime for live traffic, in rooms; a room imports only rooms below it, which `lint-imports` checks.

* ``inspect``, ``server``: commands.
* ``launch``: a launch script's variables become a plan.
* ``training``: the ledger's samples become batches.
* ``runtime``: the process that serves and judges.
* ``gateway``, ``judge``: requests are answered; turns are judged.
* ``engine``, ``method``, ``sessions``: the policy engine's stream; what a learning method implements; whose turn it is.
* ``ledger``: the durable record.
* ``config``, ``messages``: environment variables; chat messages as data.
* ``exceptions``: errors that a person can act on.
"""
