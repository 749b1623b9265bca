"""Parts of the CPU demo: the run it starts, its progress display and its report."""
