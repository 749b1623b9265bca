"""The runtime for live traffic, in rooms. A room imports only rooms below it; `lint-imports` checks this.

* ``__main__``: the command ``openclaw-rl``, which runs the others by name.
* ``chat``, ``doctor``, ``inspect``, ``replay``, ``report``, ``resume``, ``server``: commands.
* ``inspect_episodes``, ``runs``: what the look into a ledger shows of episodes; a run's folder, read for people.
* ``launch``: a launch script's variables become a plan.
* ``offline``: logs become turns of a ledger; a finished run is replayed.
* ``gate``: whether an update may serve.
* ``training``: the ledger's samples become batches.
* ``runtime``: the process that serves and judges.
* ``gateway``, ``judge``: answer requests; judge turns.
* ``engine``, ``method``, ``sessions``: the policy engine's stream; a learning method's interface; conversations.
* ``ledger``: the durable record.
* ``config``, ``messages``, ``models``, ``rendering``: environment variables; chat messages as data; checkpoints and their
  download; from messages to prompt ids.
* ``exceptions``, ``owners``: errors that a person can act on; whose a session is.
"""
