"""A tiny policy that runs a real agent program half well, so that a CPU can train it: recording, teaching, running."""
