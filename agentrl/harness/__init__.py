"""Agents of others, unmodified, in a task's sandbox: their only model is the gateway, which captures what they ask.

* ``interface``: what an agent program must offer to be started.
"""
