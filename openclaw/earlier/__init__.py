"""A process that answers with an earlier version of a run's weights, on the CPU (`openclaw.runtime.earlier` starts it)."""
