"""The parts of `benchmarks.house`: the source tree, and one module per family of counters."""
