"""A tiny policy that learns to use tools on a CPU: its warm start, its judge, its run and its report."""
