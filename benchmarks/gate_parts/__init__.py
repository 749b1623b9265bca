"""Parts of `benchmarks.gate`."""
