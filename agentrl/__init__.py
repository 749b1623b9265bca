"""Environments that agents act in, lent out by lease. A module imports only modules below it; `lint-imports` checks this.

* ``pool``, ``pool_process``, ``router``: a pool of this machine's environments as a command, and as a process of another one; one address for several pools.
* ``harness``: agent programs of others that run in a task's sandbox, behind the gateway, and the command that drives them.
* ``web``: the HTTP side of both.
* ``rollout``: the loop that plays episodes, for slime's samples and for evaluation.
* ``client``, ``leases``: an episode, over HTTP or in this process; the core of a pool.
* ``tasks``, ``bridges``: task folders, and the tasks that come with the project; environments of other projects.
* ``environment``: the interface that environments implement, and the tasks of a server, by id.
* ``sandbox``: where code that a model wrote runs.
* ``processes``: the processes that environments own.
* ``protocol``: requests, answers, how the deadlines of the hops nest, and what pool, router and clients have in common.
* ``exceptions``: the errors, by kind.
"""
