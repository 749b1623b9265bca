"""The parts of ``python -m benchmarks.gpu``."""
