"""Conversions between checkpoint formats: what the commands in ``slime/tools`` do once their command line is read."""
