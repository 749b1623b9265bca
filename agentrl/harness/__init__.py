"""Agents of others, unmodified, in a task's sandbox: their only model is the gateway, which captures what they ask.

* ``offer``: which of them a pool offers, by name.
* ``environment``: an environment whose one action runs one of them.
* ``openclaw``: one of them, OpenClaw's own agent.
* ``interface``: what an agent program must offer to be started.
"""
