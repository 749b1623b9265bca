"""Tasks in OSWorld's layout (Xie et al. 2024, arXiv:2404.07972), on virtual machines that run its server.

* `task_file` reads a task's JSON by the types of `shapes`, `rules`, `values` and `accessibility`. `source` says which tasks
  a run has. `vm` talks to the server inside a machine, `providers` start machines.
* `setup` prepares a machine for a task; `getters` read what the agent left, `metrics` compare it, `judge` does both.
"""
