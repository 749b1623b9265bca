"""Parts of `benchmarks.envs`.

* ``environments``: what the measured pools lend out.
* ``servers``: a pool and a router as processes, a pool in this process.
* ``load``: episodes in parallel, and what they took.
* ``probes``: sandboxes and calls, concurrent tool calls, kills, a soak.
* ``tokens``: tokens processed with and without merged turns.
* ``simulation``, ``forecast``: queues as a simulation of events; hosts that have the recorded latencies.
* ``statistics``: quantiles and slopes.
"""
