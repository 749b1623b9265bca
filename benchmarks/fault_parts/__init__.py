"""Parts of `benchmarks.faults`: the victims, the clients, and the checks after each kill."""
