"""The runtime for live traffic, in rooms. A room imports only rooms below it; `lint-imports` checks this.

* ``__main__``: the command ``openclaw-rl``, which runs the others by name.
* ``chat``, ``inspect``, ``replay``, ``resume``, ``server``: commands.
* ``inspect_episodes``: what the look into a ledger shows of episodes.
* ``launch``: a launch script's variables become a plan.
* ``offline``: logs become turns of a ledger; a finished run is replayed.
* ``training``: the ledger's samples become batches.
* ``runtime``: the process that serves and judges.
* ``gateway``, ``judge``: answer requests; judge turns.
* ``engine``, ``method``, ``sessions``: the policy engine's stream; a learning method's interface; conversations.
* ``ledger``: the durable record.
* ``config``, ``messages``, ``models``, ``rendering``: environment variables; chat messages as data; checkpoints and their
  download; from messages to prompt ids.
* ``exceptions``, ``owners``: errors that a person can act on; whose a session is.
"""
