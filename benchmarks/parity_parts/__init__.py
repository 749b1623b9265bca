"""The parts of ``python -m benchmarks.parity``."""
