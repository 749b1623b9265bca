"""The parts of `benchmarks.paths`: the recorder, the two ways, the table."""
