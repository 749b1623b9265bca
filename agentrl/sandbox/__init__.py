"""Sandboxes: where code that a model wrote runs.

Guarantees: a provider that cannot isolate refuses to start. May import `agentrl.processes`, protocol and exceptions.

* ``interface``: what a sandbox offers; each provider implements it.
* ``bubblewrap``: the provider that needs no daemon; ``cgroups`` bounds it, and ``self_test`` proves it.
* ``model_door``: the host's half of the way to the model, for one episode; ``gateway_health`` tells what failed behind it.
* ``supervised``: the host's half of a sandbox that runs ``inside``.
* ``inside``: what runs in the sandbox: the supervisor and its parts, standard library only.
"""
