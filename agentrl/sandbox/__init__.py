"""Sandboxes: where code that a model wrote runs.

`interface` says what a sandbox offers; each provider implements it. Guarantees: a provider that cannot isolate refuses to
start. May import `agentrl.processes`, protocol and exceptions.
"""
