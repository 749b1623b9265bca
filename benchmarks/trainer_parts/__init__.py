"""The parts of ``python -m benchmarks.trainer``."""
