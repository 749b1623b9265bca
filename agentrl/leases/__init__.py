"""The core of a pool: who may use an environment, for how long, and what happens to it afterwards.

* ``pool``: the table of leases, the reaper and the end.
* ``lease``: one lease: its clock, its lock and its operations.
* ``closing``: closes an environment until it is closed.
* ``runs``: an operation that several callers wait for.
* ``capacity``: slots, memory and processor cores, first come, first served.
* ``metrics``: counters and gauges.
"""
