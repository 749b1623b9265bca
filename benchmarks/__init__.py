"""Programs that measure; each is `python -m benchmarks.NAME [--quick] --json FILE`."""
