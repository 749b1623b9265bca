"""Generated shell tasks, and the environment in which an agent solves them.

* ``environment``: the environment that a pool lends out.
* ``verify``: the verdict, made in sandboxes that the agent never was in.
* ``snapshot``: what the agent left, as data.
* ``generate``: a task from family, split and number; ``python -m agentrl.tasks.shell`` exports tasks as folders.
* ``families``, ``draft``: what the tasks are.
* ``check``: the verifier's program, which runs beside the tests.
"""
