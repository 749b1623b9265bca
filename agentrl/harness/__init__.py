"""Agents of others, unmodified, in a task's sandbox: their only model is the gateway, which captures what they ask.

* ``offer``: which of them a pool offers, by name.
* ``environment``: an environment whose one action runs one of them.
* ``program``: an agent program as one declaration. ``mini_swe_agent``, ``openclaw``, ``coding_agents``: those that come with the
  project.
* ``interface``: what an agent program must offer to be started.
* ``addresses``: of servers, as people write them.
* ``__main__``, ``options``, ``checks``: the command that drives episodes, and what it refuses.
* ``driver``: groups of runs, in order and in parallel. ``run``: one run, from lease to reward.
* ``gateway``: the gateway's episode routes. ``records``, ``screen``: what is kept and shown.
"""
