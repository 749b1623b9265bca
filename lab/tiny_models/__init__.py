"""Trains the tiny policy and judge of the demo and of the integration tests, from a corpus it generates."""
