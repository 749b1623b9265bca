"""Ray actors of a run and where they are placed."""
