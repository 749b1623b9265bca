"""The laboratory: tiny models, demos and agents that learn on a CPU, and what they are measured with.

Run its programs with `openclaw-test` on the path too: the simulated users and the word problems live there.
"""
