"""What `benchmarks.faults` kills, who talks to it meanwhile, and what must hold afterwards."""
