"""Environments that agents act in, lent out by lease. A module imports only modules below it; `lint-imports` checks this.

* ``pool``, ``pool_process``, ``router``: a pool of this machine's environments as a command, and as a process of another one; one address for several pools.
* ``harness``: agent programs of others that run in a task's sandbox, behind the gateway, and the command that drives them.
* ``web``: the HTTP side of both.
* ``routing``: picks a pool for a lease.
* ``rollout``: an agent loop that gives slime samples, for environments without a harness.
* ``client``, ``leases``: an episode, over HTTP or in this process; the core of a pool.
* ``registry``, ``tasks``, ``bridges``: the tasks of a server, by id; task folders, and the tasks that come with the
  project; environments of other projects.
* ``environment``: the interface that environments implement.
* ``sandbox``: where code that a model wrote runs.
* ``processes``: the processes that environments own.
* ``service``: what pool, router and clients have in common.
* ``protocol``: requests and answers.
* ``deadlines``, ``exceptions``: how the deadlines of the hops nest; the errors, by kind.
"""
