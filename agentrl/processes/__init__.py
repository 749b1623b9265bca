"""Processes that environments own: started after they are recorded, and ended even if the server was killed.

* ``owned``: what an environment starts processes with.
* ``ending``: ends what was recorded, and only that.
* ``ledger``: the durable record.
* ``marks``: tells a process from a later one with the same id.
"""
