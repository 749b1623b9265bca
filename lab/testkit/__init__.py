"""What tests and benchmarks share: stand-in engines, builders of turns and samples, real engines and runs, processes."""
