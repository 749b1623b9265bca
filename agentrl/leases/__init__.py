"""The core of a pool: who may use an environment, for how long, and what happens to it afterwards.

* ``pool``: the table of leases, the reaper and the end.
* ``lease``: one lease: its clock, its lock, its operations, and how its environment is closed.
* ``capacity``: slots, memory and processor cores, first come, first served.
* ``metrics``: counters and gauges.
"""
