"""The parts of `benchmarks.personalization`: the matrix of runs, their records, the table and the report."""
