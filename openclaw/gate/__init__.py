"""The gate: an update serves only if it does no harm to what earlier turns and verified tasks say.

`openclaw.gate.plugin` is the ``--before-push-path`` plugin; `openclaw.gate.decision` decides, as a pure function.
"""
