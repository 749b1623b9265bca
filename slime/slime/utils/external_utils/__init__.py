"""What scripts outside of a run call; the path is the contract's."""
