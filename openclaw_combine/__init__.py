"""Names that guides import; the method itself is in ``openclaw-combine/``."""
