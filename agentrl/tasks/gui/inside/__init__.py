"""Programs that run inside a sandbox or a machine, with the Python there; nothing here is imported by the pool."""
