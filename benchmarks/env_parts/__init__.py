"""Parts of `benchmarks.envs`.

* ``environments``: what the measured pools lend out.
* ``servers``: a pool and a router as processes, a pool in this process.
* ``load``: episodes in parallel, and what they took.
* ``kinds``: the kinds of episodes.
* ``calls``, ``sandboxes``: concurrent tool calls; start of a sandbox and a call in it.
* ``orphans``, ``soak``, ``traces``: a kill, a long run, and what a pool leaves on its machine.
* ``tokens``: tokens processed with and without merged turns.
* ``simulation``, ``forecast``: queues as a simulation of events; hosts that have the recorded latencies.
* ``statistics``: quantiles and slopes.
"""
