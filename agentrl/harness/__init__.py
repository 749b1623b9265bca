"""Agents of others, unmodified, in a task's sandbox: their only model is the gateway, which captures what they ask.

* ``offer``: which of them a pool offers, by name.
* ``environment``: an environment whose one action runs one of them.
* ``mini_swe_agent``, ``openclaw``: programs that come with the project.
* ``interface``: what an agent program must offer to be started.
"""
